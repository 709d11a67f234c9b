"""Parse Telegram's updates into the updates that all platforms share."""

from __future__ import annotations

import re

import msgspec

from linking.platforms.base import (
    JSON_ERRORS,
    AttachedFile,
    BotIdentity,
    BotRemoved,
    BotUnblocked,
    ButtonPressed,
    IncomingUpdate,
    MessageReceived,
    PlatformPlace,
    ServerMoved,
    Speaker,
    UpdateContent,
    UpdateMalformed,
)

REMOVED_STATUSES = ("left", "kicked")
PRIVATE_CHAT = "private"


class _User(msgspec.Struct):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""


class _Chat(msgspec.Struct):
    id: int
    type: str
    title: str = ""


class _Entity(msgspec.Struct):
    type: str
    offset: int  # in units of UTF-16
    length: int
    user: _User | None = None


class _File(msgspec.Struct):
    file_id: str
    file_size: int = 0
    file_name: str = ""
    mime_type: str = ""


class _RepliedMessage(msgspec.Struct):
    message_id: int
    sender: _User | None = msgspec.field(name="from", default=None)


class _Message(msgspec.Struct):
    message_id: int
    chat: _Chat
    sender: _User | None = msgspec.field(name="from", default=None)
    text: str = ""
    caption: str = ""
    entities: list[_Entity] = []
    caption_entities: list[_Entity] = []
    message_thread_id: int | None = None
    is_topic_message: bool = False
    reply_to_message: _RepliedMessage | None = None
    migrate_to_chat_id: int | None = None
    photo: list[_File] = []
    document: _File | None = None
    voice: _File | None = None
    audio: _File | None = None
    video: _File | None = None


class _CallbackQuery(msgspec.Struct):
    id: str
    sender: _User = msgspec.field(name="from")
    message: _Message | None = None
    data: str = ""


class _Member(msgspec.Struct):
    status: str


class _Membership(msgspec.Struct):
    chat: _Chat
    new_chat_member: _Member


class TelegramUpdate(msgspec.Struct):
    update_id: int
    message: _Message | None = None
    callback_query: _CallbackQuery | None = None
    my_chat_member: _Membership | None = None


_update_decoder = msgspec.json.Decoder(TelegramUpdate)


def parse_body(body: bytes, bot_id: str) -> IncomingUpdate | None:
    """Parse a webhook body; None for updates that we do not handle."""
    try:
        return parse_update(_update_decoder.decode(body), bot_id)
    except JSON_ERRORS as problem:
        raise UpdateMalformed from problem


def parse_update(update: TelegramUpdate, bot_id: str) -> IncomingUpdate | None:
    if update.message is not None:
        return _parse_message(update.update_id, update.message, bot_id)
    if update.callback_query is not None:
        return _parse_press(update.update_id, update.callback_query)
    if update.my_chat_member is not None:
        return _parse_membership(update.update_id, update.my_chat_member)
    return None


def _parse_message(update_id: int, message: _Message, bot_id: str) -> IncomingUpdate | None:
    place = _build_place(message.chat, message)
    if message.migrate_to_chat_id is not None:
        return _build_update(update_id, place, ServerMoved(new_id=str(message.migrate_to_chat_id)))
    sender = message.sender
    if sender is None or sender.is_bot:
        return None
    received = _build_message(message, sender, bot_id)
    if not received.text and not received.files:
        return None  # joins, pins and other service messages
    return _build_update(update_id, place, received, message_key=f"{message.chat.id}:{message.message_id}")


def _build_update(
    update_id: int, place: PlatformPlace, what: UpdateContent, *, message_key: str = ""
) -> IncomingUpdate:
    return IncomingUpdate(update_key=str(update_id), message_key=message_key, place=place, what=what)


def _build_place(chat: _Chat, message: _Message | None) -> PlatformPlace:
    if chat.type == PRIVATE_CHAT:
        return PlatformPlace(scope="dm", container_id=str(chat.id))
    thread = message.message_thread_id if message and message.is_topic_message else None
    return PlatformPlace(
        scope="server",
        server_id=str(chat.id),
        server_name=chat.title,
        container_id=str(chat.id),
        thread_id="" if thread is None else str(thread),
    )


def _build_message(message: _Message, sender: _User, bot_id: str) -> MessageReceived:
    text = message.text or message.caption
    entities = message.entities or message.caption_entities
    replied = message.reply_to_message
    answers_us = replied is not None and replied.sender is not None and str(replied.sender.id) == bot_id
    named = [entity.user for entity in entities if entity.type == "text_mention" and entity.user is not None]
    commanded = any(
        entity.type == "bot_command" and entity.offset == 0 and "@" not in _get_entity_text(text, entity)
        for entity in entities
    )
    return MessageReceived(
        speaker=_build_speaker(sender),
        message_id=str(message.message_id),
        text=text,
        mentioned=message.chat.type == PRIVATE_CHAT
        or answers_us
        or commanded
        or bot_id in {str(u.id) for u in named},
        names=tuple(_find_called_names(text, entities)),
        reply_to=str(replied.message_id) if replied else "",
        files=tuple(_collect_files(message)),
    )


def _find_called_names(text: str, entities: list[_Entity]) -> list[str]:
    """Return the names mentioned as `@name` or `/command@name`."""
    called = [
        _get_entity_text(text, entity) for entity in entities if entity.type in ("mention", "bot_command")
    ]
    return [piece.partition("@")[2].lower() for piece in called if "@" in piece]


def _get_entity_text(text: str, entity: _Entity) -> str:
    units = text.encode("utf-16-le", "surrogatepass")
    return units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le", "replace")


def _build_speaker(user: _User) -> Speaker:
    name = " ".join(part for part in (user.first_name, user.last_name) if part) or user.username
    return Speaker(user_id=str(user.id), name=name)


def _collect_files(message: _Message) -> list[AttachedFile]:
    sent = [file for file in (message.document, message.voice, message.audio, message.video) if file]
    attached = [
        AttachedFile(
            reference=file.file_id, name=file.file_name or "file", size=file.file_size, type=file.mime_type
        )
        for file in sent
    ]
    if message.photo:  # the same picture in several sizes; the last is the largest
        photo = message.photo[-1]
        attached.append(
            AttachedFile(reference=photo.file_id, name="photo.jpg", size=photo.file_size, type="image/jpeg")
        )
    return attached


def _parse_press(update_id: int, press: _CallbackQuery) -> IncomingUpdate | None:
    if press.message is None or press.sender.is_bot:
        return None
    what = ButtonPressed(
        speaker=_build_speaker(press.sender),
        message_id=str(press.message.message_id),
        code=press.data,
        reply_token=press.id,
    )
    return _build_update(update_id, _build_place(press.message.chat, press.message), what)


def _parse_membership(update_id: int, change: _Membership) -> IncomingUpdate:
    removed = change.new_chat_member.status in REMOVED_STATUSES
    what = BotRemoved() if removed else BotUnblocked()
    return _build_update(update_id, _build_place(change.chat, None), what)


def resolve_mention(received: MessageReceived, identity: BotIdentity) -> MessageReceived:
    """Mark the message as mentioning the bot if it names the bot, and remove the name from its text."""
    name = identity.name.lower()
    if name and name in received.names:
        mention = re.compile(rf"@{re.escape(name)}(?!\w)", re.IGNORECASE)
        received = msgspec.structs.replace(
            received, mentioned=True, text=mention.sub("", received.text, count=1).strip()
        )
    command, _, rest = received.text.partition(" ")
    if command == "/start":  # sent by Telegram when somebody opens the bot
        received = msgspec.structs.replace(received, text="/help")
    elif command == "/ask" and received.mentioned:  # for groups in which the bot sees commands only
        received = msgspec.structs.replace(received, text=rest.strip())
    return received
