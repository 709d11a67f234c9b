"""Updates are stored before anything is done, and handled once, in order, one at a time in each place (L18).

The only writer of PlatformUpdate. Who handles a place holds an advisory lock on its own connection; who finds it held
leaves, because the holder looks again after letting go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models import F, Min, QuerySet
from django.db.models.functions import Now

from copilot.errors import Conflict, OutcomeUnknown, Unavailable
from linking import metrics
from linking.models import PlatformUpdate
from linking.platforms.base import Away, Busy, Incoming

log = logging.getLogger(__name__)

LOCK_SEED = 77  # keeps these advisory locks apart from others
TRIES = 3
LEFT_BEHIND = timedelta(seconds=10)
PURGED_AT_ONCE = 5_000

PASSING: tuple[type[Exception], ...] = (Unavailable, OutcomeUnknown, Conflict, Away, Busy)  # time may mend it


class Failed(Exception):
    """Something went wrong that nobody foresaw; names what, and neither ids nor words."""


Handle = Callable[[str, str, Incoming], str]  # platform, bot account, update: how it went, in one word
Verdict = Literal["done", "later"]

_STORE = """
INSERT INTO linking_platformupdate
    (platform, bot_account, update_key, message_key, kind, container_id, thread_id, payload)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
RETURNING id
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


def store(platform: str, bot_account: str, incoming: Incoming) -> int | None:
    """Its number; None when it, or the message it tells of, was here before: by membership, never by order."""
    kind = str(msgspec.to_builtins(incoming.what)["type"])
    with connection.cursor() as cursor:
        cursor.execute(
            _STORE,
            [
                platform,
                bot_account,
                incoming.update_key,
                incoming.message_key,
                kind,
                incoming.place.container_id,
                incoming.place.thread_id,
                msgspec.json.encode(incoming).decode(),
            ],
        )
        row = cursor.fetchone()
    return int(row[0]) if row else None


def work_off(update_id: int, handle: Handle) -> None:
    """Everything that waits in this update's place, unless somebody is at it."""
    found = PlatformUpdate.objects.filter(pk=update_id, done_at=None)
    keys = found.values_list("platform", "bot_account", "container_id", "thread_id").first()
    if keys is None:
        return
    place = _Place(*keys)
    while True:
        with _held(place) as mine:
            if not mine or _work_off(place, handle) == "later":
                return
        if not place.rows.filter(done_at=None).exists():
            return


def _work_off(place: _Place, handle: Handle) -> Verdict:
    while True:
        update = place.rows.filter(done_at=None).order_by("id").first()
        if update is None:
            return "done"
        if _try(update, handle) == "later":
            return "later"


def _try(update: PlatformUpdate, handle: Handle) -> Verdict:
    """A try counts before it is made: an update that kills its process must not do so for ever."""
    if update.attempts >= TRIES:
        _finish(update, "failed")
        log.error("update %s of %s failed %s times and is left", update.pk, update.platform, TRIES)
        return "done"
    _count(update, 1)
    try:
        outcome = handle(update.platform, update.bot_account, _read(update))
    except Conflict as problem:
        if problem.code == "in_progress":
            return _put_off(update, problem)
        _finish(update, "conflict")
    except PASSING as problem:
        return _put_off(update, problem)
    except Failed as problem:
        log.warning("update %s of %s failed: %s", update.pk, update.platform, problem)
    else:
        _finish(update, outcome)
    return "done"


def _put_off(update: PlatformUpdate, problem: Exception) -> Verdict:
    """Nothing is wrong with the update: what it needs is away for a while, and those behind it wait too."""
    log.info("update %s of %s waits: %s", update.pk, update.platform, type(problem).__name__)
    _count(update, -1)
    return "later"


def _count(update: PlatformUpdate, change: int) -> None:
    PlatformUpdate.objects.filter(pk=update.pk).update(attempts=F("attempts") + change)


def _read(update: PlatformUpdate) -> Incoming:
    return msgspec.convert(update.payload, Incoming)


def _finish(update: PlatformUpdate, outcome: str) -> None:
    """The payload goes; the keys stay, so that it counts once."""
    rows = PlatformUpdate.objects.filter(pk=update.pk, done_at=None)
    if rows.update(done_at=Now(), outcome=outcome, payload=None):
        metrics.platform_updates.labels(update.platform, outcome).inc()
    if outcome == "unlinked":  # nothing but its keys and kind is kept of strangers (L25)
        PlatformUpdate.objects.filter(pk=update.pk).update(container_id="", thread_id="")


@contextmanager
def _held(place: _Place) -> Iterator[bool]:
    """On this thread's connection; a connection that breaks gives it back by itself."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, %s))", [place.name, LOCK_SEED])
        mine = bool(cursor.fetchone()[0])
    try:
        yield mine
    finally:
        if mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, %s))", [place.name, LOCK_SEED])


# --- by the clock ------------------------------------------------------------------------------------


def left_behind(limit: int = 500) -> list[int]:
    """One update of each place where something has waited for too long: nobody was told, or the worker died."""
    waiting = PlatformUpdate.objects.filter(done_at=None, received_at__lt=Now() - LEFT_BEHIND)
    places = waiting.values("platform", "bot_account", "container_id", "thread_id").annotate(first=Min("id"))
    return list(places.order_by("first").values_list("first", flat=True)[:limit])


def purge() -> int:
    """Keys that are too old to come again."""
    old = PlatformUpdate.objects.filter(
        received_at__lt=Now() - timedelta(days=settings.LINK_UPDATE_KEEP_DAYS)
    )
    doomed = list(old.values_list("pk", flat=True)[:PURGED_AT_ONCE])
    return PlatformUpdate.objects.filter(pk__in=doomed).delete()[0]
