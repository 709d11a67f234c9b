"""The end of a model call as its row and billing keep it (A19.1)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from uuid import UUID

from django.db import InterfaceError, OperationalError

from copilot import usage
from copilot.agent.parts import ModelCallEnded
from copilot.agent.ports import Clock, SystemClock
from copilot.bridge import in_thread

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
PATIENCE_SECONDS = 3_600.0  # B5.2: then the row stays open, and the sweep counts it at an estimate


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
        ending=call.ending,
        partial=call.partial,
    )


async def recorded(spent: usage.Spent, clock: Clock | None = None) -> str:
    """Row and money, tried under the same id until the database takes them; nobody's answer waits for it (A19.6).

    The answer says where billing took the cost from.
    """
    clock = clock or SystemClock()
    began, pause = clock.now(), FIRST_PAUSE_SECONDS
    while True:
        try:
            return await in_thread(usage.finish, spent)
        except (OperationalError, InterfaceError):
            if clock.now() - began > PATIENCE_SECONDS:
                log.exception("billing_leak: the cost of call %s could not be recorded", spent.call_id)
                return ""
            log.warning("the database is unreachable, the cost of a call is recorded later")
            await clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
