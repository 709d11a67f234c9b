"""Lets the model see which of the user's tasks run by the clock (A26.1)."""

from __future__ import annotations

from copilot import schedules
from copilot.bridge import in_thread
from copilot.events import JSON
from copilot.models import Schedule, ScheduleRun
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose

PROMPT_CHARACTERS = 300


class ListScheduledTasks(Arguments):
    pass


async def list_scheduled_tasks(arguments: ListScheduledTasks, invocation: Invocation) -> ToolOutput:
    return await in_thread(_listed, invocation.context.user_id)


def _listed(owner_id: int) -> ToolOutput:
    rows = list(schedules.of_owner(owner_id))
    runs = schedules.last_runs(rows)
    sources = dict.fromkeys(source for row in rows for source in row.arrival.get("sources", ()))
    return ToolOutput(value={"tasks": [_task(row, runs.get(row.pk)) for row in rows]}, sources=tuple(sources))


def _task(row: Schedule, run: ScheduleRun | None) -> JSON:
    return {
        "id": str(row.pk),
        "name": row.name,
        "prompt": row.prompt[:PROMPT_CHARACTERS],
        "agent_id": str(row.agent_id) if row.agent_id else None,
        "cron": row.cron,
        "timezone": row.timezone,
        "next_runs": list(schedules.next_runs(row)),
        "switched_off": row.disabled_reason or None,
        "last_run": None if run is None else {"due": run.due_at.isoformat(), "outcome": run.outcome},
    }


TOOL = Tool(
    name="list_scheduled_tasks",
    arguments=ListScheduledTasks,
    run=list_scheduled_tasks,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
    schedules=True,
)
