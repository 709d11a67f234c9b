"""Open turns and claim them for a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now

from config.core.db import ASYNC_COMMIT
from copilot import metrics
from copilot.chat import model_calls, turn_context, turn_hooks
from copilot.chat.permissions import NO_PERMISSIONS, Permissions, PermissionsJSON
from copilot.chat.session_config import SessionConfig
from copilot.chat.turn_context import Channel, InboundContext
from copilot.models import Turn
from copilot.realtime.events import CancelReason
from copilot.realtime.payloads import ContextUsage

QUEUED, RUNNING, WAITING = Turn.Status.QUEUED, Turn.Status.RUNNING, Turn.Status.WAITING
SUCCEEDED, FAILED, CANCELLED = Turn.Status.SUCCEEDED, Turn.Status.FAILED, Turn.Status.CANCELLED

ALLOWED_TRANSITIONS = {
    RUNNING: (QUEUED,),
    WAITING: (RUNNING,),
    QUEUED: (RUNNING, WAITING),
    SUCCEEDED: (RUNNING,),
    FAILED: (QUEUED, RUNNING, WAITING),
    CANCELLED: (QUEUED, RUNNING, WAITING),
}
SEQUENCES_LEFT_FREE = 10  # before a turn's first message, for messages accepted earlier that still wait

_json = msgspec.json.Encoder()


# --- Opening -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NewTurn:
    turn_id: UUID
    token: UUID
    session_id: UUID
    message_id: UUID
    origin: str
    run_id: str | None
    tier: str
    mode: str
    permissions: Permissions
    accept_number: int
    title: str = ""  # for a session that has none yet
    parent: UUID | None = None  # the turn whose tool call started this one
    budget: int = 0  # microdollars; 0 means the default
    of_owner: bool = False  # only the owner's message may replace a turn that waits for approval
    held: bool = False  # a hold was placed when its limit was checked


@dataclass(frozen=True)
class OpenedTurn:
    sequence: int
    created_at: datetime
    fence: int
    title: str
    pinned: bool
    archived: bool
    child: bool


# One statement makes one round trip and one transaction: the message gets its place, the session its next
# fence, and the turn its row. Nothing happens when the message has already been taken, or when an earlier
# message waits that needs a turn of its own.
_OPEN_TURN = """
WITH waiting AS (
    SELECT id, data FROM copilot_message m WHERE id = %(message)s AND sequence IS NULL AND dropped_at IS NULL
      AND NOT EXISTS (SELECT 1 FROM copilot_message e WHERE e.session_id = %(session)s AND e.sequence IS NULL
                      AND e.dropped_at IS NULL AND e.run_id IS NOT NULL AND e.queue_order < m.queue_order)
    FOR UPDATE
), fenced AS (
    UPDATE copilot_session SET fence = fence + 1, active_at = now(),
           title_origin = CASE WHEN title = '' AND %(title)s <> '' THEN 'default' ELSE title_origin END,
           title = CASE WHEN title = '' THEN %(title)s ELSE title END
    FROM waiting WHERE copilot_session.id = %(session)s
    RETURNING fence, title, pinned, archived_at IS NOT NULL AS archived, depth > 0 AS child, owner_id,
              COALESCE(waiting.data->'arrival', '{}') AS arrival
), opened AS (
    INSERT INTO copilot_turn (id, session_id, status, origin, run_ids, tier, mode, permissions, accepted_through,
                              fence, token, dispatched_at, dispatch_count, parent_id, budget_microdollars, arrival,
                              payer_id, address)
    SELECT %(turn)s, %(session)s, 'queued', %(origin)s, %(run_ids)s::jsonb, %(tier)s, %(mode)s, %(permissions)s::jsonb,
           %(accepted)s, fenced.fence, %(token)s, now(), 1, %(parent)s, %(budget)s, fenced.arrival,
           fenced.owner_id, (fenced.arrival->>'address')::bigint
    FROM fenced
    RETURNING id
)
UPDATE copilot_message m
SET turn_id = opened.id,
    sequence = %(room)s + 1 + COALESCE((SELECT MAX(sequence) FROM copilot_message WHERE session_id = %(session)s), 0)
FROM opened, fenced WHERE m.id = %(message)s
RETURNING m.sequence, m.created_at, fenced.fence, fenced.title, fenced.pinned, fenced.archived, fenced.child
"""


def open_turn(new_turn: NewTurn) -> OpenedTurn | None:
    """Open a turn with a message; None when the message is taken already or an earlier one goes first.

    Raise IntegrityError when the session has an unfinished turn.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _OPEN_TURN,
            {
                "message": new_turn.message_id,
                "session": new_turn.session_id,
                "turn": new_turn.turn_id,
                "token": new_turn.token,
                "origin": new_turn.origin,
                "run_ids": _json.encode([new_turn.run_id] if new_turn.run_id else []).decode(),
                "tier": new_turn.tier,
                "mode": new_turn.mode,
                "permissions": _json.encode(new_turn.permissions.to_json()).decode(),
                "accepted": new_turn.accept_number,
                "room": SEQUENCES_LEFT_FREE,
                "title": new_turn.title,
                "parent": new_turn.parent,
                "budget": new_turn.budget,
            },
        )
        row = cursor.fetchone()
    if row is None:
        return None
    turn_hooks.call_turn_hooks_on_commit(new_turn.turn_id, new_turn.origin, "started")
    return OpenedTurn(*row)


def record_dropped_message(
    session_id: UUID,
    run_id: str,
    origin: str,
    permissions: Permissions,
    accept_number: int,
    *,
    by: CancelReason = "user",
) -> UUID:
    turn = Turn.objects.create(
        id=uuid4(),
        session_id=session_id,
        status=CANCELLED,
        origin=origin,
        run_ids=[run_id],
        permissions=permissions.to_json(),
        accepted_through=accept_number,
        fence=0,
        token=uuid4(),
        ended_at=Now(),
        cancel_reason=by,
    )
    turn_hooks.call_turn_hooks_on_commit(turn.pk, origin, "ended")
    return turn.pk


# --- Claiming ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClaimedTurn:
    turn_id: UUID
    session_id: UUID
    user_id: int
    fence: int
    token: UUID
    attempts: int
    handovers: int
    origin: str
    tier: str
    mode: str
    permissions: Permissions
    run_ids: list[str]
    accepted_through: int
    stopped: bool
    resumed: bool
    created_at: datetime
    accepted_at: datetime  # when its first message came; one with a run_id may have waited behind other turns
    running_seconds: float  # without the time it waited for a person
    pending: int
    calls: int  # model calls made so far
    has_first_call: bool  # the row of its first call was made with the claim
    session_config: SessionConfig
    has_servers: bool  # MCP servers of the user, or shared ones
    context: ContextUsage  # as the session's last turn left it
    purpose: str
    focus: str
    arrival: InboundContext
    waited_seconds: float  # between being queued and this claim
    throttled: bool  # a cap on simultaneous turns made it wait

    @property
    def limit_may_be_used_up(self) -> bool:
        """Tell whether other turns of the user may have spent the limit since it was checked."""
        return self.throttled or self.waited_seconds >= model_calls.LIMIT_CHECK_VALID_SECONDS

    @property
    def channel(self) -> Channel:
        return turn_context.get_channel(self.origin, self.arrival.reply)


# The throttled turns of the same user and of the same address that wait longest: a turn that ends or pauses
# wakes them. The claim checks the caps again and names the next ones.
NEXT_THROTTLED_TURNS = """
ARRAY((SELECT w.id FROM copilot_turn w WHERE w.payer_id = {turn}.payer_id AND w.parent_id IS NULL
       AND w.status = 'queued' AND w.throttle <> '' ORDER BY w.created_at, w.id LIMIT 1)
      UNION
      (SELECT w.id FROM copilot_turn w WHERE w.address = {turn}.address AND w.parent_id IS NULL
       AND w.status = 'queued' AND w.throttle = 'address' ORDER BY w.created_at, w.id LIMIT 1))
"""

# The database function `copilot_seat_turns` (from a migration) decides which of the turns may run now, marks
# those that must wait, and names other turns that may run because a place has become free.
_CLAIM_TURNS = f"""
WITH seats AS MATERIALIZED (
    SELECT seated, verdict FROM copilot_seat_turns(%(turn_ids)s::uuid[], %(per_address)s)
), claimed AS (
UPDATE copilot_turn t
SET status = 'running', worker = %(worker)s, begun_at = now(), attempts = GREATEST(attempts, 1),
    started_at = COALESCE(started_at, now()), model = COALESCE(NULLIF(t.model, ''), (
        SELECT name FROM unnest(%(tiers)s::text[], %(names)s::text[]) AS chosen (tier, name)
        WHERE chosen.tier = COALESCE(NULLIF(t.tier, ''), 'standard')), '')
FROM copilot_session s
LEFT JOIN copilot_preferences p ON p.owner_id = s.owner_id
LEFT JOIN copilot_personality y ON y.id = COALESCE(s.personality_id, p.personality_id) AND y.enabled
LEFT JOIN copilot_agentversion v ON v.id = s.agent_version_id
WHERE t.id = ANY(ARRAY(SELECT seated FROM seats WHERE verdict = 'go')) AND t.status = 'queued' AND s.id = t.session_id AND {ASYNC_COMMIT}
RETURNING t.id, t.session_id, s.owner_id, t.fence, t.token, t.attempts, t.handovers, t.origin, t.tier, t.mode,
          t.permissions, t.run_ids, t.accepted_through, t.stop_requested_at IS NOT NULL AS stopped,
          t.started_at < t.begun_at AS resumed, t.created_at,
          extract(epoch FROM now() - t.started_at)::float8 - t.paused_seconds AS seconds,
          (SELECT count(*) FROM copilot_message m
           WHERE m.session_id = t.session_id AND m.sequence IS NULL AND m.dropped_at IS NULL) AS pending,
          (SELECT COALESCE(MAX(number), 0) FROM copilot_modelcall c
           WHERE c.turn_id = t.id AND c.purpose <> 'tool') AS calls,
          jsonb_strip_nulls(jsonb_build_object(
              'voice', CASE WHEN y.id IS NOT NULL
                       THEN jsonb_build_object('prompt', y.prompt, 'tone', y.tone, 'style', y.style) END,
              'standing', p.instructions, 'instructions', s.instructions,
              'agent', CASE WHEN v.id IS NOT NULL
                       THEN jsonb_build_object('instructions', v.instructions, 'tools', v.tools) END,
              'builds', s.builds_id IS NOT NULL, 'allowed_tools', s.allowed_tools,
              'timezone', NULLIF(p.timezone, ''),
              'memory', NOT EXISTS (SELECT 1 FROM copilot_memoryswitch w
                                    WHERE w.owner_id = s.owner_id AND NOT w."on"))) AS shaping,
          EXISTS (SELECT 1 FROM copilot_mcpserver m
                  WHERE m.enabled AND (m.owner_id = s.owner_id OR m.owner_id IS NULL)) AS has_servers,
          s.context, t.purpose, t.focus, t.arrival, t.throttle,
          extract(epoch FROM t.begun_at - t.queued_at)::float8 AS waited,
          LEAST(t.created_at, (SELECT MIN(m.created_at) FROM copilot_message m
                               WHERE m.turn_id = t.id AND m.kind = 'user')) AS accepted_at
), begun AS ({model_calls.INSERT_FIRST_CALLS})
SELECT claimed.*, begun.turn_id IS NOT NULL, seats.seated, seats.verdict
FROM seats LEFT JOIN claimed ON claimed.id = seats.seated LEFT JOIN begun ON begun.turn_id = claimed.id
"""  # noqa: S608 - both texts are ours


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """Claimed turns, turns throttled by a cap, and other queued turns that may start as well."""

    claimed: list[ClaimedTurn]
    throttled: list[UUID]
    startable: list[UUID]


def claim_turns(
    turn_ids: Sequence[UUID], worker: str, models: Mapping[str, model_calls.TierModel] | None = None
) -> ClaimResult:
    """Claim queued turns for a worker, as many as their users' caps allow; taken and ended ones are left out.

    `models` names the model each tier begins with: the turn's row notes it, and the row of its first model
    call is inserted in the same statement. A crash of Postgres may lose the claim until the WAL is flushed,
    so nothing may be acknowledged under it before that.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _CLAIM_TURNS,
            {
                "worker": worker,
                "per_address": settings.TURNS_AT_ONCE_PER_ADDRESS,
                **model_calls.build_first_call_parameters(turn_ids, models or {}),
            },
        )
        rows = cursor.fetchall()
    claimed_rows = [row for row in rows if row[0] is not None]
    for row in claimed_rows:
        if row[25]:
            continue  # a throttled turn waited for its user's other turns, not for a worker
        metrics.queue_wait_seconds.observe(row[26])
    return ClaimResult(
        claimed=[_parse_claimed_row(row, decode_jsonb(row[19], SessionConfig)) for row in claimed_rows],
        throttled=[row[29] for row in rows if row[30] == "wait"],
        startable=[row[29] for row in rows if row[30] == "wake"],
    )


def _parse_claimed_row(row: Sequence[Any], session_config: SessionConfig) -> ClaimedTurn:
    return ClaimedTurn(
        turn_id=row[0],
        session_id=row[1],
        user_id=row[2],
        fence=row[3],
        token=row[4],
        attempts=row[5],
        handovers=row[6],
        origin=row[7],
        tier=row[8],
        mode=row[9],
        permissions=session_config.restrict_permissions(
            Permissions.from_json(decode_jsonb(row[10], PermissionsJSON))
        ),
        run_ids=decode_jsonb(row[11], list[str]),
        accepted_through=row[12],
        stopped=row[13],
        resumed=row[14],
        created_at=row[15],
        accepted_at=row[27],
        running_seconds=row[16],
        pending=row[17],
        calls=row[18],
        has_first_call=row[28],
        session_config=session_config,
        has_servers=row[20],
        context=decode_jsonb(row[21], ContextUsage),
        purpose=row[22],
        focus=row[23],
        arrival=decode_jsonb(row[24], InboundContext),
        throttled=bool(row[25]),
        waited_seconds=row[26],
    )


def get_turn_channel(turn: Turn) -> Channel:
    return turn_context.get_channel(turn.origin, msgspec.convert(turn.arrival, InboundContext).reply)


T = TypeVar("T")


def decode_jsonb(value: str | T, kind: type[T]) -> T:
    """Decode a jsonb column, which a raw cursor returns as text."""
    return msgspec.json.decode(value, type=kind) if isinstance(value, str) else value


def list_still_running(claims: Sequence[tuple[UUID, int]]) -> set[UUID]:
    fences = dict(claims)
    rows = Turn.objects.filter(pk__in=fences, status=RUNNING).values_list("pk", "fence")
    return {turn_id for turn_id, fence in rows if fences[turn_id] == fence}


# --- Compaction --------------------------------------------------------------------------------------

# A compaction turn has no message, but the same fence and uniqueness as any other: a session has at most one
# unfinished turn.
_OPEN_COMPACTION_TURN = """
WITH fenced AS (
    UPDATE copilot_session SET fence = fence + 1 WHERE id = %(session)s
    RETURNING fence, title, pinned, archived_at IS NOT NULL AS archived, depth > 0 AS child, owner_id
), opened AS (
    INSERT INTO copilot_turn (id, session_id, status, origin, permissions, accepted_through, fence, token,
                              dispatched_at, dispatch_count, purpose, focus, payer_id)
    SELECT %(turn)s, %(session)s, 'queued', %(origin)s, %(permissions)s::jsonb, %(accepted)s, fenced.fence, %(token)s, now(), 1,
           'compaction', %(focus)s, fenced.owner_id
    FROM fenced
)
SELECT title, pinned, archived, child FROM fenced
"""


@dataclass(frozen=True)
class OpenedCompactionTurn:
    title: str
    pinned: bool
    archived: bool
    child: bool


def open_compaction_turn(
    turn_id: UUID, token: UUID, session_id: UUID, *, origin: str, focus: str, accepted_through: int
) -> OpenedCompactionTurn:
    """Open a turn that only compacts the session; raise IntegrityError when one is unfinished.

    Queued messages up to `accepted_through` stay queued after this turn.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _OPEN_COMPACTION_TURN,
            {
                "turn": turn_id,
                "token": token,
                "session": session_id,
                "origin": origin,
                "focus": focus,
                "accepted": accepted_through,
                "permissions": _json.encode(NO_PERMISSIONS.to_json()).decode(),  # no tool runs
            },
        )
        return OpenedCompactionTurn(*cursor.fetchone())
