"""Tasks that run by the clock: the only writer of Schedule and ScheduleRun (A26)."""

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
MAX_DUE_PER_TICK = 200  # of one tick; what is left is due in the next
SHOWN_NEXT_RUNS = 3

ACTIVE_SCHEDULES = Q(cancelled_at=None, next_run__isnull=False)
RUN_STARTED = ScheduleRun.Outcome.STARTED


@dataclass(frozen=True, kw_only=True)
class ScheduleRequest:
    """A task as somebody asks for it; without a session each run begins a new one (A26.1)."""

    cron: str
    timezone: str
    prompt: str = ""  # either this …
    agent_id: UUID | None = None  # … or an agent and what it asks for, in a conversation of its own each time
    inputs: Mapping[str, JSON] = field(default_factory=dict)
    name: str = ""
    session_id: UUID | None = None
    arrival: InboundContext = field(
        default_factory=InboundContext
    )  # where its runs answer besides the session (L16)


# --- people ------------------------------------------------------------------------------------------


def create_schedule(owner_id: int, asked: ScheduleRequest, permissions: Permissions) -> Schedule:
    """`permissions` are those of the moment: no run will have more (A26.2)."""
    prompt = validate_text(asked.prompt).strip()
    agent = _check_agent(owner_id, asked)
    if bool(prompt) == (agent is not None):
        raise InvalidRequest("A task needs either a prompt or an agent.", code="empty_message")
    line = cron.parse_cron(asked.cron, asked.timezone)
    if asked.session_id is not None:
        _check_own_session(owner_id, asked.session_id)
    with transaction.atomic():
        _check_capacity(owner_id)
        return Schedule.objects.create(
            owner_id=owner_id,
            session_id=asked.session_id,
            name=_make_name(asked.name, prompt or (agent.name if agent else "")),
            prompt=prompt,
            agent_id=asked.agent_id,
            inputs=dict(asked.inputs),
            cron=line.line,
            timezone=asked.timezone,
            permissions=permissions.to_json(),
            arrival=_serialize_arrival(asked.arrival),
            next_run=line.next_after(datetime.now(UTC)),
        )


def _serialize_arrival(arrival: InboundContext) -> dict[str, JSON]:
    """Where its runs answer, and the untrusted text it was made from; what else the way in said was of that moment."""
    if arrival.reply is None and not arrival.sources:
        return {}
    kept: dict[str, JSON] = msgspec.to_builtins(arrival)
    return kept


def _check_agent(owner_id: int, asked: ScheduleRequest) -> AgentVersion | None:
    """The agent as it is now, which takes these inputs; what it will be at a run is seen then."""
    if asked.agent_id is None:
        return None
    if asked.session_id is not None:
        raise InvalidRequest("An agent runs in conversations of its own.", code="invalid_session")
    version = agents.get_version(owner_id, asked.agent_id)
    agents.build_run_prompt(version, asked.inputs)
    if not json_schema.is_storable(asked.inputs):
        raise InvalidRequest("The inputs hold a character that cannot be kept.", code="inputs_invalid")
    return version


def cancel_schedule(owner_id: int, schedule_id: UUID) -> None:
    """For good; a run that has begun goes on. Foreign and unknown ones look the same."""
    mine = Schedule.objects.filter(pk=schedule_id, owner=owner_id, cancelled_at=None)
    if not mine.update(cancelled_at=Now(), next_run=None):
        raise NotFound("There is no such task.")


def enable_schedule(owner_id: int, schedule_id: UUID) -> Schedule:
    """Once more from the beginning, after failures had switched it off."""
    with transaction.atomic():
        _check_capacity(owner_id, besides=schedule_id)
        schedule = list_schedules(owner_id).select_for_update().filter(pk=schedule_id).first()
        if schedule is None:
            raise NotFound("There is no such task.")
        schedule.next_run = _parse_cron_of(schedule).next_after(datetime.now(UTC))
        schedule.failures, schedule.disabled_reason = 0, ""
        schedule.save(update_fields=["next_run", "failures", "disabled_reason"])
    return schedule


def _check_own_session(owner_id: int, session_id: UUID) -> None:
    if not Session.objects.filter(pk=session_id, owner=owner_id, deleted_at=None).exists():
        raise NotFound


def _check_capacity(owner_id: int, besides: UUID | None = None) -> None:
    """One at a time for each user, or two could pass the last free place."""
    User.objects.select_for_update(no_key=True).get(pk=owner_id)
    active = Schedule.objects.filter(ACTIVE_SCHEDULES, owner=owner_id)
    if (active.exclude(pk=besides) if besides else active).count() >= MAX_ACTIVE_SCHEDULES:
        raise Conflict(
            f"There are {MAX_ACTIVE_SCHEDULES} tasks already. Cancel one first.", code="too_many_schedules"
        )


def _make_name(name: str, prompt: str) -> str:
    clean = " ".join(strip_server_tags(name).split()) or " ".join(prompt.split())
    return clean if len(clean) <= MAX_NAME_CHARACTERS else clean[: MAX_NAME_CHARACTERS - 1].rstrip() + "…"


# --- reading -----------------------------------------------------------------------------------------


def list_schedules(owner_id: int) -> QuerySet[Schedule]:
    """Those that were not cancelled, the next one first; those switched off at the end."""
    rows = Schedule.objects.filter(owner=owner_id, cancelled_at=None)
    return rows.order_by(F("next_run").asc(nulls_last=True), "created_at", "pk")


def get_schedule(owner_id: int, schedule_id: UUID) -> Schedule:
    found = list_schedules(owner_id).filter(pk=schedule_id).first()
    if found is None:
        raise NotFound("There is no such task.")
    return found


def list_next_runs(schedule: Schedule) -> list[str]:
    """The next three, on the clock of its zone; none once it is off."""
    return (
        _parse_cron_of(schedule).format_next(datetime.now(UTC), SHOWN_NEXT_RUNS) if schedule.next_run else []
    )


def get_last_runs(schedules: list[Schedule]) -> dict[UUID, ScheduleRun]:
    """The newest run of each, in one statement."""
    runs = ScheduleRun.objects.filter(schedule__in=schedules).order_by("schedule_id", "-due_at", "-pk")
    runs = runs.select_related("turn")
    return {run.schedule_id: run for run in runs.distinct("schedule_id")}


def _parse_cron_of(schedule: Schedule) -> cron.CronExpression:
    return cron.parse_cron(schedule.cron, schedule.timezone)


# --- the clock ---------------------------------------------------------------------------------------


def list_due_schedules(now: datetime) -> list[Schedule]:
    rows = Schedule.objects.filter(ACTIVE_SCHEDULES, next_run__lte=now).select_related("owner")
    return list(rows.order_by("next_run", "pk")[:MAX_DUE_PER_TICK])


def claim_run(schedule: Schedule, now: datetime) -> ScheduleRun | None:
    """Take its due moment; None when another clock was quicker. What was missed before now runs once (A26.3)."""
    assert schedule.next_run is not None
    with transaction.atomic():
        mine = Schedule.objects.filter(ACTIVE_SCHEDULES, pk=schedule.pk, next_run=schedule.next_run)
        if not mine.update(next_run=_parse_cron_of(schedule).next_after(now)):
            return None
        return ScheduleRun.objects.create(schedule=schedule, due_at=schedule.next_run, outcome=RUN_STARTED)


def list_runs_to_finish() -> list[ScheduleRun]:
    """Runs whose end is to be written down: those that wait for a person must not stand in the others' way."""
    over = Q(turn=None) | Q(turn__ended_at__isnull=False)
    rows = ScheduleRun.objects.filter(over, outcome=RUN_STARTED).select_related("schedule", "turn")
    return list(rows.order_by("pk")[: 5 * MAX_DUE_PER_TICK])


def has_earlier_run(run: ScheduleRun) -> bool:
    """Whether an earlier run of the same task is still under way."""
    earlier = ScheduleRun.objects.filter(schedule=run.schedule_id, outcome=RUN_STARTED, pk__lt=run.pk)
    return earlier.exists()


def attach_turn(run: ScheduleRun, turn_id: UUID) -> None:
    ScheduleRun.objects.filter(pk=run.pk).update(turn=turn_id)


def record_outcome(
    run: ScheduleRun, outcome: ScheduleRun.Outcome, reason: str = "", *, counts: bool = True
) -> bool:
    """What became of a run, written once; True when it was the failure that switches its task off."""
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
    off = f"It failed {MAX_CONSECUTIVE_FAILURES} times in a row, at last with: {reason}"[:200]
    return bool(
        task.filter(ACTIVE_SCHEDULES, failures__gte=MAX_CONSECUTIVE_FAILURES).update(
            next_run=None, disabled_reason=off
        )
    )


def disable_schedule(schedule_id: UUID, reason: str) -> bool:
    """One that can no longer run (D11); False when it is off already."""
    return bool(
        Schedule.objects.filter(ACTIVE_SCHEDULES, pk=schedule_id).update(
            next_run=None, disabled_reason=reason[:200]
        )
    )


def cancel_disabled_schedules(schedule_ids: list[UUID]) -> int:
    """Those that were switched off long ago and are off still (D11)."""
    return Schedule.objects.filter(pk__in=schedule_ids, next_run=None, cancelled_at=None).update(
        cancelled_at=Now()
    )


def disable_all_schedules(owner_id: int, reason: str) -> None:
    """Nothing of this owner's runs by the clock any more, until each is switched on again (S17)."""
    Schedule.objects.filter(owner=owner_id, next_run__isnull=False).update(
        next_run=None, disabled_reason=reason
    )


def erase_schedules(owner_id: int) -> int:
    """Of an account that goes, with the record of their runs (S17)."""
    removed, _ = Schedule.objects.filter(owner=owner_id).delete()
    return removed
