"""Lets the model put a task on the clock, once a person has agreed (A26.1, A26.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, Self
from uuid import UUID

from django.conf import settings
from pydantic import Field, JsonValue, StringConstraints, model_validator

from copilot import cron, presets, schedules
from copilot.bridge import in_thread
from copilot.context import Arrival, TurnContext
from copilot.errors import InvalidRequest
from copilot.events import JSON
from copilot.provenance import sources_of_session
from copilot.redaction import redact_shapes
from copilot.tools.base import Arguments, Invocation, Tool, ToolOutput, guard_act, prose

WHERE = {"this": "This conversation.", "new": "A new conversation for every run, named after the task."}

NO_NEWS_HERE = (
    "Nothing was scheduled: this chat cannot be told of anything later. Schedule it in a new conversation, "
    "and say that its results are found on the web; or do what can be done now."
)


class ScheduleTask(Arguments):
    prompt: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=settings.MESSAGE_CHARACTERS)
    ] = Field(default="", description="What to do at each run, complete in itself.")
    agent_id: UUID | None = Field(default=None, description="Instead of a prompt: the agent that runs.")
    inputs: dict[str, JsonValue] = Field(default={}, description="As the agent's schema asks for them.")
    cron: str = Field(max_length=100, description="Five fields: minute hour day month weekday.")
    timezone: str = Field(max_length=64, description="IANA name, such as Europe/Berlin.")
    name: str = Field(default="", max_length=schedules.NAME_CHARACTERS)
    session: Literal["this", "new"] = Field(default="new", description="Where the runs take place.")

    @model_validator(mode="after")
    def _comes_true(self) -> Self:
        """Before a person is asked: nobody is to approve what cannot be."""
        if bool(self.prompt) == (self.agent_id is not None):
            raise ValueError("give either a prompt or an agent_id")
        try:
            cron.read(self.cron, self.timezone)
        except InvalidRequest as problem:
            raise ValueError(problem.message) from problem
        return self


async def schedule_task(arguments: ScheduleTask, invocation: Invocation) -> ToolOutput:
    context = invocation.context
    here = arguments.session == "this"
    if here and context.reply is not None and not context.channel.async_delivery:
        return ToolOutput(value={"delivery_unsupported": True, "error": NO_NEWS_HERE}, success=False)
    sources = await in_thread(sources_of_session, UUID(context.session_id))
    arrival = context.arrival if here else Arrival()
    asked = schedules.Asked(
        prompt=redact_shapes(arguments.prompt),
        agent_id=arguments.agent_id,
        inputs=arguments.inputs,
        cron=arguments.cron,
        timezone=arguments.timezone,
        name=arguments.name,
        session_id=UUID(context.session_id) if here else None,
        arrival=replace(arrival, sources=sources),
    )
    made = await in_thread(schedules.create, context.user_id, asked, context.permissions)
    return ToolOutput(
        value={
            "id": str(made.pk),
            "name": made.name,
            "next_runs": list(schedules.next_runs(made)),
            "results_appear_in": WHERE[arguments.session],
        }
    )


def _pins(arguments: ScheduleTask, context: TurnContext) -> dict[str, JSON]:
    if arguments.agent_id is None:
        return {}
    return {"version": presets.version(context.user_id, arguments.agent_id).number}


TOOL = Tool(
    name="schedule_task",
    arguments=ScheduleTask,
    run=schedule_task,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    schedules=True,
    approval="manual_only",
    pins=_pins,
    guard=guard_act("Allow this scheduled task?"),
)
