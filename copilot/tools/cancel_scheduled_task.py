"""Lets the model take a task off the clock (A26.1)."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from copilot import schedules
from copilot.bridge import in_thread
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, prose


class CancelScheduledTask(Arguments):
    id: UUID = Field(description="As list_scheduled_tasks or schedule_task gave it.")


async def cancel_scheduled_task(arguments: CancelScheduledTask, invocation: Invocation) -> ToolOutput:
    await in_thread(schedules.cancel, invocation.context.user_id, arguments.id)
    return ToolOutput(value="Cancelled: it will not run again.")


TOOL = Tool(
    name="cancel_scheduled_task",
    arguments=CancelScheduledTask,
    run=cancel_scheduled_task,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    schedules=True,
)
