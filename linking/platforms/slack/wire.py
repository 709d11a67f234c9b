"""Parse Slack's events, commands and button presses into the updates that all platforms share."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs

import msgspec

from linking.platforms.base import (
    FORM_TYPE,
    JSON_ERRORS,
    AttachedFile,
    BotRemoved,
    ButtonPressed,
    IncomingUpdate,
    MessageReceived,
    PlatformPlace,
    Speaker,
    UpdateMalformed,
    WebhookResult,
)

CHAT_SUBTYPES = ("", "file_share", "thread_broadcast")  # messages from people
SLASH_COMMANDS = ("help", "link", "unlink", "new", "stop", "status", "settings")
_MENTION_PATTERN = re.compile(r"<@([A-Z0-9]+)(?:\|[^<>]*)?>")
_LINK_PATTERN = re.compile(r"<((?:https?|mailto):[^|<>]+)(?:\|([^<>]*))?>")


class _File(msgspec.Struct):
    id: str
    name: str = "file"
    size: int = 0
    mimetype: str = ""
    url_private: str = ""


class _Event(msgspec.Struct):
    type: str
    subtype: str = ""
    user: str = ""
    bot_id: str | None = None
    app_id: str | None = None
    text: str = ""
    ts: str = ""
    thread_ts: str = ""
    channel: str = ""
    channel_type: str = ""
    parent_user_id: str = ""
    files: list[_File] = []
    tokens: dict[str, list[str]] = {}


class _Authorization(msgspec.Struct):
    user_id: str = ""
    is_bot: bool = False


class EventEnvelope(msgspec.Struct):
    type: str
    challenge: str = ""
    team_id: str = ""
    api_app_id: str = ""
    event_id: str = ""
    event: _Event | None = None
    authorizations: list[_Authorization] = []


class _NamedEntity(msgspec.Struct):
    id: str = ""
    name: str = ""
    username: str = ""
    domain: str = ""


class _Message(msgspec.Struct):
    ts: str = ""
    thread_ts: str = ""


class _Action(msgspec.Struct):
    value: str = ""
    action_ts: str = ""


class BlockInteraction(msgspec.Struct):
    type: str
    user: _NamedEntity = msgspec.field(default_factory=_NamedEntity)
    team: _NamedEntity | None = None
    channel: _NamedEntity | None = None
    message: _Message | None = None
    actions: list[_Action] = []
    trigger_id: str = ""


_envelope_decoder = msgspec.json.Decoder(EventEnvelope)
_interaction_decoder = msgspec.json.Decoder(BlockInteraction)


def parse_request(body: bytes, content_type: str) -> WebhookResult:
    try:
        if content_type.partition(";")[0].strip().lower() == FORM_TYPE:
            return _parse_form(body)
        return parse_envelope(_envelope_decoder.decode(body))
    except (*JSON_ERRORS, ValueError, KeyError) as problem:
        raise UpdateMalformed from problem


def _parse_form(body: bytes) -> WebhookResult:
    form = {name: values[0] for name, values in parse_qs(body.decode(), strict_parsing=True).items()}
    if "payload" in form:
        return WebhookResult(incoming=parse_interaction(_interaction_decoder.decode(form["payload"])))
    if "ssl_check" in form:
        return WebhookResult()  # Slack checks the TLS certificate and expects a response
    if "command" in form:
        return WebhookResult(incoming=parse_slash_command(form))
    raise UpdateMalformed


# --- Events ---


def parse_envelope(envelope: EventEnvelope) -> WebhookResult:
    if envelope.type == "url_verification":
        return WebhookResult(answer={"challenge": envelope.challenge})
    event = envelope.event
    if envelope.type != "event_callback" or event is None:
        return WebhookResult()
    if event.type == "app_uninstalled" or (event.type == "tokens_revoked" and event.tokens.get("bot")):
        place = PlatformPlace(scope="server", server_id=envelope.team_id, container_id=envelope.team_id)
        return WebhookResult(
            incoming=IncomingUpdate(update_key=envelope.event_id, place=place, what=BotRemoved())
        )
    if event.type not in ("message", "app_mention") or not _is_user_message(event, envelope):
        return WebhookResult()
    return WebhookResult(
        incoming=IncomingUpdate(
            update_key=envelope.event_id,
            message_key=f"{event.channel}:{event.ts}",
            place=_build_place(event, envelope.team_id),
            what=_build_message(event, _get_own_id(envelope)),
        )
    )


def _is_user_message(event: _Event, envelope: EventEnvelope) -> bool:
    """Return False for messages of bots, including our own, and for edits and deletions."""
    is_own = event.app_id is not None and event.app_id == envelope.api_app_id
    return bool(event.user) and event.bot_id is None and not is_own and event.subtype in CHAT_SUBTYPES


def _get_own_id(envelope: EventEnvelope) -> str:
    return next((entry.user_id for entry in envelope.authorizations if entry.is_bot), "")


def _build_place(event: _Event, team_id: str) -> PlatformPlace:
    if event.channel_type == "im":
        return PlatformPlace(scope="dm", container_id=event.channel, reply_thread=event.thread_ts)
    return PlatformPlace(
        scope="server",
        server_id=team_id,
        container_id=event.channel,
        thread_id=event.thread_ts or event.ts,  # a message outside of threads starts its own
    )


def _build_message(event: _Event, own_id: str) -> MessageReceived:
    is_mentioned = event.type == "app_mention" or (
        bool(own_id) and own_id in _MENTION_PATTERN.findall(event.text)
    )
    is_reply_to_bot = bool(own_id) and event.parent_user_id == own_id
    return MessageReceived(
        speaker=Speaker(user_id=event.user),
        message_id=event.ts,
        text=to_plain_text(event.text, own_id),
        mentioned=event.channel_type == "im" or is_mentioned or is_reply_to_bot,
        reply_to=event.thread_ts,
        files=tuple(
            AttachedFile(reference=file.url_private, name=file.name, size=file.size, type=file.mimetype)
            for file in event.files
        ),
    )


def to_plain_text(text: str, own_id: str) -> str:
    """Convert Slack's markup to the text that people typed, without the mention of our bot."""
    text = _MENTION_PATTERN.sub(lambda match: "" if match[1] == own_id else f"@{match[1]}", text)
    text = _LINK_PATTERN.sub(
        lambda match: f"{match[2]} ({match[1]})" if match[2] and match[2] != match[1] else match[1], text
    )
    return html.unescape(text).strip()


# --- Commands and button presses ---


def parse_slash_command(form: dict[str, str]) -> IncomingUpdate:
    """Parse a command such as `/pilothouse new`; other text is a message to the assistant."""
    arguments = html.unescape(form.get("text", "")).strip()
    is_command = arguments.partition(" ")[0].lower() in SLASH_COMMANDS
    text = f"/{arguments}" if is_command else arguments or "/help"
    channel = form["channel_id"]
    in_dm = form.get("channel_name") == "directmessage"
    place = (
        PlatformPlace(scope="dm", container_id=channel)
        if in_dm
        else PlatformPlace(
            scope="server",
            server_id=form["team_id"],
            server_name=form.get("team_domain", ""),
            container_id=channel,
        )
    )
    message = MessageReceived(
        speaker=Speaker(user_id=form["user_id"], name=form.get("user_name", "")),
        message_id="",
        text=text,
        mentioned=True,
    )
    return IncomingUpdate(update_key=form["trigger_id"], place=place, what=message)


def parse_interaction(interaction: BlockInteraction) -> IncomingUpdate | None:
    """Parse a button press; None for link buttons, which Slack reports too."""
    channel, message = interaction.channel, interaction.message
    action = next((action for action in interaction.actions if action.value), None)
    if interaction.type != "block_actions" or channel is None or action is None:
        return None
    if channel.name == "directmessage":
        thread = message.thread_ts if message and message.thread_ts != message.ts else ""
        place = PlatformPlace(scope="dm", container_id=channel.id, reply_thread=thread)
    else:
        place = PlatformPlace(
            scope="server",
            server_id=interaction.team.id if interaction.team else "",
            container_id=channel.id,
            thread_id=(message.thread_ts or message.ts) if message else "",
        )
    pressed = ButtonPressed(
        speaker=Speaker(user_id=interaction.user.id, name=interaction.user.name or interaction.user.username),
        message_id=message.ts if message else "",
        code=action.value,
        reply_token=interaction.trigger_id,
    )
    return IncomingUpdate(
        update_key=f"{interaction.trigger_id}:{action.action_ts}", place=place, what=pressed
    )
