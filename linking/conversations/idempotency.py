"""Answer a bot's request once per idempotency key; a repeated request gets the first answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import msgspec
from django.db import connection
from django.db.models.functions import Now

from config.core.db import ASYNC_COMMIT, fetch_one
from config.core.errors import Conflict
from config.core.json_values import JSON
from linking.models import IdempotencyKey

KEEP_HOURS = 24  # a repeated request gets the first answer for this long
CLAIM_WAIT_SECONDS = 5.0  # for an unfinished request with the same key
CLAIM_POLL_SECONDS = 0.02
CLAIM_ABANDONED_SECONDS = 15  # requests finish within milliseconds; after this the process counts as dead


@dataclass(frozen=True)
class ClaimedKey:
    """A key that this request claimed. `abandoned`: an earlier process died with it, perhaps after storing a message."""

    pk: int
    abandoned: bool


@dataclass(frozen=True, kw_only=True)
class RecordedAnswer:
    answer: dict[str, JSON]


# Neither statement waits for the disk: the message between them does, and a lost answer is rebuilt from it.
_CLAIM_SQL = f"""
INSERT INTO linking_idempotencykey AS s (platform, bot_account, key, body_sha256)
SELECT %(platform)s, %(bot_account)s, %(key)s, %(digest)s WHERE {ASYNC_COMMIT}
ON CONFLICT (platform, bot_account, key) DO UPDATE SET created_at = now(), answer = NULL, body_sha256 = excluded.body_sha256
WHERE s.created_at < now() - make_interval(hours => %(hours)s)
   OR (s.answer IS NULL AND s.body_sha256 = excluded.body_sha256
       AND s.created_at < now() - make_interval(secs => %(abandoned)s))
RETURNING id AS pk, xmax <> 0 AS abandoned
"""
_RECORD_ANSWER_SQL = f"UPDATE linking_idempotencykey SET answer = %s WHERE id = %s AND {ASYNC_COMMIT}"  # noqa: S608 - both texts are ours


def claim_key(platform: str, bot_account: str, key: str, digest: str) -> ClaimedKey | RecordedAnswer:
    """Claim the key, or return the recorded answer. Raise Conflict for another body, or while a request stays
    unfinished.
    """
    deadline = time.monotonic() + CLAIM_WAIT_SECONDS
    while True:
        if (mine := _insert_claim(platform, bot_account, key, digest)) is not None:
            return mine
        first = IdempotencyKey.objects.filter(platform=platform, bot_account=bot_account, key=key).first()
        if first is None:
            continue  # the first request was just refused, so the key is free
        if first.body_sha256 != digest:
            raise Conflict("This key was used with another request.", code="idempotency_conflict")
        if first.answer is not None:
            return RecordedAnswer(answer=first.answer)
        if time.monotonic() >= deadline:
            raise Conflict("A request with this key is still running.", code="in_progress")
        time.sleep(CLAIM_POLL_SECONDS)


def _insert_claim(platform: str, bot_account: str, key: str, digest: str) -> ClaimedKey | None:
    return fetch_one(
        ClaimedKey,
        _CLAIM_SQL,
        {
            "platform": platform,
            "bot_account": bot_account,
            "key": key,
            "digest": digest,
            "hours": KEEP_HOURS,
            "abandoned": CLAIM_ABANDONED_SECONDS,
        },
    )


def record_answer(mine: ClaimedKey, answer: dict[str, JSON]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_RECORD_ANSWER_SQL, [msgspec.json.encode(answer).decode(), mine.pk])


def clear_answer(mine: ClaimedKey) -> None:
    """Delete the stored answer of a failed request, and keep its key."""
    IdempotencyKey.objects.filter(pk=mine.pk).update(answer=None)


def release_key(mine: ClaimedKey) -> None:
    """Release the key of a request without effect, so that it may be sent again."""
    IdempotencyKey.objects.filter(pk=mine.pk, answer__isnull=True).delete()


def purge_idempotency_keys() -> int:
    long_ago = Now() - timedelta(hours=KEEP_HOURS)
    return IdempotencyKey.objects.filter(created_at__lt=long_ago).delete()[0]
