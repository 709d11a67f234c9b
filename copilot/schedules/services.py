"""Create, cancel and claim schedules, and record their runs. The only writer of Schedule and ScheduleRun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from config.core.errors import Conflict, InvalidRequest, NotFound
from config.core.json_values import JSON
from copilot.agents import services as agents
from copilot.chat.commands import validate_text
from copilot.chat.permissions import Permissions
from copilot.chat.prompt_tags import strip_server_tags
from copilot.chat.turn_context import InboundContext
from copilot.models import AgentVersion, Schedule, ScheduleRun, Session
from copilot.schedules import cron
from copilot.tools import json_schema

MAX_ACTIVE_SCHEDULES = 20
MAX_CONSECUTIVE_FAILURES = 5
MAX_NAME_CHARACTERS = 100
MAX_DUE_PER_TICK = 200  # the rest is due in the next tick
SHOWN_NEXT_RUNS = 3

ACTIVE_SCHEDULES = Q(cancelled_at=None, next_run__isnull=False)
RUN_STARTED = ScheduleRun.Outcome.STARTED


@dataclass(frozen=True, kw_only=True)
class ScheduleRequest:
    """A schedule to create. Without a session each run starts a new one."""

    cron: str
    timezone: str
    prompt: str = ""  # either a prompt, or an agent with its inputs
    agent_id: UUID | None = None
    inputs: Mapping[str, JSON] = field(default_factory=dict)
    name: str = ""
    session_id: UUID | None = None
    # Where runs answer besides the session.
    inbound_context: InboundContext = field(default_factory=InboundContext)


# --- Create and cancel -------------------------------------------------------------------------------


def create_schedule(owner_id: int, request: ScheduleRequest, permissions: Permissions) -> Schedule:
    """Create a schedule. No run will have more than the given `permissions`."""
    prompt = validate_text(request.prompt).strip()
    agent = _check_agent(owner_id, request)
    if bool(prompt) == (agent is not None):
        raise InvalidRequest(
            "A task needs either a prompt or an agent.", code="empty_message", field="prompt"
        )
    expression = cron.parse_cron(request.cron, request.timezone)
    if request.session_id is not None:
        _check_own_session(owner_id, request.session_id)
    with transaction.atomic():
        _check_capacity(owner_id)
        return Schedule.objects.create(
            owner_id=owner_id,
            session_id=request.session_id,
            name=_make_name(request.name, prompt or (agent.name if agent else "")),
            prompt=prompt,
            agent_id=request.agent_id,
            inputs=dict(request.inputs),
            cron=expression.line,
            timezone=request.timezone,
            permissions=permissions.to_json(),
            inbound_context=_serialize_inbound_context(request.inbound_context),
            next_run=expression.next_after(datetime.now(UTC)),
        )


def _serialize_inbound_context(inbound_context: InboundContext) -> dict[str, JSON]:
    """Keep where runs answer and the origins of untrusted text; the rest belonged to that request."""
    if inbound_context.reply is None and not inbound_context.sources:
        return {}
    kept: dict[str, JSON] = msgspec.to_builtins(inbound_context)
    return kept


def _check_agent(owner_id: int, request: ScheduleRequest) -> AgentVersion | None:
    """Check that the agent's current version accepts these inputs. It is checked again at each run."""
    if request.agent_id is None:
        return None
    if request.session_id is not None:
        raise InvalidRequest("Agents always run in a new chat.", code="invalid_session")
    version = agents.get_version(owner_id, request.agent_id)
    agents.build_run_prompt(version, request.inputs)
    if not json_schema.is_storable(request.inputs):
        raise InvalidRequest("The inputs contain a character that can't be stored.", code="inputs_invalid")
    return version


def cancel_schedule(owner_id: int, schedule_id: UUID) -> None:
    """Cancel for good; a started run continues. Foreign and unknown ones are reported as not found."""
    rows = Schedule.objects.filter(pk=schedule_id, owner=owner_id, cancelled_at=None)
    if not rows.update(cancelled_at=Now(), next_run=None):
        raise NotFound("There is no such task.")


def update_schedule(owner_id: int, schedule_id: UUID, request: ScheduleRequest) -> Schedule:
    """Change name, prompt and time. What runs, where it answers and its permissions stay as they are."""
    prompt = validate_text(request.prompt).strip()
    expression = cron.parse_cron(request.cron, request.timezone)
    with transaction.atomic():
        schedule = _lock_schedule(owner_id, schedule_id)
        if not prompt and schedule.agent_id is None:
            raise InvalidRequest("A task needs a prompt.", code="empty_message", field="prompt")
        if schedule.agent_id is None:
            schedule.prompt = prompt
        schedule.name = _make_name(request.name, prompt or schedule.name)
        schedule.cron, schedule.timezone = expression.line, request.timezone
        if schedule.next_run is not None:
            schedule.next_run = expression.next_after(datetime.now(UTC))
        schedule.save(update_fields=["name", "prompt", "cron", "timezone", "next_run"])
    return schedule


def pause_schedule(owner_id: int, schedule_id: UUID) -> None:
    """Stop starting runs until it is turned on again; a started run continues."""
    rows = Schedule.objects.filter(pk=schedule_id, owner=owner_id, cancelled_at=None)
    if not rows.update(next_run=None, disabled_reason=""):
        raise NotFound("There is no such task.")


def _lock_schedule(owner_id: int, schedule_id: UUID) -> Schedule:
    schedule = list_schedules(owner_id).select_for_update().filter(pk=schedule_id).first()
    if schedule is None:
        raise NotFound("There is no such task.")
    return schedule


def enable_schedule(owner_id: int, schedule_id: UUID) -> Schedule:
    with transaction.atomic():
        _check_capacity(owner_id, excluding=schedule_id)
        schedule = _lock_schedule(owner_id, schedule_id)
        schedule.next_run = _parse_cron_of(schedule).next_after(datetime.now(UTC))
        schedule.failures, schedule.disabled_reason = 0, ""
        schedule.save(update_fields=["next_run", "failures", "disabled_reason"])
    return schedule


def _check_own_session(owner_id: int, session_id: UUID) -> None:
    if not Session.objects.visible_to(owner_id).filter(pk=session_id).exists():
        raise NotFound


def _check_capacity(owner_id: int, excluding: UUID | None = None) -> None:
    """Serialise creations per user, so that the limit holds."""
    User.objects.select_for_update(no_key=True).get(pk=owner_id)
    active = Schedule.objects.filter(ACTIVE_SCHEDULES, owner=owner_id)
    if (active.exclude(pk=excluding) if excluding else active).count() >= MAX_ACTIVE_SCHEDULES:
        raise Conflict(
            f"You can have up to {MAX_ACTIVE_SCHEDULES} active tasks. Cancel one first.",
            code="too_many_schedules",
        )


def _make_name(name: str, prompt: str) -> str:
    clean = " ".join(strip_server_tags(name).split()) or " ".join(prompt.split())
    return clean if len(clean) <= MAX_NAME_CHARACTERS else clean[: MAX_NAME_CHARACTERS - 1].rstrip() + "…"


# --- Read --------------------------------------------------------------------------------------------


def list_schedules(owner_id: int) -> QuerySet[Schedule]:
    """Return schedules that are not cancelled, the next one first and disabled ones last."""
    rows = Schedule.objects.filter(owner=owner_id, cancelled_at=None)
    return rows.order_by(F("next_run").asc(nulls_last=True), "created_at", "pk")


def get_schedule(owner_id: int, schedule_id: UUID) -> Schedule:
    found = list_schedules(owner_id).filter(pk=schedule_id).first()
    if found is None:
        raise NotFound("There is no such task.")
    return found


def list_next_runs(schedule: Schedule) -> list[str]:
    return (
        _parse_cron_of(schedule).format_next(datetime.now(UTC), SHOWN_NEXT_RUNS) if schedule.next_run else []
    )


def get_last_runs(schedules: list[Schedule]) -> dict[UUID, ScheduleRun]:
    runs = ScheduleRun.objects.filter(schedule__in=schedules).order_by("schedule_id", "-due_at", "-pk")
    runs = runs.select_related("turn")
    return {run.schedule_id: run for run in runs.distinct("schedule_id")}


def list_runs(schedule: Schedule) -> QuerySet[ScheduleRun]:
    return ScheduleRun.objects.filter(schedule=schedule).select_related("turn").order_by("-due_at", "-pk")


def _parse_cron_of(schedule: Schedule) -> cron.CronExpression:
    return cron.parse_cron(schedule.cron, schedule.timezone)


# --- Runs --------------------------------------------------------------------------------------------


def list_due_schedules(now: datetime) -> list[Schedule]:
    rows = Schedule.objects.filter(ACTIVE_SCHEDULES, next_run__lte=now).select_related("owner")
    return list(rows.order_by("next_run", "pk")[:MAX_DUE_PER_TICK])


def claim_run(schedule: Schedule, now: datetime) -> ScheduleRun | None:
    """Claim the due run, or return None if another process was faster. Missed runs are made up once."""
    assert schedule.next_run is not None
    with transaction.atomic():
        rows = Schedule.objects.filter(ACTIVE_SCHEDULES, pk=schedule.pk, next_run=schedule.next_run)
        if not rows.update(next_run=_parse_cron_of(schedule).next_after(now)):
            return None
        return ScheduleRun.objects.create(schedule=schedule, due_at=schedule.next_run, outcome=RUN_STARTED)


def create_manual_run(schedule: Schedule) -> ScheduleRun:
    """Create a run that is due now, beside those of the schedule."""
    with transaction.atomic():
        _lock_schedule(schedule.owner_id, schedule.pk)
        if ScheduleRun.objects.filter(schedule=schedule, outcome=RUN_STARTED).exists():
            raise Conflict("The previous run is still in progress.", code="conflict")
        return ScheduleRun.objects.create(schedule=schedule, due_at=datetime.now(UTC), outcome=RUN_STARTED)


def list_runs_to_finish() -> list[ScheduleRun]:
    """Return runs whose outcome is to be recorded, skipping those whose turn has not ended."""
    over = Q(turn=None) | Q(turn__ended_at__isnull=False)
    rows = ScheduleRun.objects.filter(over, outcome=RUN_STARTED).select_related("schedule", "turn")
    return list(rows.order_by("pk")[: 5 * MAX_DUE_PER_TICK])


def has_earlier_run(run: ScheduleRun) -> bool:
    earlier = ScheduleRun.objects.filter(schedule=run.schedule_id, outcome=RUN_STARTED, pk__lt=run.pk)
    return earlier.exists()


def attach_turn(run: ScheduleRun, turn_id: UUID) -> None:
    ScheduleRun.objects.filter(pk=run.pk).update(turn=turn_id)


def record_outcome(
    run: ScheduleRun, outcome: ScheduleRun.Outcome, reason: str = "", *, counts: bool = True
) -> bool:
    """Record the outcome once. Return True if this failure disabled the schedule."""
    if not ScheduleRun.objects.filter(pk=run.pk, outcome=RUN_STARTED).update(
        outcome=outcome, reason=reason[:200]
    ):
        return False
    task = Schedule.objects.filter(pk=run.schedule_id)
    if outcome == ScheduleRun.Outcome.SUCCEEDED:
        task.update(failures=0)
    if not counts or outcome not in (ScheduleRun.Outcome.FAILED, ScheduleRun.Outcome.REFUSED):
        return False
    task.update(failures=F("failures") + 1)
    disabled_reason = f"It failed {MAX_CONSECUTIVE_FAILURES} times in a row. Last error: {reason}"[:200]
    return bool(
        task.filter(ACTIVE_SCHEDULES, failures__gte=MAX_CONSECUTIVE_FAILURES).update(
            next_run=None, disabled_reason=disabled_reason
        )
    )


def disable_schedule(schedule_id: UUID, reason: str) -> bool:
    """Disable a schedule that can no longer run. Return False if it is already disabled."""
    return bool(
        Schedule.objects.filter(ACTIVE_SCHEDULES, pk=schedule_id).update(
            next_run=None, disabled_reason=reason[:200]
        )
    )


def cancel_disabled_schedules(schedule_ids: list[UUID]) -> int:
    return Schedule.objects.filter(pk__in=schedule_ids, next_run=None, cancelled_at=None).update(
        cancelled_at=Now()
    )


def disable_all_schedules(owner_id: int, reason: str) -> None:
    Schedule.objects.filter(owner=owner_id, next_run__isnull=False).update(
        next_run=None, disabled_reason=reason
    )


def erase_schedules(owner_id: int) -> int:
    removed, _ = Schedule.objects.filter(owner=owner_id).delete()
    return removed
