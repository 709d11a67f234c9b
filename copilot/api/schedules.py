"""REST views for scheduled tasks: list, create, read, cancel, switch on again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse
from pydantic import Field, JsonValue
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json, respond_no_content
from config.core.errors import NotFound
from config.core.json_values import parse_uuid
from copilot.api.base import AuthenticatedApiView, CleanText, format_instant_or_none
from copilot.models import Schedule, ScheduleRun
from copilot.realtime import payloads
from copilot.schedules import services as schedules


class NewSchedule(RequestBody):
    """A prompt, or an agent with its inputs. Without a session, each run starts a new one."""

    prompt: Annotated[CleanText, Field(max_length=settings.MESSAGE_CHARACTERS)] = ""
    agent_id: Annotated[CleanText, Field(max_length=36)] | None = None
    inputs: dict[str, JsonValue] = {}
    cron: Annotated[CleanText, Field(max_length=100)]
    timezone: Annotated[CleanText, Field(max_length=64)] = "UTC"
    name: Annotated[CleanText, Field(max_length=schedules.MAX_NAME_CHARACTERS)] = ""
    session_id: Annotated[CleanText, Field(max_length=36)] | None = None


@dataclass(frozen=True, kw_only=True)
class RunShown:
    """`outcome` is one of started, succeeded, failed, cancelled, skipped, refused."""

    due_at: str
    outcome: str
    reason: str
    turn_id: str | None


@dataclass(frozen=True, kw_only=True)
class ScheduleShown:
    """`next_runs` are in the task's time zone; the list is empty once the task is off (see `disabled_reason`)."""

    id: str
    name: str
    prompt: str
    agent_id: str | None
    inputs: dict[str, Any]  # in the form of the agent's schema
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


class SchedulesView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("List your scheduled tasks", answers={200: Schedules})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(
            Schedules(items=_serialize_schedules(list(schedules.list_schedules(self.caller_id))))
        )

    @document_operation("Schedule a task", answers={201: ScheduleShown}, body=NewSchedule)
    def post(self, request: Request) -> HttpResponse:
        body = parse_body(request, NewSchedule)
        schedule = schedules.create_schedule(
            self.caller_id,
            schedules.ScheduleRequest(
                prompt=body.prompt,
                agent_id=_parse_optional_id(body.agent_id),
                inputs=body.inputs,
                cron=body.cron,
                timezone=body.timezone,
                name=body.name,
                session_id=_parse_optional_id(body.session_id),
            ),
            self.turn_permissions,
        )
        schedule.refresh_from_db()
        return respond_json(_serialize_schedules([schedule])[0], 201)


class ScheduleView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("Read a task", answers={200: ScheduleShown})
    def get(self, request: Request, schedule_id: UUID) -> HttpResponse:
        return respond_json(_serialize_schedules([schedules.get_schedule(self.caller_id, schedule_id)])[0])

    @document_operation("Cancel a task permanently", answers={204: None})
    def delete(self, request: Request, schedule_id: UUID) -> HttpResponse:
        schedules.cancel_schedule(self.caller_id, schedule_id)
        return respond_no_content()


class ScheduleSwitchOnView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("Switch a task on again after too many failures", answers={200: ScheduleShown})
    def post(self, request: Request, schedule_id: UUID) -> HttpResponse:
        return respond_json(_serialize_schedules([schedules.enable_schedule(self.caller_id, schedule_id)])[0])


def _parse_optional_id(text: str | None) -> UUID | None:
    if text is None:
        return None
    parsed = parse_uuid(text)
    if parsed is None:
        raise NotFound
    return parsed


def _serialize_schedules(rows: list[Schedule]) -> list[ScheduleShown]:
    runs = schedules.get_last_runs(rows)
    return [_serialize_schedule(row, runs.get(row.pk)) for row in rows]


def _serialize_schedule(row: Schedule, run: ScheduleRun | None) -> ScheduleShown:
    return ScheduleShown(
        id=str(row.pk),
        name=row.name,
        prompt=row.prompt,
        agent_id=str(row.agent_id) if row.agent_id else None,
        inputs=row.inputs,
        cron=row.cron,
        timezone=row.timezone,
        session_id=str(row.session_id) if row.session_id else None,
        next_run=format_instant_or_none(row.next_run),
        next_runs=schedules.list_next_runs(row),
        failures=row.failures,
        disabled_reason=row.disabled_reason,
        last_run=None if run is None else _serialize_run(run),
        created_at=payloads.format_timestamp(row.created_at),
    )


def _serialize_run(run: ScheduleRun) -> RunShown:
    return RunShown(
        due_at=payloads.format_timestamp(run.due_at),
        outcome=run.outcome,
        reason=run.reason,
        turn_id=str(run.turn_id) if run.turn_id else None,
    )
