"""The `schedule_task` tool: schedule a task after a person approved it."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self
from uuid import UUID

from django.conf import settings
from pydantic import Field, JsonValue, StringConstraints, model_validator

from config.core.db import run_in_thread
from config.core.errors import InvalidRequest
from config.core.json_values import JSON
from config.core.redaction import redact_secret_patterns
from copilot.agents import services as agents
from copilot.chat.provenance import list_session_sources
from copilot.chat.turn_context import InboundContext, TurnContext
from copilot.schedules import cron
from copilot.schedules import services as schedules
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, guard_always, load_description

RESULT_PLACES = {
    "this": "This conversation.",
    "new": "A new conversation for every run, named after the task.",
}

NO_DELIVERY_MESSAGE = (
    "Nothing was scheduled: this chat cannot be told of anything later. Schedule it in a new conversation, "
    "and say that its results are found on the web; or do what can be done now."
)


class ScheduleTask(ToolArguments):
    prompt: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=settings.MESSAGE_CHARACTERS)
    ] = Field(default="", description="What to do at each run, complete in itself.")
    agent_id: UUID | None = Field(default=None, description="Instead of a prompt: the agent that runs.")
    inputs: dict[str, JsonValue] = Field(default={}, description="As the agent's schema asks for them.")
    cron: str = Field(max_length=100, description="Five fields: minute hour day month weekday.")
    timezone: str = Field(max_length=64, description="IANA name, such as Europe/Berlin.")
    name: str = Field(default="", max_length=schedules.MAX_NAME_CHARACTERS)
    session: Literal["this", "new"] = Field(default="new", description="Where the runs take place.")

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        """Validate before a person is asked, so that nobody approves an impossible schedule."""
        if bool(self.prompt) == (self.agent_id is not None):
            raise ValueError("give either a prompt or an agent_id")
        try:
            cron.parse_cron(self.cron, self.timezone)
        except InvalidRequest as problem:
            raise ValueError(problem.message) from problem
        return self


async def schedule_task(arguments: ScheduleTask, invocation: ToolInvocation) -> ToolOutput:
    context = invocation.context
    in_this_session = arguments.session == "this"
    if in_this_session and context.reply is not None and not context.channel.async_delivery:
        return ToolOutput(value={"delivery_unsupported": True, "error": NO_DELIVERY_MESSAGE}, success=False)
    sources = await run_in_thread(list_session_sources, UUID(context.session_id))
    inbound_context = context.inbound_context if in_this_session else InboundContext()
    request = schedules.ScheduleRequest(
        prompt=redact_secret_patterns(arguments.prompt),
        agent_id=arguments.agent_id,
        inputs=arguments.inputs,
        cron=arguments.cron,
        timezone=arguments.timezone,
        name=arguments.name,
        session_id=UUID(context.session_id) if in_this_session else None,
        inbound_context=replace(inbound_context, sources=sources, api_request=None),
    )
    schedule = await run_in_thread(schedules.create_schedule, context.user_id, request, context.permissions)
    return ToolOutput(
        value={
            "id": str(schedule.pk),
            "name": schedule.name,
            "next_runs": list(schedules.list_next_runs(schedule)),
            "results_appear_in": RESULT_PLACES[arguments.session],
        }
    )


def _pin_arguments(arguments: ScheduleTask, context: TurnContext) -> dict[str, JSON]:
    if arguments.agent_id is None:
        return {}
    return {"version": agents.get_version(context.user_id, arguments.agent_id).number}


TOOL = Tool(
    name="schedule_task",
    arguments=ScheduleTask,
    run=schedule_task,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    schedules=True,
    approval="manual_only",
    pins=_pin_arguments,
    guard=guard_always("Allow this scheduled task?"),
)
