"""The `list_scheduled_tasks` tool: list the user's scheduled tasks."""

from __future__ import annotations

from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.models import Schedule, ScheduleRun
from copilot.schedules import services as schedules
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description

MAX_PROMPT_CHARACTERS = 300


class ListScheduledTasks(ToolArguments):
    pass


async def list_scheduled_tasks(arguments: ListScheduledTasks, invocation: ToolInvocation) -> ToolOutput:
    return await run_in_thread(_list_tasks, invocation.context.user_id)


def _list_tasks(owner_id: int) -> ToolOutput:
    rows = list(schedules.list_schedules(owner_id))
    runs = schedules.get_last_runs(rows)
    sources = dict.fromkeys(source for row in rows for source in row.inbound_context.get("sources", ()))
    return ToolOutput(
        value={"tasks": [_describe_task(row, runs.get(row.pk)) for row in rows]}, sources=tuple(sources)
    )


def _describe_task(row: Schedule, run: ScheduleRun | None) -> JSON:
    return {
        "id": str(row.pk),
        "name": row.name,
        "prompt": row.prompt[:MAX_PROMPT_CHARACTERS],
        "agent_id": str(row.agent_id) if row.agent_id else None,
        "cron": row.cron,
        "timezone": row.timezone,
        "next_runs": list(schedules.list_next_runs(row)),
        "switched_off": row.disabled_reason or None,
        "last_run": None if run is None else {"due": run.due_at.isoformat(), "outcome": run.outcome},
    }


TOOL = Tool(
    name="list_scheduled_tasks",
    arguments=ListScheduledTasks,
    run=list_scheduled_tasks,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
    schedules=True,
)
