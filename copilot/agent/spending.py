"""The end of a model call as its row and billing keep it (A19.1)."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from copilot import usage
from copilot.agent.parts import ModelCallEnded


def spent_on(
    call: ModelCallEnded, *, turn_id: UUID | None, session_id: UUID, user_id: int, purpose: str = "reply"
) -> usage.Spent:
    """Made as the call ends: the moment decides in whose window its cost falls."""
    return usage.Spent(
        call_id=call.id,
        turn_id=turn_id,
        session_id=session_id,
        user_id=user_id,
        ended_at=datetime.now(UTC),
        provider=call.entry.provider,
        model=call.entry.model,
        tokens=call.tokens,
        cost=call.cost,
        estimated=call.estimated,
        aborted=call.aborted,
        refused_before_work=call.refused_before_work,
        latency_ms=call.latency_ms,
        first_token_ms=call.first_token_ms,
        response_id=call.response_id,
        purpose=purpose,
    )
