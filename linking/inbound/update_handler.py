"""Handle stored platform updates: submit messages, run commands, apply button presses and reply in the chat.

The actions are the functions of `linking.inbound` that the bot API calls too; this module puts their results into
words and limits how often a channel is told about a refusal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction

from config.core import rate_limits
from config.core.errors import Conflict, NotFound, OutcomeUnknown, RequestRefused, ServiceUnavailable
from config.core.json_values import parse_uuid
from copilot.chat import turn_details
from copilot.chat.commands import REQUEST_LIMITS
from copilot.chat.turn_context import Channel
from copilot.files import services as files
from linking import bot_messages, emails
from linking.caps import admission
from linking.conversations import reachability
from linking.conversations import services as conversations
from linking.conversations.services import BotAccount, ConversationPlace
from linking.errors import MessageRefused, NotLinked, NotServerAdmin
from linking.inbound import commands, controls, messages
from linking.inbound.commands import CommandRequest, CommandResult, LinkResult, StatusResult
from linking.inbound.controls import Decided
from linking.inbound.messages import AcceptedMessage, IncomingMessage
from linking.links import services as links
from linking.models import LinkToken
from linking.outbound import notices, worker
from linking.outbound import records as outbound_records
from linking.outbound.notices import Notice
from linking.platforms import registry
from linking.platforms.base import (
    AttachedFile,
    BotRemoved,
    BotUnblocked,
    ButtonPressed,
    CallRefused,
    ChatUnreachable,
    IncomingUpdate,
    MessageButton,
    MessageReceived,
    OutboundAddress,
    PlatformPlace,
    PlatformUnavailable,
    ServerMoved,
)

log = structlog.get_logger(__name__)

DAY_SECONDS = 24 * 3600
TRANSIENT_REFUSALS = (ServiceUnavailable, OutcomeUnknown)  # the update is fine and is tried again later
NOTICE_INTERVAL_SECONDS = 3600  # per kind and channel
GREETING_INTERVAL_SECONDS = 600  # for people without a link
QUEUED_NOTICE_SECONDS = 30


def may_announce_refusal(refused: RequestRefused, platform: str, bot_account: str, container_id: str) -> bool:
    """Allow one announcement per reason, channel and hour, and none for messages that were not meant for the bot."""
    if isinstance(refused, MessageRefused) and not refused.is_announced:
        return False
    place = f"{platform}:{bot_account}:{container_id}"
    return rate_limits.is_first_in_window(f"refusal-{refused.code}", place, seconds=NOTICE_INTERVAL_SECONDS)


def may_send_greeting(platform: str, bot_account: str, platform_user_id: str) -> bool:
    user = f"{platform}:{bot_account}:{platform_user_id}"
    return rate_limits.is_first_in_window("greeting", user, seconds=GREETING_INTERVAL_SECONDS)


def may_prompt_unlinked_server(platform: str, server_id: str) -> bool:
    limit = settings.LINK_PROMPTS_PER_SERVER_DAY
    return (
        rate_limits.count_in_sliding_window(
            "unlinked-server", f"{platform}:{server_id}", limit=limit, seconds=DAY_SECONDS
        )
        is None
    )


def handle_platform_update(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
    """Handle an update and return its outcome as one word; raise errors after which it should be tried again."""
    bot = BotAccount(platform=platform, bot_account=bot_account)
    match incoming.what:
        case MessageReceived() as received:
            return _MessageHandler(bot, incoming, notices.resolve_message(platform, received)).handle()
        case ButtonPressed() as pressed:
            return _handle_press(bot, incoming.place, pressed)
        case BotRemoved():
            return _handle_bot_removed(bot, incoming.place)
        case ServerMoved() as moved:
            return _handle_server_moved(bot, incoming.place, moved.new_id)
        case BotUnblocked():
            reachability.mark_container_reachable(bot, incoming.place.container_id)
            return "opened"
        case unreachable:
            assert_never(unreachable)


class _MessageHandler:
    def __init__(self, bot: BotAccount, incoming: IncomingUpdate, received: MessageReceived) -> None:
        self.bot = bot
        self.key = incoming.update_key
        self.place = incoming.place
        self.received = received
        self.where = ConversationPlace(
            platform=bot.platform,
            bot_account=bot.bot_account,
            scope=self.place.scope,
            container_id=self.place.container_id,
            thread_id=self.place.thread_id,
            server_id=self.place.server_id,
        )
        self.to = build_address(self.place, anchor=received.message_id, reply_token=received.reply_token)
        self._has_replied = False

    def handle(self) -> str:
        outcome = self._handle_message()
        # A reply token means that the platform shows a pending reply, so there has to be one.
        if self.received.reply_token and not self._has_replied and outcome not in ("started", "queued"):
            self.send_private(bot_messages.OUTCOME_REPLIES.get(outcome, bot_messages.NOTED))
        return outcome

    def _handle_message(self) -> str:
        command = commands.parse_command(self.received.text) if self.received.mentioned else None
        if command is not None:
            return self._run_command(command)
        if self.place.scope == "server" and self.received.text.startswith("/"):
            return "ignored"  # a command for another bot
        if self.received.mentioned and self.received.files:
            notices.send_typing(self.bot.platform, self.to)  # fetching the files may take a while
        try:
            return self._submit()
        except NotLinked:
            return self._prompt_to_link()
        except (*TRANSIENT_REFUSALS, Conflict):
            raise
        except RequestRefused as refused:
            return self._report_refusal(refused)

    def _submit(self) -> str:
        attached = upload_attachments(self.where, self.received)
        if attached.left_out and self.received.mentioned:
            self.send_public(bot_messages.format_skipped_files(attached.left_out))
            if not self.received.text.strip() and not attached.ids:
                return "refused"
        message = self._build_message(attached)
        if self.received.reply_token:
            outbound_records.save_reply_token(self.bot.platform, message.run_id, self.received.reply_token)
        return self._report_accepted(messages.receive_message(message))

    def _build_message(self, attached: UploadedAttachments) -> IncomingMessage:
        supports_async = registry.load_adapter_class(self.bot.platform).supports_async_delivery
        return IncomingMessage(
            key=self.key,
            where=self.where,
            user_id=self.received.speaker.user_id,
            text=self.received.text,
            attachments=attached.ids,
            sources=attached.sources,
            channel=Channel(async_delivery=supports_async, interactive=True),
            display_name=self.received.speaker.name,
            role_ids=self.received.speaker.role_ids,
            reply_to=self.received.message_id,
            reply_thread=self.place.reply_thread,
            mentioned=self.received.mentioned,
        )

    def _report_accepted(self, result: AcceptedMessage | messages.AnsweredQuestion) -> str:
        if not isinstance(result, AcceptedMessage):
            return "answered"
        if result.state == "queued" and not result.replayed:
            if self._may_send_queue_position():
                self._send_queue_position(bot_messages.format_queued(result.position))
            return "queued"
        if (turn_id := parse_uuid(result.turn_id)) is not None:
            worker.get_worker().deliver_turn(turn_id)
        return "started"

    def _send_queue_position(self, text: str) -> None:
        if self.received.reply_token:
            self.send_public(text)  # the answer replaces it later
        else:
            notices.send_if_idle(self.bot.platform, self.to, text)

    def _may_send_queue_position(self) -> bool:
        if self.place.scope == "dm":
            return True
        # Platforms allow a bot few messages per minute in a group.
        place = f"{self.bot.platform}:{self.place.container_id}:{self.place.thread_id}"
        return rate_limits.is_first_in_window("queued", place, seconds=QUEUED_NOTICE_SECONDS)

    # --- Unlinked chats and refusals ---

    def _prompt_to_link(self) -> str:
        """Send a greeting with a private link, rate limited; in a server only to somebody who mentioned the bot."""
        if not self.received.mentioned or not self._may_greet():
            return "unlinked"
        if self.place.scope == "server":
            self.send_private_or_public(bot_messages.SERVER_NOT_LINKED)
            return "unlinked"
        try:
            self._send_result("link", commands.run_command("link", self._build_command_request()))
        except TRANSIENT_REFUSALS:
            raise
        except RequestRefused as refused:
            self.send_public(refused.message)
        return "unlinked"

    def _may_greet(self) -> bool:
        platform, account = self.bot.platform, self.bot.bot_account
        user_id = self.received.speaker.user_id
        if self.place.scope == "dm":
            return may_send_greeting(platform, account, user_id)
        server_id = self.place.server_id
        return may_send_greeting(platform, account, f"{server_id}:{user_id}") and may_prompt_unlinked_server(
            platform, server_id
        )

    def _report_refusal(self, refused: RequestRefused) -> str:
        if self.received.reply_token:  # the reply is visible only to the person who asked
            self.send_private(refused.message)
            return "refused"
        always = self.place.scope == "dm" and not isinstance(refused, MessageRefused)
        bot, place = self.bot, self.place
        if always or may_announce_refusal(refused, bot.platform, bot.bot_account, place.container_id):
            self.send_public(refused.message)
        return "refused"

    # --- Commands ---

    def _run_command(self, command: str) -> str:
        try:
            self._send_result(command, commands.run_command(command, self._build_command_request(command)))
        except TRANSIENT_REFUSALS:
            raise
        except NotLinked:
            return self._prompt_to_link()
        except RequestRefused as refused:
            self._report_denial(refused)
        return "unlinked" if command == "help" and self._prompt_if_unlinked() else "command"

    def _prompt_if_unlinked(self) -> bool:
        """Send the greeting with a link to somebody who asks for help in an unlinked direct message."""
        if self.place.scope == "server":
            return False
        try:
            conversations.find_payer(self.where, self.received.speaker.user_id)
        except NotLinked:
            self._prompt_to_link()
            return True
        return False

    def _report_denial(self, refused: RequestRefused) -> None:
        """Tell the person who gave the command; where that is impossible, tell the channel with the usual limit."""
        text = bot_messages.ADMINS_ONLY if isinstance(refused, NotServerAdmin) else refused.message
        bot, container = self.bot, self.place.container_id
        may_send = partial(may_announce_refusal, refused, bot.platform, bot.bot_account, container)
        self.send_notices(
            self._build_private_notice(text), replace(self._build_public_notice(text), may_send=may_send)
        )

    def _build_command_request(self, command: str = "link") -> CommandRequest:
        return CommandRequest(
            where=self.where,
            user_id=self.received.speaker.user_id,
            display_name=self.received.speaker.name,
            place_name=self._get_server_name() if command == "link" else "",
            is_admin=command == "link" and self._is_server_admin(),
        )

    def _get_server_name(self) -> str:
        if self.place.scope == "dm" or self.place.server_name:
            return self.place.server_name
        return notices.fetch_server_name(self.bot.platform, self.place)

    def _is_server_admin(self) -> bool:
        if self.place.scope == "dm":
            return True
        known = self.received.speaker.is_admin
        user_id = self.received.speaker.user_id
        return notices.is_server_admin(self.bot.platform, self.place, user_id) if known is None else known

    def _send_result(self, command: str, result: CommandResult) -> None:
        text = bot_messages.format_result(result)
        if isinstance(result, LinkResult):
            button = MessageButton(label=bot_messages.CONNECT_LABEL, url=result.link_url)
            self.send_notices(
                self._build_private_notice(text, (button,)),
                self._build_public_notice(bot_messages.LINK_NOT_DELIVERED),
            )
        elif isinstance(result, StatusResult) and result.web_url:
            self.send_private(text)
        elif command in bot_messages.PRIVATE_COMMANDS:
            self.send_private_or_public(text)
        else:
            self.send_public(text)

    # --- Replies ---

    def send_public(self, text: str) -> None:
        self.send_notices(self._build_public_notice(text))

    def send_private_or_public(self, text: str) -> None:
        """Send the text to the speaker alone, or to the channel if the bot may not write to them. Not for secrets."""
        self.send_notices(self._build_private_notice(text), self._build_public_notice(text))

    def send_private(self, text: str) -> None:
        self.send_notices(self._build_private_notice(text))

    def send_notices(self, *alternatives: Notice) -> None:
        self._has_replied = True
        notices.send_first_accepted(self.bot.platform, *alternatives)

    def _build_public_notice(self, text: str) -> Notice:
        return Notice(to=self.to, text=text)

    def _build_private_notice(self, text: str, buttons: tuple[MessageButton, ...] = ()) -> Notice:
        only_for = "" if self.place.scope == "dm" else self.received.speaker.user_id
        return Notice(to=self.to, text=text, buttons=buttons, only_for=only_for)


def build_address(place: PlatformPlace, *, anchor: str = "", reply_token: str = "") -> OutboundAddress:
    return OutboundAddress(
        scope=place.scope,
        container_id=place.container_id,
        thread_id=place.thread_id or place.reply_thread,
        anchor=anchor,
        reply_token=reply_token,
    )


# --- Button presses and changes of a place ---


def _handle_press(bot: BotAccount, place: PlatformPlace, pressed: ButtonPressed) -> str:
    """Apply a press and acknowledge it. The card itself is edited by the process that delivers the turn."""
    try:
        result = controls.press_button(bot, pressed.code, user_id=pressed.speaker.user_id)
    except TRANSIENT_REFUSALS:
        raise
    except NotFound:
        outcome, text = "refused", bot_messages.BUTTON_GONE
    except RequestRefused as refused:
        outcome, text = "refused", refused.message
    else:
        outcome, text = "pressed", bot_messages.format_press(result)
        _resume_delivery(result)
    notices.answer_button_press(bot.platform, build_address(place), pressed, text)
    return outcome


def _resume_delivery(result: Decided | str) -> None:
    approval_id = parse_uuid(result.approval_id) if isinstance(result, Decided) else None
    turn = turn_details.get_turn_of_approval(approval_id) if approval_id is not None else None
    if turn is not None:
        worker.get_worker().deliver_turn(turn.turn_id)


def _handle_bot_removed(bot: BotAccount, place: PlatformPlace) -> str:
    reachability.mark_container_unreachable(bot, place.container_id)
    if place.scope == "server":
        link = links.mark_bot_removed(bot, place.server_id)
        if link is not None:
            emails.send_bot_removed_email(link)
    return "removed"


def _handle_server_moved(bot: BotAccount, place: PlatformPlace, new_id: str) -> str:
    """Move the link, its settings and its conversations to the server's new id."""
    try:
        with transaction.atomic():
            links.change_server_id(bot.platform, place.server_id, new_id)
            reachability.move_conversations(bot.platform, place.container_id, new_id)
    except IntegrityError:
        # Another link already uses the new id, so this one keeps its old id.
        log.warning("server_move_conflict", platform=bot.platform)
        return "conflict"
    return "moved"


def send_linked_notice(token: LinkToken) -> None:
    """Confirm the new link in the chat that requested it, if that chat belongs to one of our bots."""
    is_own_bot = worker.get_own_accounts().get(token.platform) == token.bot_account
    if is_own_bot and token.notify_container:
        to = OutboundAddress(
            scope="server" if token.kind == "server" else "dm", container_id=token.notify_container
        )
        notices.send_first_accepted(token.platform, Notice(to=to, text=bot_messages.CONNECTED))


# --- Attachments ---

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
