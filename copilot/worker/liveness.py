"""Judge whether the workers of running turns are alive, from the evidence in Postgres and Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.conf import settings

from config.core.db import fetch_all
from config.core.errors import ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.worker import heartbeat
from copilot.worker.health import ask_with_deadline
from copilot.worker.heartbeat import WORKER_LOCK_SPACE

FRESH_HEARTBEAT_SECONDS = 1.0
MAX_TURNS_JUDGED = 2000  # per sweep, oldest first, so that no turn is left out forever

Liveness = Literal["live", "dead", "unknown"]


@dataclass(frozen=True)
class TurnEvidence:
    """A running turn and what Postgres knows about its worker."""

    turn_id: str
    session_id: str
    fence: int
    attempts: int
    stopped: bool
    young: bool  # begun more recently than a heartbeat expires
    listed: bool  # a fresh heartbeat in Postgres lists this (turn, fence)
    lock_free: bool  # the worker's advisory lock is free: the process is gone
    worker: str


# Locks and lists are read once per worker, not once per turn: a process may run hundreds of turns.
_SELECT_EVIDENCE = """
WITH beat AS MATERIALIZED (
    SELECT b.worker, b.turns, b.last_beat_at > now() - %(life)s * interval '1 second' AS fresh, NOT EXISTS (
        SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
          AND l.classid = %(space)s AND l.objid = (b.lock_key & 4294967295)
          AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())) AS lock_free
    FROM copilot_workerheartbeat b
), listed AS (
    SELECT beat.worker, (pair ->> 0)::uuid AS turn_id, (pair ->> 1)::bigint AS fence
    FROM beat CROSS JOIN LATERAL jsonb_array_elements(beat.turns) AS pair WHERE beat.fresh
)
SELECT t.id::text AS turn_id, t.session_id::text, t.fence, t.attempts, t.stop_requested_at IS NOT NULL AS stopped,
       COALESCE(t.attempt_started_at > now() - %(life)s * interval '1 second', false) AS young,
       EXISTS (SELECT 1 FROM listed WHERE listed.turn_id = t.id AND listed.fence = t.fence
               AND listed.worker = t.worker) AS listed,
       COALESCE(b.lock_free, false) AS lock_free, t.worker
FROM copilot_turn t LEFT JOIN beat b ON b.worker = t.worker
WHERE t.status = 'running' AND (%(turn_id)s::uuid IS NULL OR t.id = %(turn_id)s)
ORDER BY t.attempt_started_at
LIMIT %(limit)s
"""


def list_turn_evidence(
    *, turn_id: UUID | None = None, limit: int | None = MAX_TURNS_JUDGED
) -> list[TurnEvidence]:
    """List running turns, or only `turn_id`, with the evidence that Postgres has about their workers."""
    return fetch_all(
        TurnEvidence,
        _SELECT_EVIDENCE,
        {
            "life": settings.WORKER_BEAT_LIFE_SECONDS,
            "space": WORKER_LOCK_SPACE,
            "limit": limit,
            "turn_id": turn_id,
        },
    )


def judge_liveness_in_time(found: Sequence[TurnEvidence]) -> dict[str, Liveness]:
    """Judge within a page's deadline: while Redis hangs, by the evidence in Postgres alone."""
    try:
        return ask_with_deadline(lambda: judge_liveness(found))
    except ServiceUnavailable:
        return {suspect.turn_id: _judge_turn(suspect, None) for suspect in found}


def judge_liveness(found: Sequence[TurnEvidence]) -> dict[str, Liveness]:
    """Judge the worker of each turn as live, dead or unknown; by turn id."""
    names = {suspect.worker for suspect in found}
    try:
        redis: dict[str, heartbeat.RedisHeartbeat] | None = heartbeat.read_redis_heartbeats(
            names, life_seconds=settings.WORKER_BEAT_LIFE_SECONDS
        )
    except REDIS_OUTAGE_ERRORS:
        redis = None
    return {suspect.turn_id: _judge_turn(suspect, redis) for suspect in found}


def _judge_turn(suspect: TurnEvidence, redis: dict[str, heartbeat.RedisHeartbeat] | None) -> Liveness:
    beat = redis.get(suspect.worker) if redis is not None else None
    silent = beat is None or beat.age_seconds > FRESH_HEARTBEAT_SECONDS
    if redis is not None and suspect.lock_free and silent:
        return "dead"  # the process is gone: Postgres freed its lock, and no heartbeat came since
    if suspect.young or suspect.listed:
        return "live"
    if beat is not None and (suspect.turn_id, suspect.fence) in beat.turns:
        return "live"
    return "unknown" if redis is None else "dead"
