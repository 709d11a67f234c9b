"""Turns over REST: how one stands, and waiting for its outcome (T10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import outcomes, queries
from copilot.api.doors import Door, StreamDoor, instant_if
from copilot.api.parsing import Query, query_of
from copilot.commands import checked_run_id
from copilot.models import Turn


class WaitQuery(Query):
    timeout: Annotated[float, Field(ge=0, le=outcomes.MAX_WAIT_SECONDS, allow_inf_nan=False)] = 60.0
    run_id: Annotated[str, Field(max_length=128)] | None = None


@dataclass(frozen=True, kw_only=True)
class TurnShown:
    id: str
    session_id: str
    status: str
    origin: str
    run_ids: list[str]
    tier: str
    mode: str
    model: str
    attempts: int
    created_at: str
    started_at: str | None
    ended_at: str | None
    failure_code: str | None
    limit_code: str | None
    cancel_reason: str | None


class TurnView(Door):
    @operation("Read a turn", answers={200: TurnShown})
    def get(self, request: Request, turn_id: UUID) -> HttpResponse:
        return answer(_shown(queries.turn_of(self.caller_id, turn_id)))


class WaitView(StreamDoor):
    @operation(
        "Wait for the outcome of a turn, or of the message `run_id`",
        answers={200: outcomes.Outcome},
        query=WaitQuery,
    )
    async def get(self, request: Request, turn_id: UUID) -> HttpResponse:  # type: ignore[override]
        asked = query_of(request, WaitQuery)
        outcome = await outcomes.wait(
            self.caller_id,
            turn_id,
            run_id=checked_run_id(asked.run_id),
            timeout_seconds=asked.timeout,
            connection=self.connection,
        )
        return answer(outcome)


def _shown(turn: Turn) -> TurnShown:
    return TurnShown(
        id=str(turn.id),
        session_id=str(turn.session_id),
        status=turn.status,
        origin=turn.origin,
        run_ids=list(turn.run_ids),
        tier=turn.tier or "standard",
        mode=turn.mode,
        model=turn.model,
        attempts=turn.attempts,
        created_at=queries.instant(turn.created_at),
        started_at=instant_if(turn.started_at),
        ended_at=instant_if(turn.ended_at),
        failure_code=turn.failure_code or None,
        limit_code=turn.limit_code or None,
        cancel_reason=turn.cancel_reason or None,
    )
