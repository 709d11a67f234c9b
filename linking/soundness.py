"""An update as it may be stored: ids that are ids, words that the database can hold (L3)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from copilot.commands import RUN_ID
from copilot.events import JSON
from linking.models import PLATFORM_ID
from linking.platforms.base import Incoming, Moved, Pressed, Said, Unreadable

MESSAGE_KEY_CHARACTERS = 200
_ID = re.compile(PLATFORM_ID, re.ASCII)
_NOTHING = b"\\u0000"  # as JSON; Postgres holds it in no text


def sound(incoming: Incoming) -> str:
    """Its JSON; raises `Unreadable` for an id that no platform gives."""
    if not RUN_ID.fullmatch(incoming.update_key) or len(incoming.message_key) > MESSAGE_KEY_CHARACTERS:
        raise Unreadable("a key")
    if not all(_ID.fullmatch(one) for one in _ids(incoming) if one):
        raise Unreadable("an id")
    if not incoming.place.container_id:
        raise Unreadable("no place")
    encoded = msgspec.json.encode(incoming)
    if _NOTHING in encoded:
        encoded = msgspec.json.encode(_without_nothing(msgspec.json.decode(encoded)))
    return encoded.decode()


def _ids(incoming: Incoming) -> Iterator[str]:
    """What is stored, compared or sent back by itself; a code, a token and a file's reference are not read by us."""
    place = incoming.place
    yield from (place.container_id, place.thread_id, place.reply_thread, place.server_id)
    match incoming.what:
        case Said() as said:
            yield from (said.speaker.user_id, said.message_id, said.reply_to, *said.speaker.role_ids)
        case Pressed() as pressed:
            yield from (pressed.speaker.user_id, pressed.message_id)
        case Moved() as moved:
            yield moved.new_id
        case _:
            return


def _without_nothing(value: JSON) -> JSON:
    match value:
        case str():
            return value.replace("\x00", "")
        case list():
            return [_without_nothing(one) for one in value]
        case dict():
            return {name: _without_nothing(one) for name, one in value.items()}
        case _:
            return value
