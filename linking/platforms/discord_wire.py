"""Discord's interactions and gateway messages, read into what every platform says (L22)."""

from __future__ import annotations

from typing import Literal

import msgspec

from linking.platforms.base import (
    NO_JSON,
    Heard,
    Incoming,
    Place,
    Pressed,
    Said,
    SentFile,
    Speaker,
    Unreadable,
)

PING, COMMAND, COMPONENT = 1, 2, 3
PONG, DEFER_MESSAGE, DEFER_UPDATE = 1, 5, 6
EPHEMERAL = 64
SUPPRESS_EMBEDS = 4
THREADS = (10, 11, 12)
TALK = (0, 19)  # kinds of messages that people write: new ones and replies
MAY_LINK = 0x8 | 0x20  # Administrator, Manage Guild
ASKING = ("ask", "chat")  # commands whose text is for the agent; all others are answered privately
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


class _Data(msgspec.Struct):
    name: str = ""
    custom_id: str = ""
    options: list[_Option] = []


class _Channel(msgspec.Struct):
    id: str
    type: int = 0
    parent_id: str | None = None


class _Target(msgspec.Struct):
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
    data: _Data | None = None
    message: _Target | None = None


class _Attachment(msgspec.Struct):
    filename: str
    size: int
    url: str
    content_type: str | None = None


class _Referenced(msgspec.Struct):
    id: str
    author: _User | None = None


class Message(msgspec.Struct):
    """MESSAGE_CREATE of the gateway."""

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
    referenced_message: _Referenced | None = None


_interactions = msgspec.json.Decoder(_Interaction)


def read(body: bytes) -> Heard:
    try:
        return _hear(_interactions.decode(body))
    except NO_JSON as problem:
        raise Unreadable from problem


def _hear(interaction: _Interaction) -> Heard:
    """Discord waits three seconds for these: commands and buttons are put off at once, and answered later."""
    match interaction.type:
        case 1:
            return Heard(answer={"type": PONG})
        case 2:
            privacy = _privacy(interaction)
            data: dict[str, int] = {"flags": EPHEMERAL} if privacy == "private" else {}
            return Heard(
                incoming=_command(interaction, privacy), answer={"type": DEFER_MESSAGE, "data": {**data}}
            )
        case 3:
            return Heard(incoming=_press(interaction), answer={"type": DEFER_UPDATE})
        case _:
            return Heard()


def _privacy(interaction: _Interaction) -> Privacy:
    name = interaction.data.name if interaction.data else ""
    return "public" if name in ASKING else "private"


def _place(interaction: _Interaction) -> Place:
    channel = interaction.channel_id or ""
    if interaction.guild_id is None:
        return Place(scope="dm", container_id=channel)
    found = interaction.channel
    inside = found is not None and found.type in THREADS and found.parent_id is not None
    return place(interaction.guild_id, channel, found.parent_id if inside and found else None)


def place(guild_id: str, channel_id: str, parent_id: str | None) -> Place:
    """A thread is a channel of its own to Discord; to us it is a thread of its parent."""
    return Place(
        scope="server",
        server_id=guild_id,
        container_id=parent_id or channel_id,
        thread_id=channel_id if parent_id else "",
    )


def _speaker(user: _User | None, member: _Member | None) -> Speaker:
    someone = user or (member.user if member else None)
    if someone is None:
        raise Unreadable("nobody speaks")
    nick = member.nick if member else None
    rights = member.permissions if member else ""
    return Speaker(
        user_id=someone.id,
        name=nick or someone.global_name or someone.username,
        role_ids=member.roles if member else (),
        is_admin=bool(int(rights) & MAY_LINK) if rights.isdecimal() else None,
    )


def _command(interaction: _Interaction, privacy: Privacy) -> Incoming:
    data = interaction.data or _Data()
    words = " ".join(str(option.value) for option in data.options)
    said = Said(
        speaker=_speaker(interaction.user, interaction.member),
        message_id="",
        text=words if privacy == "public" else f"/{data.name} {words}".strip(),
        mentioned=True,
        reply_token=f"{privacy}:{interaction.token}",
    )
    return Incoming(update_key=interaction.id, place=_place(interaction), what=said)


def _press(interaction: _Interaction) -> Incoming:
    pressed = Pressed(
        speaker=_speaker(interaction.user, interaction.member),
        message_id=interaction.message.id if interaction.message else "",
        code=interaction.data.custom_id if interaction.data else "",
        reply_token=interaction.token,
    )
    return Incoming(update_key=interaction.id, place=_place(interaction), what=pressed)


def from_message(message: Message, *, parent_id: str | None, bot_id: str) -> Incoming | None:
    """A plain message; None for bots, webhooks, and what nobody wrote."""
    if message.author.bot or message.webhook_id is not None or message.type not in TALK:
        return None
    if message.guild_id is None:
        where = Place(scope="dm", container_id=message.channel_id)
    else:
        where = place(message.guild_id, message.channel_id, parent_id)
    return Incoming(
        update_key=message.id,
        message_key=f"{message.channel_id}:{message.id}",
        place=where,
        what=_said(message, bot_id, in_dm=message.guild_id is None),
    )


def _said(message: Message, bot_id: str, *, in_dm: bool) -> Said:
    replied = message.referenced_message
    answers_us = replied is not None and replied.author is not None and replied.author.id == bot_id
    called = any(user.id == bot_id for user in message.mentions)
    text = message.content.replace(f"<@{bot_id}>", "").replace(f"<@!{bot_id}>", "").strip()
    return Said(
        speaker=_speaker(message.author, message.member),
        message_id=message.id,
        text=text,
        mentioned=in_dm or called or answers_us,
        reply_to=replied.id if replied else "",
        files=tuple(
            SentFile(reference=one.url, name=one.filename, size=one.size, type=one.content_type or "")
            for one in message.attachments
        ),
    )
