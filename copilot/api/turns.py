"""REST views for turns: read one, or wait for its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, parse_query
from config.core.api.views import document_operation, respond_json
from copilot.api.base import AuthenticatedApiView, StreamApiView, format_instant_or_none
from copilot.chat import selectors as chat_selectors
from copilot.chat import turn_results
from copilot.chat.commands import validate_run_id
from copilot.models import Turn
from copilot.realtime import payloads


class WaitQuery(QueryParams):
    timeout: Annotated[float, Field(ge=0, le=turn_results.MAX_WAIT_SECONDS, allow_inf_nan=False)] = 60.0
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


class TurnView(AuthenticatedApiView):
    @document_operation("Read a turn", answers={200: TurnShown})
    def get(self, request: Request, turn_id: UUID) -> HttpResponse:
        return respond_json(_serialize_turn(chat_selectors.get_turn(self.caller_id, turn_id)))


class WaitView(StreamApiView):
    @document_operation(
        "Wait until a turn ends; `run_id` waits for that message instead",
        answers={200: turn_results.TurnResult},
        query=WaitQuery,
    )
    async def get(self, request: Request, turn_id: UUID) -> HttpResponse:  # type: ignore[override]
        query = parse_query(request, WaitQuery)
        outcome = await turn_results.wait_for_turn(
            self.caller_id,
            turn_id,
            run_id=validate_run_id(query.run_id),
            timeout_seconds=query.timeout,
            connection=self.connection,
        )
        return respond_json(outcome)


def _serialize_turn(turn: Turn) -> TurnShown:
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
        created_at=payloads.format_timestamp(turn.created_at),
        started_at=format_instant_or_none(turn.started_at),
        ended_at=format_instant_or_none(turn.ended_at),
        failure_code=turn.failure_code or None,
        limit_code=turn.limit_code or None,
        cancel_reason=turn.cancel_reason or None,
    )
