"""Model calls: the only writer of ModelCall. Written before the request, completed after it (A19)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid5

from django.db import connection
from django.db.models.functions import Now

from billing import pricing
from billing import usage as billing_usage
from copilot.events import Tokens
from copilot.models import ModelCall


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a call took, as the loop saw it."""

    call_id: UUID
    turn_id: UUID
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


def call_id(turn_id: UUID, number: int) -> UUID:
    """A call's id follows from its turn and number, so it can be recorded before anything else is known."""
    return uuid5(turn_id, str(number))


def begin(turn_id: UUID, number: int, provider: str, model: str) -> None:
    """The row stands before the request is sent; a number taken by an earlier run is left alone."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_modelcall (id, turn_id, number, provider, model) VALUES (%s, %s, %s, %s, %s)
            ON CONFLICT DO NOTHING
            """,
            [call_id(turn_id, number), turn_id, number, provider, model],
        )


def finish(spent: Spent) -> None:
    """Complete the call's row, and record its money with billing under the same id; repeating changes nothing."""
    recorded = None if spent.refused_before_work else _record(spent)
    ModelCall.objects.filter(pk=spent.call_id, turn=spent.turn_id).update(
        request_id=spent.response_id[:128],
        input_tokens=spent.tokens.input,
        cache_read_tokens=spent.tokens.cache_read,
        cache_write_5m_tokens=spent.tokens.cache_write_5m,
        cache_write_1h_tokens=spent.tokens.cache_write_1h,
        output_tokens=spent.tokens.output,
        reasoning_tokens=spent.tokens.reasoning,
        estimated=spent.estimated,
        aborted=spent.aborted,
        latency_ms=spent.latency_ms,
        first_token_ms=spent.first_token_ms,
        cost_microdollars=recorded.cost_microdollars if recorded else None,
        cost_source=recorded.source if recorded else "",
        ended_at=Now(),
    )


def _record(spent: Spent) -> billing_usage.Recorded:
    return billing_usage.record(
        billing_usage.UsageCall(
            call_id=spent.call_id,
            user_id=spent.user_id,
            occurred_at=spent.ended_at,
            provider=spent.provider,
            model=spent.model,
            tokens=pricing.Tokens(
                input=spent.tokens.input,
                output=spent.tokens.output,
                cache_read=spent.tokens.cache_read,
                cache_write_5m=spent.tokens.cache_write_5m,
                cache_write_1h=spent.tokens.cache_write_1h,
            ),
            reported=spent.cost,
            session_ref=str(spent.session_id),
            turn_ref=str(spent.turn_id),
            estimated=spent.estimated,
            aborted=spent.aborted,
        )
    )
