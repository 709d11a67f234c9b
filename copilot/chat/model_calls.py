"""Record model calls: a row before each request, its usage and cost after it, an estimate if it was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID, uuid4, uuid5

from django.db import connection
from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Length, Now

from billing import pricing
from billing.usage import usage_records
from config.core.db import fetch_one
from config.core.redis import REDIS_OUTAGE_ERRORS
from config.core.text import make_storable
from copilot import metrics
from copilot.models import Message, ModelCall
from copilot.realtime import event_log
from copilot.realtime.events import StepStarted, decode_event
from copilot.realtime.payloads import Tokens

REPLY_PURPOSE, COMPACTION_PURPOSE, TOOL_PURPOSE, SIDE_QUESTION_PURPOSE = "reply", "compaction", "tool", "side"
# Paid tool calls run side by side, so they have a range of numbers apart from the model calls, which follow each other.
FIRST_TOOL_CALL_NUMBER = 2**30


@dataclass(frozen=True, kw_only=True)
class FinishedCall:
    call_id: UUID
    turn_id: UUID | None  # None: no turn caused it
    session_id: UUID
    user_id: int
    ended_at: datetime
    provider: str
    model: str
    tokens: Tokens
    cost: str | None
    estimated: bool
    aborted: bool
    refused_before_work: bool
    latency_ms: int
    first_token_ms: int | None
    response_id: str
    purpose: str = REPLY_PURPOSE
    ending: str = ""  # how the reply ended or what the call failed with; empty if it never ended
    partial: bool = False  # failed after text or tool calls had come


def make_call_id(turn_id: UUID, number: int) -> UUID:
    """Derive a call's id from its turn and number, so that it is known before anything else is."""
    return uuid5(turn_id, str(number))


LIMIT_CHECK_VALID_SECONDS = 5.0  # a turn that waited longer for a worker checks its limit again

# Part of the statement that claims turns: each turn without a call gets the row of its first one. It reads `claimed`
# (id, tier, calls, stopped, purpose, throttled_by, waited_seconds) and takes the parameters of `build_first_call_parameters`. A
# turn that waited long gets no row yet: it may find its limit used up and make no call.
INSERT_FIRST_CALLS = f"""
INSERT INTO copilot_modelcall (id, turn_id, number, provider, model, purpose)
SELECT first.call_id, claimed.id, 1, model.provider, model.model, claimed.purpose
FROM claimed
JOIN unnest(%(turn_ids)s::uuid[], %(call_ids)s::uuid[]) AS first (turn_id, call_id) ON first.turn_id = claimed.id
JOIN unnest(%(tiers)s::text[], %(providers)s::text[], %(models)s::text[]) AS model (tier, provider, model)
  ON model.tier = COALESCE(NULLIF(claimed.tier, ''), 'standard')
WHERE claimed.calls = 0 AND NOT claimed.stopped AND claimed.throttled_by = ''
  AND claimed.waited_seconds < {LIMIT_CHECK_VALID_SECONDS}
ON CONFLICT DO NOTHING
RETURNING turn_id
"""  # noqa: S608 - a constant


@dataclass(frozen=True, kw_only=True)
class TierModel:
    """The model that turns of a tier begin with."""

    name: str  # in the catalogue
    provider: str
    model: str


def build_first_call_parameters(
    turn_ids: Sequence[UUID], models: Mapping[str, TierModel]
) -> dict[str, list[object]]:
    return {
        "turn_ids": list(turn_ids),
        "call_ids": [make_call_id(turn_id, 1) for turn_id in turn_ids],
        "tiers": list(models),
        "names": [model.name for model in models.values()],
        "providers": [model.provider for model in models.values()],
        "models": [model.model for model in models.values()],
    }


def start_model_call(
    turn_id: UUID, number: int, provider: str, model: str, purpose: str = REPLY_PURPOSE
) -> None:
    """Insert the call's row before its request is sent; a number taken by an earlier run is left alone."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_modelcall (id, turn_id, number, provider, model, purpose)
            VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
            """,
            [make_call_id(turn_id, number), turn_id, number, provider, model, purpose],
        )


def start_call_after_turn(turn_id: UUID, purpose: str, provider: str, model: str) -> UUID:
    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO copilot_modelcall (id, turn_id, number, purpose, provider, model)
                SELECT %(id)s, %(turn)s, COALESCE(MAX(number), 0) + 1, %(purpose)s, %(provider)s, %(model)s
                FROM copilot_modelcall WHERE turn_id = %(turn)s AND purpose <> 'tool'
                ON CONFLICT DO NOTHING RETURNING id
                """,
                {
                    "id": uuid4(),
                    "turn": turn_id,
                    "purpose": purpose,
                    "provider": provider,
                    "model": model,
                },
            )
            row = cursor.fetchone()
        if row is not None:
            return row[0]  # type: ignore[no-any-return]


def start_side_question_call(call_id: UUID, session_id: UUID, provider: str, model: str) -> None:
    ModelCall.objects.create(
        id=call_id,
        session_id=session_id,
        number=1,
        provider=provider,
        model=model,
        purpose=SIDE_QUESTION_PURPOSE,
    )


_FINISH_CALL = """
UPDATE copilot_modelcall
SET provider = %s, model = %s, request_id = %s, input_tokens = %s, cache_read_tokens = %s, cache_write_5m_tokens = %s, cache_write_1h_tokens = %s,
    output_tokens = %s, reasoning_tokens = %s, estimated = %s, aborted = %s, latency_ms = %s, first_token_ms = %s,
    cost_microdollars = %s, cost_source = %s, purpose = %s, ending = %s, partial = %s, ended_at = now()
WHERE id = %s
"""


def finish_model_call(call: FinishedCall) -> str:
    """Complete the call's row and record its cost with billing under the same id; repeating changes nothing.

    Return where billing took the cost from; empty when there was none to record.
    """
    recorded = None if call.refused_before_work else _record_cost(call)
    with connection.cursor() as cursor:
        cursor.execute(
            _FINISH_CALL,
            [
                call.provider,
                call.model,
                make_storable(call.response_id)[:128],
                call.tokens.input,
                call.tokens.cache_read,
                call.tokens.cache_write_5m,
                call.tokens.cache_write_1h,
                call.tokens.output,
                call.tokens.reasoning,
                call.estimated,
                call.aborted,
                call.latency_ms,
                call.first_token_ms,
                recorded.cost_microdollars if recorded else None,
                recorded.source if recorded else "",
                call.purpose,
                call.ending,
                call.partial,
                call.call_id,
            ],
        )
    _count_call(call, recorded.cost_microdollars if recorded else 0)
    return "" if recorded is None else recorded.source


def _count_call(call: FinishedCall, cost_microdollars: int) -> None:
    outcome = "refused" if call.refused_before_work else "aborted" if call.aborted else "answered"
    metrics.provider_calls.labels(call.provider, outcome).inc()
    metrics.provider_seconds.labels(call.provider).observe(call.latency_ms / 1000)
    metrics.cost_microdollars.labels(call.provider).inc(cost_microdollars)
    tokens = call.tokens
    written = tokens.cache_write_5m + tokens.cache_write_1h
    for part, number in (("input", tokens.input), ("read", tokens.cache_read), ("written", written)):
        if number:
            metrics.prompt_tokens.labels(call.model, part).inc(number)


@dataclass(frozen=True)
class TurnSpending:
    """Microdollars a turn and its children spent, what running children may still spend, and its budget."""

    spent: int
    reserved: int
    budget: int  # set by its parent; 0 means none of its own


# A child pays for its own children, so a budget is reserved once: at the turn that gave it.
_SELECT_SPENDING = """
WITH RECURSIVE family AS (
    SELECT id, budget_microdollars AS given, id AS heir, ended_at IS NULL AS runs FROM copilot_turn WHERE id = %(turn)s
    UNION ALL
    SELECT t.id, t.budget_microdollars, CASE WHEN f.id = %(turn)s THEN t.id ELSE f.heir END, t.ended_at IS NULL
    FROM copilot_turn t JOIN family f ON t.parent_id = f.id
), costs AS (
    SELECT f.heir, SUM(c.cost_microdollars) AS cost FROM family f JOIN copilot_modelcall c ON c.turn_id = f.id
    GROUP BY f.heir
)
SELECT (SELECT COALESCE(SUM(cost), 0) FROM costs)::bigint AS spent,
       COALESCE(SUM(GREATEST(0, f.given - COALESCE(costs.cost, 0)))
                FILTER (WHERE f.runs AND f.id = f.heir AND f.id <> %(turn)s), 0)::bigint AS reserved,
       COALESCE(MAX(f.given) FILTER (WHERE f.id = %(turn)s), 0)::bigint AS budget
FROM family f LEFT JOIN costs ON costs.heir = f.heir
"""


def get_turn_spending(turn_id: UUID) -> TurnSpending:
    spending = fetch_one(TurnSpending, _SELECT_SPENDING, {"turn": turn_id})
    assert spending is not None  # an aggregate has one row
    return spending


def record_tool_cost(
    turn_id: UUID,
    tool_call_id: str,
    *,
    session_id: UUID,
    user_id: int,
    provider: str,
    cost_microdollars: int,
) -> None:
    """Record what a tool's call to a paid service costs by our settings; repeating changes nothing."""
    row_id = uuid5(turn_id, f"tool {tool_call_id}")
    recorded = usage_records.record_usage(
        usage_records.UsageCall(
            call_id=row_id,
            user_id=user_id,
            occurred_at=datetime.now(UTC),
            provider=provider,
            model="",
            tokens=None,
            reported=f"{Decimal(cost_microdollars).scaleb(-6):f}",
            purpose=TOOL_PURPOSE,
            session_ref=str(session_id),
            turn_ref=str(turn_id),
        )
    )
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_modelcall (id, turn_id, number, purpose, provider, model, cost_microdollars,
                                           cost_source, ended_at)
            VALUES (%s, %s, %s, %s, %s, '', %s, %s, now()) ON CONFLICT DO NOTHING
            """,
            [
                row_id,
                turn_id,
                FIRST_TOOL_CALL_NUMBER + row_id.int % FIRST_TOOL_CALL_NUMBER,
                TOOL_PURPOSE,
                provider,
                recorded.cost_microdollars,
                recorded.source,
            ],
        )


def withdraw_unsent_call(turn_id: UUID, number: int) -> None:
    ModelCall.objects.open().filter(turn=turn_id, number=number).update(ended_at=Now(), aborted=True)


def get_last_model(turn_id: UUID) -> tuple[str, str] | None:
    calls = ModelCall.objects.filter(turn=turn_id, purpose=REPLY_PURPOSE).order_by("-number")
    return calls.values_list("provider", "model").first()


@dataclass(frozen=True, kw_only=True)
class EarlierUsage:
    """Usage of a turn's earlier runs, as far as their calls came to an end."""

    rounds: int = 0  # without retries, summaries, continuations of cut texts and calls of lost workers
    cut_texts: int = 0  # by the output limit
    tokens: Tokens = field(default_factory=Tokens)
    generation_seconds: float = 0.0
    first_token_at: datetime | None = None


_SELECT_EARLIER_USAGE = """
SELECT count(*) FILTER (WHERE NOT aborted AND ending NOT IN ('cut', 'refused', 'context_overflow')) AS rounds,
       count(*) FILTER (WHERE ending = 'cut') AS cut_texts,
       COALESCE(sum(input_tokens), 0)::bigint AS input, COALESCE(sum(cache_read_tokens), 0)::bigint AS cache_read,
       COALESCE(sum(cache_write_5m_tokens), 0)::bigint AS cache_write_5m,
       COALESCE(sum(cache_write_1h_tokens), 0)::bigint AS cache_write_1h,
       COALESCE(sum(output_tokens), 0)::bigint AS output, COALESCE(sum(reasoning_tokens), 0)::bigint AS reasoning,
       COALESCE(sum(latency_ms - first_token_ms), 0)::float8 / 1000 AS generation_seconds,
       min(created_at + first_token_ms * interval '1 millisecond') AS first_token_at
FROM copilot_modelcall WHERE turn_id = %(turn)s AND purpose = 'reply' AND ended_at IS NOT NULL
"""


class _UsageRow(NamedTuple):
    rounds: int
    cut_texts: int
    input: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    output: int
    reasoning: int
    generation_seconds: float
    first_token_at: datetime | None


def get_earlier_usage(turn_id: UUID) -> EarlierUsage:
    row = fetch_one(_UsageRow, _SELECT_EARLIER_USAGE, {"turn": turn_id})
    assert row is not None  # an aggregate has one row
    return EarlierUsage(
        rounds=row.rounds,
        cut_texts=row.cut_texts,
        tokens=Tokens(
            input=row.input,
            cache_read=row.cache_read,
            cache_write_5m=row.cache_write_5m,
            cache_write_1h=row.cache_write_1h,
            output=row.output,
            reasoning=row.reasoning,
        ),
        generation_seconds=row.generation_seconds,
        first_token_at=row.first_token_at,
    )


@dataclass(frozen=True, kw_only=True)
class SentCall:
    """A request that an earlier run of the turn sent."""

    number: int
    purpose: str
    provider: str
    model: str
    ending: str
    partial: bool
    created_at: datetime
    ended_at: datetime | None


def list_sent_calls(turn_id: UUID) -> list[SentCall]:
    calls = ModelCall.objects.filter(turn=turn_id, number__lt=FIRST_TOOL_CALL_NUMBER)
    sent = calls.exclude(ended_at__isnull=False, latency_ms=None).order_by("number")
    return [
        SentCall(
            number=call.number,
            purpose=call.purpose,
            provider=call.provider,
            model=call.model,
            ending=call.ending,
            partial=call.partial,
            created_at=call.created_at,
            ended_at=call.ended_at,
        )
        for call in sent
    ]


def was_final_answer(turn_id: UUID, number: int) -> bool:
    calls = ModelCall.objects.filter(turn=turn_id, number=number, purpose=REPLY_PURPOSE)
    return calls.filter(ending__in=["answered", "cut"]).exists()


def _record_cost(call: FinishedCall) -> usage_records.RecordedUsage:
    return usage_records.record_usage(
        usage_records.UsageCall(
            call_id=call.call_id,
            user_id=call.user_id,
            occurred_at=call.ended_at,
            provider=call.provider,
            model=call.model,
            tokens=pricing.TokenCounts(
                input=call.tokens.input,
                output=call.tokens.output,
                cache_read=call.tokens.cache_read,
                cache_write_5m=call.tokens.cache_write_5m,
                cache_write_1h=call.tokens.cache_write_1h,
            ),
            reported=call.cost,
            purpose=call.purpose,
            session_ref=str(call.session_id),
            turn_ref="" if call.turn_id is None else str(call.turn_id),
            estimated=call.estimated,
            aborted=call.aborted,
        )
    )


# --- Lost calls --------------------------------------------------------------------------------------

EXCERPT_PURPOSES = ("title", "goal")  # calls that read only an excerpt of the session …
EXCERPT_TOKENS = 500  # … of about this size
FORGOTTEN_CALL_AGE = timedelta(minutes=10)  # longer than any call lives beyond its turn
LOST_CALL_EVENTS_READ = 1_000  # a call without rows has published little more than its step
CHARACTERS_PER_TOKEN = 4  # an estimate; exact counts come from the provider


def record_lost_calls(turn_id: UUID) -> None:
    """Record the open calls of a lost run as aborted, at an estimate if they were sent.

    Should the worker be alive after all, what it records later has the same id and changes nothing.
    """
    for call in _open_calls().filter(turn=turn_id):
        if _was_sent(call):
            _record_at_estimate(call)
        else:
            withdraw_unsent_call(turn_id, call.number)


def record_forgotten_calls(*, turns_of: timedelta) -> int:
    """Record open calls that nobody comes back to: of turns that ended a while ago, and of side questions.

    `turns_of` is how far back to look: often only at turns that ended just now, sometimes at a whole day.
    """
    cutoff = Now() - FORGOTTEN_CALL_AGE
    of_turns = Q(turn__ended_at__lt=cutoff, turn__ended_at__gt=Now() - FORGOTTEN_CALL_AGE - turns_of)
    calls = _open_calls().filter(created_at__lt=cutoff)
    forgotten = [*calls.filter(of_turns)[:200], *calls.filter(session__isnull=False)[:200]]
    for call in forgotten:
        _record_at_estimate(call)
    return len(forgotten)


def _open_calls() -> QuerySet[ModelCall]:
    return ModelCall.objects.open().select_related("turn__session", "session")


def _record_at_estimate(call: ModelCall) -> None:
    session = call.session if call.turn is None else call.turn.session
    assert session is not None  # a database constraint
    finished = FinishedCall(
        call_id=call.pk,
        turn_id=call.turn_id,
        session_id=session.pk,
        user_id=session.owner_id,
        ended_at=datetime.now(UTC),
        provider=call.provider,
        model=call.model,
        tokens=_estimate_tokens(session.pk)
        if call.purpose not in EXCERPT_PURPOSES
        else Tokens(input=EXCERPT_TOKENS),
        cost=None,
        estimated=True,
        aborted=True,
        refused_before_work=False,
        latency_ms=0,
        first_token_ms=None,
        response_id="",
        purpose=call.purpose,
    )
    finish_model_call(finished)


def _was_sent(call: ModelCall) -> bool:
    """Tell whether the call left any trace in rows or events.

    An unreadable log counts as yes: no cost may be lost.
    """
    rows = Message.objects.filter(turn=call.turn_id, created_at__gt=call.created_at)
    if call.turn is None or call.purpose != REPLY_PURPOSE:
        return True
    if rows.filter(kind__in=["assistant", "reasoning", "tool_call"]).exists() or _continues_cut_text(call):
        return True
    try:
        recent = event_log.read_recent(str(call.turn.session_id), count=LOST_CALL_EVENTS_READ)
    except REDIS_OUTAGE_ERRORS:
        return True
    if not recent or recent[0].place[0] / 1000 > call.created_at.timestamp():
        return True
    turn_field = f'"turn_id":"{call.turn_id}"'
    steps = (
        decode_event(entry.payload)
        for entry in recent
        if entry.kind == "step.started" and turn_field in entry.payload
    )
    return any(isinstance(step, StepStarted) and step.call == call.number for step in steps)


def _continues_cut_text(call: ModelCall) -> bool:
    """Tell whether the call continues a text that the output limit cut, and so has no step of its own."""
    open_text = Message.objects.filter(turn=call.turn_id, kind="assistant", streaming=True)
    before = ModelCall.objects.filter(turn=call.turn_id, number=call.number - 1, ending="cut")
    return open_text.exists() and before.exists()


def _estimate_tokens(session_id: UUID) -> Tokens:
    """Estimate tokens by characters: finished messages were input, streaming ones output."""
    rows = Message.objects.visible().filter(session=session_id)
    sums = rows.aggregate(
        given=Sum(Length("content"), filter=Q(streaming=False), default=0),
        made=Sum(Length("content"), filter=Q(streaming=True), default=0),
    )
    return Tokens(input=sums["given"] // CHARACTERS_PER_TOKEN, output=sums["made"] // CHARACTERS_PER_TOKEN)
