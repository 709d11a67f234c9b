"""Store platform updates before anything else happens, and handle them once and in order per place.

A place is a chat or thread of one bot account. The process that handles a place holds an advisory lock on its own connection. A
process that finds the lock held leaves, because the holder looks for new updates again after releasing it. This module
is the only writer of PlatformUpdate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NamedTuple

import msgspec
import structlog
from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection
from django.db.models import F
from django.db.models.functions import Now

from config.core.batching import BatchedCall
from config.core.db import ASYNC_COMMIT, fetch_all, fetch_one, use_direct_connection
from config.core.errors import Conflict, OutcomeUnknown, ServiceUnavailable
from config.core.json_values import JSON
from copilot.chat.commands import RUN_ID_PATTERN
from linking import metrics
from linking.inbound.commands import parse_command
from linking.inbound.server_throttle import make_server_key
from linking.models import PLATFORM_ID_PATTERN, PlatformUpdate
from linking.models.updates import PlatformUpdateQuerySet
from linking.platforms.base import (
    ButtonPressed,
    IncomingUpdate,
    MessageReceived,
    PlatformBusy,
    PlatformUnavailable,
    ServerMoved,
    UpdateContent,
    UpdateMalformed,
)

log = structlog.get_logger(__name__)

MAX_MESSAGE_KEY_CHARACTERS = 200
PLACE_LOCK_SEED = 77  # keeps these advisory locks apart from others
MAX_ATTEMPTS = 3
OVERDUE_AFTER = timedelta(seconds=10)
PURGE_BATCH_SIZE = 5_000
LINKED_OUTCOMES = ("started", "queued", "answered", "pressed")  # outcomes that only a linked place has
_PLATFORM_ID_RE = re.compile(PLATFORM_ID_PATTERN, re.ASCII)
_NUL_ESCAPE = b"\\u0000"  # Postgres cannot store this character in text

TRANSIENT_ERRORS: tuple[type[Exception], ...] = (
    ServiceUnavailable,
    OutcomeUnknown,
    Conflict,
    PlatformUnavailable,
    PlatformBusy,
)

UpdateHandler = Callable[
    [str, str, IncomingUpdate], str
]  # takes platform, bot account and update; returns the outcome as one word
NextStep = Literal["more", "again", "done", "later"]


class UpdateHandlerFailed(Exception):
    """An unforeseen error; its text names the error, but neither ids nor people's words."""


# --- Encoding ---


def encode_update(incoming: IncomingUpdate) -> str:
    """Return the update as JSON; raise UpdateMalformed for ids that no platform would send."""
    if (
        not RUN_ID_PATTERN.fullmatch(incoming.update_key)
        or len(incoming.message_key) > MAX_MESSAGE_KEY_CHARACTERS
    ):
        raise UpdateMalformed("invalid key")
    if not all(_PLATFORM_ID_RE.fullmatch(value) for value in _iter_ids(incoming) if value):
        raise UpdateMalformed("invalid id")
    if not incoming.place.container_id:
        raise UpdateMalformed("missing container id")
    encoded = msgspec.json.encode(incoming)
    if _NUL_ESCAPE in encoded:
        encoded = msgspec.json.encode(_strip_nul(msgspec.json.decode(encoded)))
    return encoded.decode()


def _iter_ids(incoming: IncomingUpdate) -> Iterator[str]:
    """Yield the ids that we store, compare or send back. Codes, tokens and file references are opaque to us."""
    place = incoming.place
    yield from (place.container_id, place.thread_id, place.reply_thread, place.server_id)
    match incoming.what:
        case MessageReceived() as message:
            yield from (
                message.speaker.user_id,
                message.message_id,
                message.reply_to,
                *message.speaker.role_ids,
            )
        case ButtonPressed() as pressed:
            yield from (pressed.speaker.user_id, pressed.message_id)
        case ServerMoved() as moved:
            yield moved.new_id
        case _:
            return


def _strip_nul(value: JSON) -> JSON:
    match value:
        case str():
            return value.replace("\x00", "")
        case list():
            return [_strip_nul(item) for item in value]
        case dict():
            return {name: _strip_nul(item) for name, item in value.items()}
        case _:
            return value


# --- Storing ---

_STORE_SQL = """
INSERT INTO linking_platformupdate
    (platform, bot_account, update_key, message_key, kind, container_id, thread_id, payload)
SELECT platform, bot_account, update_key, message_key, kind, container_id, thread_id, payload::jsonb
FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
    WITH ORDINALITY AS given
    (platform, bot_account, update_key, message_key, kind, container_id, thread_id, payload, place)
ORDER BY place
ON CONFLICT DO NOTHING
RETURNING id, platform, bot_account, update_key
"""


@dataclass(frozen=True)
class _UpdatePlace:
    platform: str
    bot_account: str
    container_id: str
    thread_id: str

    @property
    def updates(self) -> PlatformUpdateQuerySet:
        return PlatformUpdate.objects.filter(
            platform=self.platform,
            bot_account=self.bot_account,
            container_id=self.container_id,
            thread_id=self.thread_id,
        )

    @property
    def lock_key(self) -> str:
        return "\x1f".join((self.platform, self.bot_account, self.container_id, self.thread_id))


@dataclass(frozen=True)
class _ClaimedUpdate:
    id: int
    attempts: int  # this one included
    payload: str


def store_update(platform: str, bot_account: str, incoming: IncomingUpdate) -> int | None:
    """Store an update and return its id, or None if it or the message it reports was stored before.

    Raise UpdateMalformed for what cannot be an update of any platform.
    """
    row = _to_row(platform, bot_account, incoming)
    return _store_rows([row])[0] if connection.in_atomic_block else _store_batched(row)


_UpdateRow = tuple[str, str, str, str, str, str, str, str]  # in the order of _STORE_SQL


def _to_row(platform: str, bot_account: str, incoming: IncomingUpdate) -> _UpdateRow:
    return (
        platform,
        bot_account,
        incoming.update_key,
        incoming.message_key,
        str(type(incoming.what).__struct_config__.tag),
        incoming.place.container_id,
        incoming.place.thread_id,
        encode_update(incoming),
    )


def _store_rows(rows: Sequence[_UpdateRow]) -> list[int | None]:
    """Insert the rows and return their ids, which increase in this order; None for duplicates."""
    if not connection.in_atomic_block:
        close_old_connections()  # this thread's connection may have broken since its last use
    with connection.cursor() as cursor:
        cursor.execute(_STORE_SQL, [list(column) for column in zip(*rows, strict=True)])
        ids = {tuple(key): int(update_id) for update_id, *key in cursor.fetchall()}
    return [ids.pop(row[:3], None) for row in rows]  # of equal keys in one batch the first row was inserted


_store_batched = BatchedCall(_store_rows, spoilt_by=DatabaseError, name="inbox")


# --- Handling ---


@use_direct_connection()
def handle_place_updates(update_id: int, handle: UpdateHandler) -> None:
    """Handle all pending updates of this update's place, unless another process is doing so."""
    place = _lock_place_of_update(update_id)
    while place is not None:
        try:
            next_step = _handle_all(place, handle)
        finally:
            _unlock_place(place)
        if next_step == "later" or not place.updates.unhandled().exists():
            return
        place = place if _lock_place(place) else None  # an update came while the lock was being released


def is_throttled(what: UpdateContent) -> bool:
    """Return True for messages that may start a turn; a stop or an approval never waits behind them."""
    return (
        isinstance(what, MessageReceived)
        and (what.mentioned or bool(what.names))
        and parse_command(what.text) is None
    )


@use_direct_connection()
def handle_updates_until(update_id: int, handle: UpdateHandler) -> bool:
    """Handle this update and the earlier ones of its place; return False if another process holds the place.

    Later updates wait for their own slot of the server throttle.
    """
    place = _lock_place_of_update(update_id)
    if place is None:
        return not PlatformUpdate.objects.unhandled().filter(pk=update_id).exists()
    try:
        while (update := _claim_next(place)) is not None:
            next_step = _handle_one(place, update, handle)
            if next_step in ("done", "later") or (next_step == "more" and update.id >= update_id):
                break
    finally:
        _unlock_place(place)
    return True


def _handle_all(place: _UpdatePlace, handle: UpdateHandler) -> NextStep:
    while (update := _claim_next(place)) is not None:
        next_step = _handle_one(place, update, handle)
        if next_step in ("done", "later"):
            return next_step
    return "done"


def _handle_one(place: _UpdatePlace, update: _ClaimedUpdate, handle: UpdateHandler) -> NextStep:
    # The attempt was counted before it is made, so that an update that kills its process is given up in the end.
    if update.attempts > MAX_ATTEMPTS:
        log.error(
            "update_abandoned", update_id=update.id, platform=place.platform, attempts=update.attempts - 1
        )
        return _finish_update(place, update, "failed")
    try:
        outcome = handle(
            place.platform, place.bot_account, msgspec.json.decode(update.payload, type=IncomingUpdate)
        )
    except Conflict as problem:
        if problem.code == "in_progress":
            return _postpone_update(place, update, problem)
        return _finish_update(place, update, "conflict")
    except TRANSIENT_ERRORS as problem:
        return _postpone_update(place, update, problem)
    except UpdateHandlerFailed as problem:
        log.warning("update_failed", update_id=update.id, platform=place.platform, error=str(problem))
        return "again"
    return _finish_update(place, update, outcome)


def _postpone_update(place: _UpdatePlace, update: _ClaimedUpdate, problem: Exception) -> NextStep:
    """Leave the update and those behind it for later, without counting the attempt."""
    log.info("update_postponed", update_id=update.id, platform=place.platform, error=type(problem).__name__)
    PlatformUpdate.objects.filter(pk=update.id).update(attempts=F("attempts") - 1)
    return "later"


# --- Locks and claims, one statement each to save round trips ---
# The updates commit asynchronously: the turn that an update starts is flushed, and anything lost here is done again.

_LOCK_SQL = "SELECT pg_try_advisory_lock(hashtextextended(%s, %s))"
_UNLOCK_SQL = "SELECT pg_advisory_unlock(hashtextextended(%s, %s))"
_LOCK_PLACE_OF_UPDATE_SQL = """
SELECT platform, bot_account, container_id, thread_id, pg_try_advisory_lock(hashtextextended(
    concat_ws(E'\\x1f', platform, bot_account, container_id, thread_id), %s)) AS locked
FROM linking_platformupdate WHERE id = %s AND done_at IS NULL
"""
_CLAIM_NEXT_SQL = f"""
UPDATE linking_platformupdate SET attempts = attempts + 1
WHERE id = (
    SELECT id FROM linking_platformupdate
    WHERE platform = %s AND bot_account = %s AND container_id = %s AND thread_id = %s AND done_at IS NULL
    ORDER BY id LIMIT 1
) AND {ASYNC_COMMIT}
RETURNING id, attempts, payload::text AS payload
"""  # noqa: S608 - both texts are ours
# In unlinked places only the keys and the kind are kept; elsewhere the place too, until the account is deleted.
_KEEPS_PLACE_SQL = """
%(linked)s OR EXISTS (
    SELECT 1 FROM linking_platformconversation c
    WHERE c.platform = %(platform)s AND c.bot_account = %(account)s AND c.container_id = %(container)s
      AND c.closed_at IS NULL
)
"""
_FINISH_SQL = f"""
UPDATE linking_platformupdate SET done_at = statement_timestamp(), outcome = %(outcome)s, payload = NULL,
    container_id = CASE WHEN {_KEEPS_PLACE_SQL} THEN container_id ELSE '' END,
    thread_id = CASE WHEN {_KEEPS_PLACE_SQL} THEN thread_id ELSE '' END
WHERE id = %(id)s AND done_at IS NULL AND {ASYNC_COMMIT}
RETURNING EXISTS (
    SELECT 1 FROM linking_platformupdate o
    WHERE o.platform = %(platform)s AND o.bot_account = %(account)s AND o.container_id = %(container)s
      AND o.thread_id = %(thread)s AND o.done_at IS NULL AND o.id <> %(id)s
)
"""  # noqa: S608 - both texts are ours


class _PlaceLock(NamedTuple):
    platform: str
    bot_account: str
    container_id: str
    thread_id: str
    locked: bool


def _lock_place_of_update(update_id: int) -> _UpdatePlace | None:
    """Lock the update's place on this thread's connection; Postgres releases the lock if the connection breaks."""
    row = fetch_one(_PlaceLock, _LOCK_PLACE_OF_UPDATE_SQL, [PLACE_LOCK_SEED, update_id])
    if row is None or not row.locked:
        return None
    return _UpdatePlace(row.platform, row.bot_account, row.container_id, row.thread_id)


def _lock_place(place: _UpdatePlace) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_SQL, [place.lock_key, PLACE_LOCK_SEED])
        return bool(cursor.fetchone()[0])


def _unlock_place(place: _UpdatePlace) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_UNLOCK_SQL, [place.lock_key, PLACE_LOCK_SEED])


def _claim_next(place: _UpdatePlace) -> _ClaimedUpdate | None:
    return fetch_one(
        _ClaimedUpdate,
        _CLAIM_NEXT_SQL,
        [place.platform, place.bot_account, place.container_id, place.thread_id],
    )


def _finish_update(place: _UpdatePlace, update: _ClaimedUpdate, outcome: str) -> NextStep:
    """Delete the payload but keep the keys, so that the same update is not handled again."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FINISH_SQL,
            {
                "id": update.id,
                "outcome": outcome,
                "linked": outcome in LINKED_OUTCOMES,
                "platform": place.platform,
                "account": place.bot_account,
                "container": place.container_id,
                "thread": place.thread_id,
            },
        )
        row = cursor.fetchone()
    if row is None:
        return "more"  # another process has finished it
    metrics.platform_updates.labels(place.platform, outcome).inc()
    return "more" if row[0] else "done"


# --- Maintenance ---


_FIND_OVERDUE_SQL = """
SELECT o.id, o.platform, o.payload->'place'->>'server_id' AS server_id FROM linking_platformupdate o JOIN (
    SELECT min(id) AS id FROM linking_platformupdate
    WHERE done_at IS NULL AND received_at < statement_timestamp() - make_interval(secs => %s)
    GROUP BY platform, bot_account, container_id, thread_id ORDER BY 1 LIMIT %s
) first USING (id) ORDER BY o.id
"""


class _OverdueUpdate(NamedTuple):
    id: int
    platform: str
    server_id: str | None


def find_overdue_updates(limit: int = 500) -> list[tuple[int, str]]:
    """Return the first overdue update of each place with its server key.

    An update is overdue if its task was lost, its worker died, or it waits in the server throttle.
    """
    rows = fetch_all(_OverdueUpdate, _FIND_OVERDUE_SQL, [OVERDUE_AFTER.total_seconds(), limit])
    return [(row.id, make_server_key(row.platform, row.server_id or "")) for row in rows]


def purge_updates() -> int:
    """Delete a batch of updates that are too old to be sent again."""
    old = PlatformUpdate.objects.filter(
        received_at__lt=Now() - timedelta(days=settings.LINK_UPDATE_KEEP_DAYS)
    )
    batch = list(old.values_list("pk", flat=True)[:PURGE_BATCH_SIZE])
    return PlatformUpdate.objects.filter(pk__in=batch).delete()[0]
