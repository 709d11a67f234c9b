"""Parse Discord's interactions and gateway messages into the updates that all platforms share."""

from __future__ import annotations

from typing import Literal

import msgspec

from linking.platforms.base import (
    JSON_ERRORS,
    AttachedFile,
    ButtonPressed,
    IncomingUpdate,
    MessageReceived,
    PlatformPlace,
    Speaker,
    UpdateMalformed,
    WebhookResult,
)

PING, COMMAND, COMPONENT = 1, 2, 3
PONG, DEFER_MESSAGE, DEFER_UPDATE = 1, 5, 6
EPHEMERAL = 64
SUPPRESS_EMBEDS = 4
THREAD_CHANNEL_TYPES = (10, 11, 12)
CHAT_MESSAGE_TYPES = (0, 19)  # messages from people: new ones and replies
ADMIN_PERMISSIONS = 0x8 | 0x20  # Administrator, Manage Guild
ASK_COMMANDS = ("ask", "chat")  # commands whose text goes to the assistant; all others are answered privately
Privacy = Literal["public", "private"]


class _User(msgspec.Struct):
    id: str
    username: str = ""
    global_name: str | None = None
    bot: bool = False


class _Member(msgspec.Struct):
    user: _User | None = None
    nick: str | None = None
    roles: tuple[str, ...] = ()
    permissions: str = ""


class _Option(msgspec.Struct):
    name: str
    value: str | int | float | bool = ""


class _InteractionData(msgspec.Struct):
    name: str = ""
    custom_id: str = ""
    options: list[_Option] = []


class _Channel(msgspec.Struct):
    id: str
    type: int = 0
    parent_id: str | None = None


class _MessageReference(msgspec.Struct):
    id: str


class _Interaction(msgspec.Struct):
    id: str
    type: int
    token: str = ""
    guild_id: str | None = None
    channel_id: str | None = None
    channel: _Channel | None = None
    member: _Member | None = None
    user: _User | None = None
    data: _InteractionData | None = None
    message: _MessageReference | None = None


class _Attachment(msgspec.Struct):
    filename: str
    size: int
    url: str
    content_type: str | None = None


class _ReferencedMessage(msgspec.Struct):
    id: str
    author: _User | None = None


class GatewayMessage(msgspec.Struct):
    """The gateway's MESSAGE_CREATE event."""

    id: str
    channel_id: str
    author: _User
    type: int = 0
    content: str = ""
    guild_id: str | None = None
    webhook_id: str | None = None
    member: _Member | None = None
    mentions: list[_User] = []
    attachments: list[_Attachment] = []
    referenced_message: _ReferencedMessage | None = None


_interaction_decoder = msgspec.json.Decoder(_Interaction)


def parse_interaction(body: bytes) -> WebhookResult:
    try:
        return _to_result(_interaction_decoder.decode(body))
    except JSON_ERRORS as problem:
        raise UpdateMalformed from problem


def _to_result(interaction: _Interaction) -> WebhookResult:
    # Discord waits three seconds, so commands and buttons are deferred at once and answered later.
    match interaction.type:
        case 1:
            return WebhookResult(answer={"type": PONG})
        case 2:
            privacy = _get_privacy(interaction)
            data: dict[str, int] = {"flags": EPHEMERAL} if privacy == "private" else {}
            return WebhookResult(
                incoming=_parse_command(interaction, privacy),
                answer={"type": DEFER_MESSAGE, "data": {**data}},
            )
        case 3:
            return WebhookResult(incoming=_parse_press(interaction), answer={"type": DEFER_UPDATE})
        case _:
            return WebhookResult()


def _get_privacy(interaction: _Interaction) -> Privacy:
    name = interaction.data.name if interaction.data else ""
    return "public" if name in ASK_COMMANDS else "private"


def _build_interaction_place(interaction: _Interaction) -> PlatformPlace:
    channel = interaction.channel_id or ""
    if interaction.guild_id is None:
        return PlatformPlace(scope="dm", container_id=channel)
    details = interaction.channel
    in_thread = details is not None and details.type in THREAD_CHANNEL_TYPES
    return build_place(interaction.guild_id, channel, details.parent_id if in_thread and details else None)


def build_place(guild_id: str, channel_id: str, parent_id: str | None) -> PlatformPlace:
    """Build a place; Discord's threads are channels of their own, but we treat them as threads of their parent."""
    return PlatformPlace(
        scope="server",
        server_id=guild_id,
        container_id=parent_id or channel_id,
        thread_id=channel_id if parent_id else "",
    )


def _build_speaker(user: _User | None, member: _Member | None) -> Speaker:
    author = user or (member.user if member else None)
    if author is None:
        raise UpdateMalformed("missing user")
    nick = member.nick if member else None
    permissions = member.permissions if member else ""
    return Speaker(
        user_id=author.id,
        name=nick or author.global_name or author.username,
        role_ids=member.roles if member else (),
        is_admin=bool(int(permissions) & ADMIN_PERMISSIONS) if permissions.isdecimal() else None,
    )


def _parse_command(interaction: _Interaction, privacy: Privacy) -> IncomingUpdate:
    data = interaction.data or _InteractionData()
    arguments = " ".join(str(option.value) for option in data.options)
    message = MessageReceived(
        speaker=_build_speaker(interaction.user, interaction.member),
        message_id="",
        text=arguments if privacy == "public" else f"/{data.name} {arguments}".strip(),
        mentioned=True,
        reply_token=f"{privacy}:{interaction.token}",
    )
    return IncomingUpdate(
        update_key=interaction.id, place=_build_interaction_place(interaction), what=message
    )


def _parse_press(interaction: _Interaction) -> IncomingUpdate:
    pressed = ButtonPressed(
        speaker=_build_speaker(interaction.user, interaction.member),
        message_id=interaction.message.id if interaction.message else "",
        code=interaction.data.custom_id if interaction.data else "",
        reply_token=interaction.token,
    )
    return IncomingUpdate(
        update_key=interaction.id, place=_build_interaction_place(interaction), what=pressed
    )


def parse_message(message: GatewayMessage, *, parent_id: str | None, bot_id: str) -> IncomingUpdate | None:
    """Parse a plain message; None for bots, webhooks and service messages."""
    if message.author.bot or message.webhook_id is not None or message.type not in CHAT_MESSAGE_TYPES:
        return None
    if message.guild_id is None:
        where = PlatformPlace(scope="dm", container_id=message.channel_id)
    else:
        where = build_place(message.guild_id, message.channel_id, parent_id)
    return IncomingUpdate(
        update_key=message.id,
        message_key=f"{message.channel_id}:{message.id}",
        place=where,
        what=_build_message(message, bot_id, in_dm=message.guild_id is None),
    )


def _build_message(message: GatewayMessage, bot_id: str, *, in_dm: bool) -> MessageReceived:
    replied = message.referenced_message
    is_reply_to_bot = replied is not None and replied.author is not None and replied.author.id == bot_id
    is_mentioned = any(user.id == bot_id for user in message.mentions)
    text = message.content.replace(f"<@{bot_id}>", "").replace(f"<@!{bot_id}>", "").strip()
    return MessageReceived(
        speaker=_build_speaker(message.author, message.member),
        message_id=message.id,
        text=text,
        mentioned=in_dm or is_mentioned or is_reply_to_bot,
        reply_to=replied.id if replied else "",
        files=tuple(
            AttachedFile(reference=file.url, name=file.filename, size=file.size, type=file.content_type or "")
            for file in message.attachments
        ),
    )
