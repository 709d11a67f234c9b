"""Updates are stored before anything is done, and handled once, in order, one at a time in each place (L18).

The only writer of PlatformUpdate. Who handles a place holds an advisory lock on its own connection; who finds it held
leaves, because the holder looks again after letting go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import msgspec
from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from copilot.errors import Conflict, OutcomeUnknown, Unavailable
from copilot.lasting import LATER
from linking import metrics
from linking.crowds import crowd_of
from linking.inbound.commands import command_of
from linking.models import PlatformUpdate
from linking.platforms.base import Away, Busy, Incoming, Said, What
from linking.soundness import sound
from linking.together import Together

log = logging.getLogger(__name__)

LOCK_SEED = 77  # keeps these advisory locks apart from others
TRIES = 3
LEFT_BEHIND = timedelta(seconds=10)
PURGED_AT_ONCE = 5_000
LINKED = ("started", "queued", "answered", "pressed")  # outcomes that only a linked place has

PASSING: tuple[type[Exception], ...] = (Unavailable, OutcomeUnknown, Conflict, Away, Busy)  # time may mend it


class Failed(Exception):
    """Something went wrong that nobody foresaw; names what, and neither ids nor words."""


Handle = Callable[[str, str, Incoming], str]  # platform, bot account, update: how it went, in one word
Verdict = Literal["more", "again", "done", "later"]

_STORE = """
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
class _Place:
    platform: str
    bot_account: str
    container_id: str
    thread_id: str

    @property
    def rows(self) -> QuerySet[PlatformUpdate]:
        return PlatformUpdate.objects.filter(
            platform=self.platform,
            bot_account=self.bot_account,
            container_id=self.container_id,
            thread_id=self.thread_id,
        )

    @property
    def name(self) -> str:
        return "\x1f".join((self.platform, self.bot_account, self.container_id, self.thread_id))


@dataclass(frozen=True)
class _Update:
    id: int
    attempts: int  # this one included
    payload: str


def store(platform: str, bot_account: str, incoming: Incoming) -> int | None:
    """Its number; None when it, or the message it tells of, was here before: by membership, never by order.

    Raises `Unreadable` for what cannot be an update of any platform.
    """
    row = _row(platform, bot_account, incoming)
    return _store_all([row])[0] if connection.in_atomic_block else _stored_together(row)


_Row = tuple[str, str, str, str, str, str, str, str]  # as _STORE names them


def _row(platform: str, bot_account: str, incoming: Incoming) -> _Row:
    return (
        platform,
        bot_account,
        incoming.update_key,
        incoming.message_key,
        str(type(incoming.what).__struct_config__.tag),
        incoming.place.container_id,
        incoming.place.thread_id,
        sound(incoming),
    )


def _store_all(rows: Sequence[_Row]) -> list[int | None]:
    """Their numbers, which grow in this order."""
    if not connection.in_atomic_block:
        close_old_connections()  # the one this thread kept may have broken since
    with connection.cursor() as cursor:
        cursor.execute(_STORE, [list(column) for column in zip(*rows, strict=True)])
        numbers = {tuple(key): int(number) for number, *key in cursor.fetchall()}
    return [numbers.pop(row[:3], None) for row in rows]  # the first of its kind has it


_stored_together = Together(_store_all, spoilt_by=DatabaseError, name="inbox")


def work_off(update_id: int, handle: Handle) -> None:
    """Everything that waits in this update's place, unless somebody is at it."""
    place = _held_of(update_id)
    while place is not None:
        try:
            verdict = _work_off(place, handle)
        finally:
            _let_go(place)
        if verdict == "later" or not place.rows.filter(done_at=None).exists():
            return
        place = place if _hold(place) else None  # it came while we were letting go


def waits_in_line(what: What) -> bool:
    """Words for us start turns. Everything else is soon done, and nobody's Stop or approval waits behind a crowd."""
    return isinstance(what, Said) and (what.mentioned or bool(what.names)) and command_of(what.text) is None


def work_off_until(update_id: int, handle: Handle) -> bool:
    """This update, and what came to its place before it; False if somebody is at it. Those behind it wait in a line
    of their own (`crowds`)."""
    place = _held_of(update_id)
    if place is None:
        return not PlatformUpdate.objects.filter(pk=update_id, done_at=None).exists()
    try:
        while (update := _next(place)) is not None:
            verdict = _try(place, update, handle)
            if verdict in ("done", "later") or (verdict == "more" and update.id >= update_id):
                break
    finally:
        _let_go(place)
    return True


def _work_off(place: _Place, handle: Handle) -> Verdict:
    while (update := _next(place)) is not None:
        verdict = _try(place, update, handle)
        if verdict in ("done", "later"):
            return verdict
    return "done"


def _try(place: _Place, update: _Update, handle: Handle) -> Verdict:
    """A try was counted before it is made: an update that kills its process must not do so for ever."""
    if update.attempts > TRIES:
        log.error("update %s of %s failed %s times and is left", update.id, place.platform, TRIES)
        return _finish(place, update, "failed")
    try:
        outcome = handle(
            place.platform, place.bot_account, msgspec.json.decode(update.payload, type=Incoming)
        )
    except Conflict as problem:
        if problem.code == "in_progress":
            return _put_off(place, update, problem)
        return _finish(place, update, "conflict")
    except PASSING as problem:
        return _put_off(place, update, problem)
    except Failed as problem:
        log.warning("update %s of %s failed: %s", update.id, place.platform, problem)
        return "again"
    return _finish(place, update, outcome)


def _put_off(place: _Place, update: _Update, problem: Exception) -> Verdict:
    """Nothing is wrong with the update: what it needs is away for a while, and those behind it wait too."""
    log.info("update %s of %s waits: %s", update.id, place.platform, type(problem).__name__)
    PlatformUpdate.objects.filter(pk=update.id).update(attempts=F("attempts") - 1)
    return "later"


# --- one statement each: somebody waits for every round trip -----------------------------------------
# None waits for the disk: what the update led to does, and whatever is forgotten with the database is done again.

_HOLD = "SELECT pg_try_advisory_lock(hashtextextended(%s, %s))"
_LET_GO = "SELECT pg_advisory_unlock(hashtextextended(%s, %s))"
_HELD_OF = """
SELECT platform, bot_account, container_id, thread_id, pg_try_advisory_lock(hashtextextended(
    concat_ws(E'\\x1f', platform, bot_account, container_id, thread_id), %s))
FROM linking_platformupdate WHERE id = %s AND done_at IS NULL
"""
_NEXT = f"""
UPDATE linking_platformupdate SET attempts = attempts + 1
WHERE id = (
    SELECT id FROM linking_platformupdate
    WHERE platform = %s AND bot_account = %s AND container_id = %s AND thread_id = %s AND done_at IS NULL
    ORDER BY id LIMIT 1
) AND {LATER}
RETURNING id, attempts, payload::text
"""  # noqa: S608 - both texts are ours
# Where nobody is linked nothing but keys and kind is kept (L25); elsewhere the place, until its account goes.
_KEPT = """
%(linked)s OR EXISTS (
    SELECT 1 FROM linking_platformconversation c
    WHERE c.platform = %(platform)s AND c.bot_account = %(account)s AND c.container_id = %(container)s
      AND c.closed_at IS NULL
)
"""
_FINISH = f"""
UPDATE linking_platformupdate SET done_at = statement_timestamp(), outcome = %(outcome)s, payload = NULL,
    container_id = CASE WHEN {_KEPT} THEN container_id ELSE '' END,
    thread_id = CASE WHEN {_KEPT} THEN thread_id ELSE '' END
WHERE id = %(id)s AND done_at IS NULL AND {LATER}
RETURNING EXISTS (
    SELECT 1 FROM linking_platformupdate o
    WHERE o.platform = %(platform)s AND o.bot_account = %(account)s AND o.container_id = %(container)s
      AND o.thread_id = %(thread)s AND o.done_at IS NULL AND o.id <> %(id)s
)
"""  # noqa: S608 - both texts are ours


def _held_of(update_id: int) -> _Place | None:
    """The update's place, held on this thread's connection; a connection that breaks gives it back by itself."""
    with connection.cursor() as cursor:
        cursor.execute(_HELD_OF, [LOCK_SEED, update_id])
        row = cursor.fetchone()
    return _Place(*row[:4]) if row and row[4] else None


def _hold(place: _Place) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(_HOLD, [place.name, LOCK_SEED])
        return bool(cursor.fetchone()[0])


def _let_go(place: _Place) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_LET_GO, [place.name, LOCK_SEED])


def _next(place: _Place) -> _Update | None:
    with connection.cursor() as cursor:
        cursor.execute(_NEXT, [place.platform, place.bot_account, place.container_id, place.thread_id])
        row = cursor.fetchone()
    return _Update(*row) if row else None


def _finish(place: _Place, update: _Update, outcome: str) -> Verdict:
    """The payload goes; the keys stay, so that it counts once."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FINISH,
            {
                "id": update.id,
                "outcome": outcome,
                "linked": outcome in LINKED,
                "platform": place.platform,
                "account": place.bot_account,
                "container": place.container_id,
                "thread": place.thread_id,
            },
        )
        row = cursor.fetchone()
    if row is None:
        return "more"  # somebody else has finished it
    metrics.platform_updates.labels(place.platform, outcome).inc()
    return "more" if row[0] else "done"


# --- by the clock ------------------------------------------------------------------------------------


_LEFT_BEHIND = """
SELECT o.id, o.platform, o.payload->'place'->>'server_id' FROM linking_platformupdate o JOIN (
    SELECT min(id) AS id FROM linking_platformupdate
    WHERE done_at IS NULL AND received_at < statement_timestamp() - make_interval(secs => %s)
    GROUP BY platform, bot_account, container_id, thread_id ORDER BY 1 LIMIT %s
) first USING (id) ORDER BY o.id
"""


def left_behind(limit: int = 500) -> list[tuple[int, str]]:
    """One update of each place where something has waited for too long, and whose crowd it came in: nobody was told,
    the worker died, or it stands in line."""
    with connection.cursor() as cursor:
        cursor.execute(_LEFT_BEHIND, [LEFT_BEHIND.total_seconds(), limit])
        rows = cursor.fetchall()
    return [(update_id, crowd_of(platform, server_id or "")) for update_id, platform, server_id in rows]


def purge() -> int:
    """Keys that are too old to come again."""
    old = PlatformUpdate.objects.filter(
        received_at__lt=Now() - timedelta(days=settings.LINK_UPDATE_KEEP_DAYS)
    )
    doomed = list(old.values_list("pk", flat=True)[:PURGED_AT_ONCE])
    return PlatformUpdate.objects.filter(pk__in=doomed).delete()[0]
