"""A bot's request counts once, and its repetition gets the first answer: whatever was said there since (L12)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now

from copilot.errors import Conflict
from copilot.events import JSON
from copilot.lasting import LATER
from linking.models import StartedTurn

WAIT_SECONDS = 5.0  # for the first request with the same key, which is under way
LOOK_AGAIN_SECONDS = 0.02
ABANDONED_SECONDS = 15  # a request decides within milliseconds: whoever has not answered by then is gone


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The key is ours to answer. `abandoned`: somebody died with it, and may have come as far as a message."""

    pk: int
    abandoned: bool


@dataclass(frozen=True, kw_only=True)
class Known:
    answer: dict[str, JSON]


# Neither waits for the disk: the message between them does, and by it a lost answer is found again.
_CLAIM = f"""
INSERT INTO linking_startedturn AS s (platform, bot_account, key, body_sha256)
SELECT %(platform)s, %(bot_account)s, %(key)s, %(digest)s WHERE {LATER}
ON CONFLICT (platform, bot_account, key) DO UPDATE SET created_at = now(), answer = NULL, body_sha256 = excluded.body_sha256
WHERE s.created_at < now() - make_interval(hours => %(hours)s)
   OR (s.answer IS NULL AND s.body_sha256 = excluded.body_sha256
       AND s.created_at < now() - make_interval(secs => %(abandoned)s))
RETURNING id, xmax <> 0
"""
_KEEP = f"UPDATE linking_startedturn SET answer = %s WHERE id = %s AND {LATER}"  # noqa: S608 - both texts are ours


def claim(platform: str, bot_account: str, key: str, digest: str) -> Claimed | Known:
    """Ours, or the first answer; with another body a conflict, and in flight for long too."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        if (mine := _insert(platform, bot_account, key, digest)) is not None:
            return mine
        first = StartedTurn.objects.filter(platform=platform, bot_account=bot_account, key=key).first()
        if first is None:
            continue  # it was refused just now, so that the key is free
        if first.body_sha256 != digest:
            raise Conflict("This key was used with another request.", code="idempotency_conflict")
        if first.answer is not None:
            return Known(answer=first.answer)
        if time.monotonic() >= deadline:
            raise Conflict("A request with this key is under way.", code="in_progress")
        time.sleep(LOOK_AGAIN_SECONDS)


def _insert(platform: str, bot_account: str, key: str, digest: str) -> Claimed | None:
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM,
            {
                "platform": platform,
                "bot_account": bot_account,
                "key": key,
                "digest": digest,
                "hours": settings.LINK_STARTED_KEEP_HOURS,
                "abandoned": ABANDONED_SECONDS,
            },
        )
        row = cursor.fetchone()
    return Claimed(pk=row[0], abandoned=row[1]) if row else None


def keep(mine: Claimed, answer: dict[str, JSON]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_KEEP, [msgspec.json.encode(answer).decode(), mine.pk])


def take_back(mine: Claimed) -> None:
    """What was kept did not come true; the key is still ours."""
    StartedTurn.objects.filter(pk=mine.pk).update(answer=None)


def let_go(mine: Claimed) -> None:
    """Nothing came of it: the same request may be sent again."""
    StartedTurn.objects.filter(pk=mine.pk, answer__isnull=True).delete()


def purge_started() -> int:
    long_ago = Now() - timedelta(hours=settings.LINK_STARTED_KEEP_HOURS)
    return StartedTurn.objects.filter(created_at__lt=long_ago).delete()[0]
