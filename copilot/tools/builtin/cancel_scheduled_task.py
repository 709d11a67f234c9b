"""The `cancel_scheduled_task` tool: cancel one of the user's scheduled tasks."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from config.core.db import run_in_thread
from copilot.schedules import services as schedules
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description


class CancelScheduledTask(ToolArguments):
    id: UUID = Field(description="As list_scheduled_tasks or schedule_task gave it.")


async def cancel_scheduled_task(arguments: CancelScheduledTask, invocation: ToolInvocation) -> ToolOutput:
    await run_in_thread(schedules.cancel_schedule, invocation.context.user_id, arguments.id)
    return ToolOutput(value="Cancelled: it will not run again.")


TOOL = Tool(
    name="cancel_scheduled_task",
    arguments=CancelScheduledTask,
    run=cancel_scheduled_task,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    schedules=True,
)
