"""Fetch the files of an incoming platform message and store them in its conversation."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from config.core.errors import RequestRefused, ServiceUnavailable
from copilot.chat.commands import REQUEST_LIMITS
from copilot.files import services as files
from linking.caps import admission
from linking.conversations import services as conversations
from linking.conversations.services import ConversationPlace
from linking.outbound import notices
from linking.platforms.base import (
    AttachedFile,
    CallRefused,
    ChatUnreachable,
    MessageReceived,
    PlatformUnavailable,
)

log = structlog.get_logger(__name__)

FETCH_ATTEMPTS = 3
MAX_ATTACHMENT_BYTES = 20 * 2**20  # Telegram's download limit for bots, applied to all platforms


@dataclass(frozen=True, kw_only=True)
class UploadedAttachments:
    """Stored files of one message. `sources` are the platform's references, which stay the same when it is resent."""

    ids: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    left_out: int = 0  # too large, not available from the platform, or over the account's storage limit


def upload_attachments(where: ConversationPlace, message: MessageReceived) -> UploadedAttachments:
    """Store the files of a message.

    Raise NotLinked, or in a server what its owner's settings refuse, before anything is stored in the owner's workspace.
    """
    if not message.files:
        return UploadedAttachments()
    payer = conversations.find_payer(where, message.speaker.user_id)
    if payer.link is not None:
        admission.check_message(
            payer.link,
            admission.ServerMessage(
                run_id="",
                container_id=where.container_id,
                platform_user_id=message.speaker.user_id,
                role_ids=message.speaker.role_ids,
                mentioned=message.mentioned,
            ),
        )
    accepted = [file for file in message.files if file.size <= MAX_ATTACHMENT_BYTES][
        : REQUEST_LIMITS.attachments
    ]
    conversation = conversations.get_or_open_conversation(where, payer) if accepted else None
    uploaded = [
        _upload_file(where.platform, payer.owner_id, conversation, file)
        for file in accepted
        if conversation is not None
    ]
    ids = tuple(file_id for file_id in uploaded if file_id)
    return UploadedAttachments(
        ids=ids,
        sources=tuple(file.reference for file in message.files),
        left_out=len(message.files) - len(ids),
    )


def _upload_file(
    platform: str, owner_id: int, conversation: conversations.OpenConversation, file: AttachedFile
) -> str:
    """Return the file's id, or "" if it could not be fetched or stored."""
    try:
        content = _fetch_file(platform, file)
        if len(content) > MAX_ATTACHMENT_BYTES:
            return ""
        stored = files.store_file(
            owner_id, name=file.name, content=content, source="platform", session_id=conversation.session_id
        )
    except ServiceUnavailable:
        raise
    except (PlatformUnavailable, CallRefused, ChatUnreachable, RequestRefused) as problem:
        log.info(
            "attachment_skipped",
            platform=platform,
            conversation_id=conversation.conversation_id,
            error=type(problem).__name__,
        )
        return ""
    return str(stored.pk)


def _fetch_file(platform: str, file: AttachedFile) -> bytes:
    # The attempts are limited because the other updates of this chat wait meanwhile.
    for _ in range(FETCH_ATTEMPTS - 1):
        try:
            return notices.fetch_file(platform, file)
        except PlatformUnavailable:
            continue
    return notices.fetch_file(platform, file)
