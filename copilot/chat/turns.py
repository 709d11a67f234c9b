"""Open turns and claim them for a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeVar
from uuid import UUID, uuid4

import msgspec
from django.conf import settings
from django.db.models.functions import Now

from config.core.db import ASYNC_COMMIT, Query, fetch_all, fetch_both, fetch_one
from copilot import metrics, signals
from copilot.chat import message_history, model_calls, turn_context
from copilot.chat.message_rows import MessageRow
from copilot.chat.permissions import NO_PERMISSIONS, Permissions, PermissionsJSON
from copilot.chat.turn_context import Channel, InboundContext, SessionConfig
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
              COALESCE(waiting.data->'inbound_context', '{}') AS inbound_context
), opened AS (
    INSERT INTO copilot_turn (id, session_id, status, origin, run_ids, tier, mode, permissions, accepted_through,
                              fence, token, dispatched_at, dispatch_count, parent_id, budget_microdollars, inbound_context,
                              payer_id, address_hash)
    SELECT %(turn)s, %(session)s, 'queued', %(origin)s, %(run_ids)s::jsonb, %(tier)s, %(mode)s, %(permissions)s::jsonb,
           %(accepted)s, fenced.fence, %(token)s, now(), 1, %(parent)s, %(budget)s, fenced.inbound_context,
           fenced.owner_id, (fenced.inbound_context->>'address_hash')::bigint
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
    opened = fetch_one(
        OpenedTurn,
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
    if opened is not None:
        signals.send_turn_signal(signals.turn_started, new_turn.turn_id, new_turn.origin)
    return opened


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
    signals.send_turn_signal(signals.turn_ended, turn.pk, origin)
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
    inbound_context: InboundContext
    waited_seconds: float  # between being queued and this claim
    throttled: bool  # a cap on simultaneous turns made it wait

    @property
    def limit_may_be_used_up(self) -> bool:
        """Tell whether other turns of the user may have spent the limit since it was checked."""
        return self.throttled or self.waited_seconds >= model_calls.LIMIT_CHECK_VALID_SECONDS

    @property
    def channel(self) -> Channel:
        return turn_context.get_turn_channel(self.origin, self.inbound_context)


# The throttled turns of the same user and of the same address that wait longest: a turn that ends or pauses
# wakes them. The claim checks the caps again and names the next ones.
NEXT_THROTTLED_TURNS = """
ARRAY((SELECT w.id FROM copilot_turn w WHERE w.payer_id = {turn}.payer_id AND w.parent_id IS NULL
       AND w.status = 'queued' AND w.throttled_by <> '' ORDER BY w.created_at, w.id LIMIT 1)
      UNION
      (SELECT w.id FROM copilot_turn w WHERE w.address_hash = {turn}.address_hash AND w.parent_id IS NULL
       AND w.status = 'queued' AND w.throttled_by = 'address' ORDER BY w.created_at, w.id LIMIT 1))
"""

# The database function `copilot_apply_turn_caps` (functions_and_triggers.sql) decides which of the turns may run now, marks
# those that must wait, and names other turns that may run because a place has become free.
_CLAIM_TURNS = f"""
WITH verdicts AS MATERIALIZED (
    SELECT turn_id, verdict FROM copilot_apply_turn_caps(%(turn_ids)s::uuid[], %(per_address)s)
), claimed AS (
UPDATE copilot_turn t
SET status = 'running', worker = %(worker)s, attempt_started_at = now(), attempts = GREATEST(attempts, 1),
    started_at = COALESCE(started_at, now()), model = COALESCE(NULLIF(t.model, ''), (
        SELECT name FROM unnest(%(tiers)s::text[], %(names)s::text[]) AS chosen (tier, name)
        WHERE chosen.tier = COALESCE(NULLIF(t.tier, ''), 'standard')), '')
FROM copilot_session s
LEFT JOIN copilot_preferences p ON p.owner_id = s.owner_id
LEFT JOIN copilot_personality y ON y.id = COALESCE(s.personality_id, p.personality_id) AND y.enabled
LEFT JOIN copilot_agentversion v ON v.id = s.agent_version_id
WHERE t.id = ANY(ARRAY(SELECT turn_id FROM verdicts WHERE verdict = 'start')) AND t.status = 'queued' AND s.id = t.session_id AND {ASYNC_COMMIT}
RETURNING t.id, t.session_id, s.owner_id AS user_id, t.fence, t.token, t.attempts, t.handovers, t.origin, t.tier, t.mode,
          t.permissions, t.run_ids, t.accepted_through, t.stop_requested_at IS NOT NULL AS stopped,
          t.started_at < t.attempt_started_at AS resumed, t.created_at,
          extract(epoch FROM now() - t.started_at)::float8 - t.paused_seconds AS running_seconds,
          (SELECT count(*) FROM copilot_message m
           WHERE m.session_id = t.session_id AND m.sequence IS NULL AND m.dropped_at IS NULL) AS pending,
          (SELECT COALESCE(MAX(number), 0) FROM copilot_modelcall c
           WHERE c.turn_id = t.id AND c.purpose <> 'tool') AS calls,
          jsonb_strip_nulls(jsonb_build_object(
              'personality', CASE WHEN y.id IS NOT NULL
                       THEN jsonb_build_object('prompt', y.prompt, 'tone', y.tone, 'style', y.style) END,
              'user_instructions', p.instructions, 'instructions', s.instructions,
              'agent', CASE WHEN v.id IS NOT NULL
                       THEN jsonb_build_object('instructions', v.instructions, 'tools', v.tools) END,
              'is_builder', s.built_agent_id IS NOT NULL, 'allowed_tools', s.allowed_tools,
              'timezone', NULLIF(p.timezone, ''),
              'memory_enabled', NOT EXISTS (SELECT 1 FROM copilot_memorypreference w
                                            WHERE w.owner_id = s.owner_id AND NOT w.enabled))) AS session_config,
          EXISTS (SELECT 1 FROM copilot_mcpserver m
                  WHERE m.enabled AND (m.owner_id = s.owner_id OR m.owner_id IS NULL)) AS has_servers,
          s.context, t.purpose, t.focus, t.inbound_context, t.throttled_by,
          extract(epoch FROM t.attempt_started_at - t.queued_at)::float8 AS waited_seconds,
          LEAST(t.created_at, (SELECT MIN(m.created_at) FROM copilot_message m
                               WHERE m.turn_id = t.id AND m.kind = 'user')) AS accepted_at
), first_calls AS ({model_calls.INSERT_FIRST_CALLS})
SELECT claimed.*, first_calls.turn_id IS NOT NULL AS has_first_call, verdicts.turn_id, verdicts.verdict
FROM verdicts LEFT JOIN claimed ON claimed.id = verdicts.turn_id
LEFT JOIN first_calls ON first_calls.turn_id = claimed.id
"""  # noqa: S608 - both texts are ours


class _ClaimedRow(NamedTuple):
    """A turn that was given a verdict. Without a claim, all but the last two columns are null."""

    id: UUID | None
    session_id: UUID
    user_id: int
    fence: int
    token: UUID
    attempts: int
    handovers: int
    origin: str
    tier: str
    mode: str
    permissions: str | PermissionsJSON
    run_ids: str | list[str]
    accepted_through: int
    stopped: bool
    resumed: bool
    created_at: datetime
    running_seconds: float
    pending: int
    calls: int
    session_config: str | SessionConfig
    has_servers: bool
    context: str | ContextUsage
    purpose: str
    focus: str
    inbound_context: str | InboundContext
    throttled_by: str
    waited_seconds: float
    accepted_at: datetime
    has_first_call: bool
    turn_id: UUID
    verdict: str


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """Claimed turns, turns throttled by a cap, and other queued turns that may start as well."""

    claimed: list[ClaimedTurn]
    throttled: list[UUID]
    startable: list[UUID]
    messages: list[MessageRow] | None = None  # for the model, when there was a single turn to claim


def claim_turns(
    turn_ids: Sequence[UUID], worker: str, models: Mapping[str, model_calls.TierModel] | None = None
) -> ClaimResult:
    """Claim queued turns for a worker, as many as their users' caps allow; taken and ended ones are left out.

    `models` names the model each tier begins with: the turn's row notes it, and the row of its first model
    call is inserted in the same statement. A crash of Postgres may lose the claim until the WAL is flushed,
    so nothing may be acknowledged under it before that.
    """
    parameters = {
        "worker": worker,
        "per_address": settings.TURNS_AT_ONCE_PER_ADDRESS,
        **model_calls.build_first_call_parameters(turn_ids, models or {}),
    }
    messages = None
    if len(turn_ids) == 1:  # it waits for both answers: together they save 0.5 ms of 15 to the first token
        rows, stored = fetch_both(
            Query(_ClaimedRow, _CLAIM_TURNS, parameters), message_history.build_rows_query(turn_ids[0])
        )
        messages = message_history.parse_rows_for_model(stored)
    else:
        rows = fetch_all(_ClaimedRow, _CLAIM_TURNS, parameters)
    claimed = [_parse_claimed_row(row, row.id) for row in rows if row.id is not None]
    for turn in claimed:
        if turn.throttled:
            continue  # it waited for its user's other turns, not for a worker
        metrics.queue_wait_seconds.observe(turn.waited_seconds)
    return ClaimResult(
        claimed=claimed,
        throttled=[row.turn_id for row in rows if row.verdict == "wait"],
        startable=[row.turn_id for row in rows if row.verdict == "wake"],
        messages=messages,
    )


def _parse_claimed_row(row: _ClaimedRow, turn_id: UUID) -> ClaimedTurn:
    session_config = decode_jsonb(row.session_config, SessionConfig)
    return ClaimedTurn(
        turn_id=turn_id,
        session_id=row.session_id,
        user_id=row.user_id,
        fence=row.fence,
        token=row.token,
        attempts=row.attempts,
        handovers=row.handovers,
        origin=row.origin,
        tier=row.tier,
        mode=row.mode,
        permissions=session_config.restrict_permissions(
            Permissions.from_json(decode_jsonb(row.permissions, PermissionsJSON))
        ),
        run_ids=decode_jsonb(row.run_ids, list[str]),
        accepted_through=row.accepted_through,
        stopped=row.stopped,
        resumed=row.resumed,
        created_at=row.created_at,
        accepted_at=row.accepted_at,
        running_seconds=row.running_seconds,
        pending=row.pending,
        calls=row.calls,
        has_first_call=row.has_first_call,
        session_config=session_config,
        has_servers=row.has_servers,
        context=decode_jsonb(row.context, ContextUsage),
        purpose=row.purpose,
        focus=row.focus,
        inbound_context=decode_jsonb(row.inbound_context, InboundContext),
        throttled=bool(row.throttled_by),
        waited_seconds=row.waited_seconds,
    )


def get_turn_channel(turn: Turn) -> Channel:
    return turn_context.get_turn_channel(turn.origin, msgspec.convert(turn.inbound_context, InboundContext))


T = TypeVar("T")


def decode_jsonb(value: str | T, kind: type[T]) -> T:
    """Decode a jsonb column, which a raw cursor returns as text."""
    return msgspec.json.decode(value, type=kind) if isinstance(value, str) else value


def list_still_running(claims: Sequence[tuple[UUID, int]]) -> set[UUID]:
    fences = dict(claims)
    rows = Turn.objects.running().filter(pk__in=fences).values_list("pk", "fence")
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
    opened = fetch_one(
        OpenedCompactionTurn,
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
    assert opened is not None
    return opened
