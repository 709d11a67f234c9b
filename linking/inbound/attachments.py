"""Files that somebody sends along are put into the conversation, like any upload (L8, L20, L25)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

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

log = logging.getLogger(__name__)

FETCH_ATTEMPTS = 3
MAX_ATTACHMENT_BYTES = 20 * 2**20  # what Telegram gives to bots; the others are asked for no more


@dataclass(frozen=True, kw_only=True)
class UploadedAttachments:
    """What goes with a message. `sources` names it as the platform does: in a repetition the ids are others."""

    ids: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    left_out: int = 0  # too large, not given by the platform, or without room in the account


def upload_attachments(where: ConversationPlace, said: MessageReceived) -> UploadedAttachments:
    """Refuses NotLinked, and in a server what its owner does not allow: members fill nobody's workspace unasked."""
    if not said.files:
        return UploadedAttachments()
    payer = conversations.find_payer(where, said.speaker.user_id)
    if payer.link is not None:
        admission.check_message(
            payer.link,
            admission.ServerMessage(
                run_id="",
                container_id=where.container_id,
                platform_user_id=said.speaker.user_id,
                role_ids=said.speaker.role_ids,
                mentioned=said.mentioned,
            ),
        )
    wanted = [file for file in said.files if file.size <= MAX_ATTACHMENT_BYTES][: REQUEST_LIMITS.attachments]
    place = conversations.get_or_open_conversation(where, payer) if wanted else None
    kept = [_upload_file(where.platform, payer.owner_id, place, file) for file in wanted if place is not None]
    ids = tuple(file_id for file_id in kept if file_id)
    return UploadedAttachments(
        ids=ids,
        sources=tuple(file.reference for file in said.files),
        left_out=len(said.files) - len(ids),
    )


def _upload_file(
    platform: str, owner_id: int, place: conversations.OpenConversation, file: AttachedFile
) -> str:
    """Nothing for a file that the platform does not give, or that the account has no room for."""
    try:
        content = _fetch_file(platform, file)
        if len(content) > MAX_ATTACHMENT_BYTES:
            return ""
        stored = files.store_file(
            owner_id, name=file.name, content=content, source="platform", session_id=place.session_id
        )
    except ServiceUnavailable:
        raise
    except (PlatformUnavailable, CallRefused, ChatUnreachable, RequestRefused) as problem:
        log.info("a file of conversation %s was left out: %s", place.conversation_id, type(problem).__name__)
        return ""
    return str(stored.pk)


def _fetch_file(platform: str, file: AttachedFile) -> bytes:
    """A few tries: a file that never comes must not hold up its chat for ever (L18)."""
    for _ in range(FETCH_ATTEMPTS - 1):
        try:
            return notices.fetch_file(platform, file)
        except PlatformUnavailable:
            continue
    return notices.fetch_file(platform, file)
