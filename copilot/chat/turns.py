"""A turn is opened, and becomes a worker's to run."""

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
SEQUENCES_LEFT_FREE = 10  # places left free before a starting message, for those accepted before it (T6.2)

_json = msgspec.json.Encoder()


# --- opening -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NewTurn:
    """What a new turn is made of."""

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
    parent: UUID | None = None  # the turn that started this one (A21)
    budget: int = 0  # microdollars; 0 means the default
    of_owner: bool = False  # who may go on instead of deciding (A11.8)
    held: bool = False  # money for it was held when its limit was checked


@dataclass(frozen=True)
class OpenedTurn:
    sequence: int
    created_at: datetime
    fence: int
    title: str
    pinned: bool
    archived: bool
    child: bool


# One statement, so one round trip and one transaction: the message gets its place, the session its next
# fence, and the turn its row; nothing happens when the message has already been taken, or when an earlier one
# waits that needs a turn of its own (T6.2).
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


def open_turn(opening: NewTurn) -> OpenedTurn | None:
    """Start a turn with a message; None when it was taken already or is not the first. IntegrityError: one runs."""
    with connection.cursor() as cursor:
        cursor.execute(
            _OPEN_TURN,
            {
                "message": opening.message_id,
                "session": opening.session_id,
                "turn": opening.turn_id,
                "token": opening.token,
                "origin": opening.origin,
                "run_ids": _json.encode([opening.run_id] if opening.run_id else []).decode(),
                "tier": opening.tier,
                "mode": opening.mode,
                "permissions": _json.encode(opening.permissions.to_json()).decode(),
                "accepted": opening.accept_number,
                "room": SEQUENCES_LEFT_FREE,
                "title": opening.title,
                "parent": opening.parent,
                "budget": opening.budget,
            },
        )
        row = cursor.fetchone()
    if row is None:
        return None
    turn_hooks.call_turn_hooks_on_commit(opening.turn_id, opening.origin, "started")
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
    """The cancelled ending of a message that left the queue before any turn took it (T3.6)."""
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


# --- running -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClaimedTurn:
    """A turn that is this worker's to run."""

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
    accepted_at: (
        datetime  # the first of its messages: one with a run_id may have waited behind other turns (A19.9)
    )
    running_seconds: float  # what it waited for a person does not count (A10.5)
    pending: int
    calls: int  # model calls made so far
    has_first_call: bool  # the row of its first call was made with the claim
    session_config: SessionConfig
    has_servers: bool  # MCP servers of the user's own, or of everybody's
    context: ContextUsage  # as the session's last turn left it
    purpose: str
    focus: str
    arrival: InboundContext
    waited_seconds: float  # between being queued and this claim
    throttled: bool  # it waited because of a cap

    @property
    def limit_may_be_used_up(self) -> bool:
        """Whether others of its user may have spent the limit since it was checked."""
        return self.throttled or self.waited_seconds >= model_calls.LIMIT_CHECK_VALID_SECONDS

    @property
    def channel(self) -> Channel:
        return turn_context.get_channel(self.origin, self.arrival.reply)


# The turns that wait longest for a place of the same user or the same address: one that ends or pauses makes room for
# them. Whoever claims them decides again, and names the next.
NEXT_THROTTLED_TURNS = """
ARRAY((SELECT w.id FROM copilot_turn w WHERE w.payer_id = {turn}.payer_id AND w.parent_id IS NULL
       AND w.status = 'queued' AND w.throttle <> '' ORDER BY w.created_at, w.id LIMIT 1)
      UNION
      (SELECT w.id FROM copilot_turn w WHERE w.address = {turn}.address AND w.parent_id IS NULL
       AND w.status = 'queued' AND w.throttle = 'address' ORDER BY w.created_at, w.id LIMIT 1))
"""

# `copilot_seat_turns` (a migration of ours) says which of the turns may run now, marks those that wait, and names others
# that may run as well because a place has become free.
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
    """The turns a worker has claimed, those it found at a cap, and waiting ones that may be claimed as well."""

    claimed: list[ClaimedTurn]
    throttled: list[UUID]
    startable: list[UUID]


def claim_turns(
    turn_ids: Sequence[UUID], worker: str, models: Mapping[str, model_calls.TierModel] | None = None
) -> ClaimResult:
    """Take queued turns for a worker, as many as their users' caps allow; those already taken or ended are left out (T5.1).

    `models` says which each tier begins with: its name is noted on the turn (A4.3), and the row of a first call is
    made on the way. The claim may be lost with the database until it is settled: nothing is written under it before.
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
    mine = [row for row in rows if row[0] is not None]
    for row in mine:
        if row[25]:
            continue  # it waited for its own user's other turns, not for a worker
        metrics.queue_wait_seconds.observe(row[26])
    return ClaimResult(
        claimed=[_parse_claimed_row(row, decode_jsonb(row[19], SessionConfig)) for row in mine],
        throttled=[row[29] for row in rows if row[30] == "wait"],
        startable=[row[29] for row in rows if row[30] == "wake"],
    )


def _parse_claimed_row(row: Sequence[Any], shaping: SessionConfig) -> ClaimedTurn:
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
        permissions=shaping.restrict_permissions(
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
        session_config=shaping,
        has_servers=row[20],
        context=decode_jsonb(row[21], ContextUsage),
        purpose=row[22],
        focus=row[23],
        arrival=decode_jsonb(row[24], InboundContext),
        throttled=bool(row[25]),
        waited_seconds=row[26],
    )


def get_turn_channel(turn: Turn) -> Channel:
    """What the way in of a stored turn can do."""
    return turn_context.get_channel(turn.origin, msgspec.convert(turn.arrival, InboundContext).reply)


T = TypeVar("T")


def decode_jsonb(value: str | T, kind: type[T]) -> T:
    """A jsonb column as a raw cursor gives it."""
    return msgspec.json.decode(value, type=kind) if isinstance(value, str) else value


def list_still_running(held: Sequence[tuple[UUID, int]]) -> set[UUID]:
    """Which of these (turn, fence) pairs still are what their worker believes."""
    fences = dict(held)
    rows = Turn.objects.filter(pk__in=fences, status=RUNNING).values_list("pk", "fence")
    return {turn_id for turn_id, fence in rows if fences[turn_id] == fence}


# MERGED turns.compacting: A turn without a message: all it does is shorten the conversation (A17.6).

# The same fence and uniqueness as any turn's: the session has one unfinished turn, whatever it is for.
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
    """IntegrityError: a turn is unfinished here. `accepted_through`: chips up to it wait after this turn too."""
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
