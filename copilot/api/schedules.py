"""Tasks that run by the clock, over REST: list, make, read, cancel, switch on again (A26)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse
from pydantic import Field, JsonValue
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import queries, schedules
from copilot.api.doors import Door, instant_if
from copilot.api.parsing import Body, Clean, body_of
from copilot.commands import as_uuid
from copilot.errors import NotFound
from copilot.models import Schedule, ScheduleRun


class NewSchedule(Body):
    """A prompt, or an agent with its inputs; without a session each run begins a new one."""

    prompt: Annotated[Clean, Field(max_length=settings.MESSAGE_CHARACTERS)] = ""
    agent_id: Annotated[Clean, Field(max_length=36)] | None = None
    inputs: dict[str, JsonValue] = {}
    cron: Annotated[Clean, Field(max_length=100)]
    timezone: Annotated[Clean, Field(max_length=64)] = "UTC"
    name: Annotated[Clean, Field(max_length=schedules.NAME_CHARACTERS)] = ""
    session_id: Annotated[Clean, Field(max_length=36)] | None = None


@dataclass(frozen=True, kw_only=True)
class RunShown:
    """`outcome`: started, succeeded, failed, cancelled, skipped, refused."""

    due_at: str
    outcome: str
    reason: str
    turn_id: str | None


@dataclass(frozen=True, kw_only=True)
class ScheduleShown:
    """`next_runs` on the clock of its zone; none once it is off, which `disabled_reason` explains."""

    id: str
    name: str
    prompt: str
    agent_id: str | None
    inputs: dict[str, Any]  # as the agent's schema asks for them
    cron: str
    timezone: str
    session_id: str | None
    next_run: str | None
    next_runs: list[str]
    failures: int
    disabled_reason: str
    last_run: RunShown | None
    created_at: str


@dataclass(frozen=True, kw_only=True)
class Schedules:
    items: list[ScheduleShown]


class SchedulesView(Door):
    write_scopes = ("manage",)

    @operation("List tasks that run by the clock", answers={200: Schedules})
    def get(self, request: Request) -> HttpResponse:
        return answer(Schedules(items=_all(list(schedules.of_owner(self.caller_id)))))

    @operation("Let a task run by the clock", answers={201: ScheduleShown}, body=NewSchedule)
    def post(self, request: Request) -> HttpResponse:
        asked = body_of(request, NewSchedule)
        made = schedules.create(
            self.caller_id,
            schedules.Asked(
                prompt=asked.prompt,
                agent_id=_id(asked.agent_id),
                inputs=asked.inputs,
                cron=asked.cron,
                timezone=asked.timezone,
                name=asked.name,
                session_id=_id(asked.session_id),
            ),
            self.turn_permissions,
        )
        made.refresh_from_db()
        return answer(_all([made])[0], 201)


class ScheduleView(Door):
    write_scopes = ("manage",)

    @operation("Read a task", answers={200: ScheduleShown})
    def get(self, request: Request, schedule_id: UUID) -> HttpResponse:
        return answer(_all([schedules.get(self.caller_id, schedule_id)])[0])

    @operation("Cancel a task for good", answers={204: None})
    def delete(self, request: Request, schedule_id: UUID) -> HttpResponse:
        schedules.cancel(self.caller_id, schedule_id)
        return nothing()


class ScheduleSwitchOnView(Door):
    write_scopes = ("manage",)

    @operation("Switch a task on again that failed too often", answers={200: ScheduleShown})
    def post(self, request: Request, schedule_id: UUID) -> HttpResponse:
        return answer(_all([schedules.switch_on(self.caller_id, schedule_id)])[0])


def _id(text: str | None) -> UUID | None:
    if text is None:
        return None
    found = as_uuid(text)
    if found is None:
        raise NotFound
    return found


def _all(rows: list[Schedule]) -> list[ScheduleShown]:
    runs = schedules.last_runs(rows)
    return [_shown(row, runs.get(row.pk)) for row in rows]


def _shown(row: Schedule, run: ScheduleRun | None) -> ScheduleShown:
    return ScheduleShown(
        id=str(row.pk),
        name=row.name,
        prompt=row.prompt,
        agent_id=str(row.agent_id) if row.agent_id else None,
        inputs=row.inputs,
        cron=row.cron,
        timezone=row.timezone,
        session_id=str(row.session_id) if row.session_id else None,
        next_run=instant_if(row.next_run),
        next_runs=schedules.next_runs(row),
        failures=row.failures,
        disabled_reason=row.disabled_reason,
        last_run=None if run is None else _run(run),
        created_at=queries.instant(row.created_at),
    )


def _run(run: ScheduleRun) -> RunShown:
    return RunShown(
        due_at=queries.instant(run.due_at),
        outcome=run.outcome,
        reason=run.reason,
        turn_id=str(run.turn_id) if run.turn_id else None,
    )
