"""The `current_time` tool: tell the model what time it is."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pydantic import Field

from config.core.text import find_time_zone
from copilot.tools.base import Tool, ToolArguments, ToolError, ToolInvocation, ToolOutput, load_description


class CurrentTime(ToolArguments):
    timezone: str | None = Field(default=None, max_length=64, description="IANA name, such as Europe/Berlin.")


async def current_time(arguments: CurrentTime, invocation: ToolInvocation) -> ToolOutput:
    name = arguments.timezone or invocation.context.timezone
    now = datetime.now(UTC).astimezone(_get_zone(name))
    return ToolOutput(
        value={"time": now.isoformat(timespec="seconds"), "weekday": f"{now:%A}", "timezone": name}
    )


def _get_zone(name: str) -> ZoneInfo:
    zone = find_time_zone(name)
    if zone is None:
        raise ToolError("invalid_timezone", "There is no such time zone; use a name like Europe/Berlin.")
    return zone


TOOL = Tool(
    name="current_time",
    arguments=CurrentTime,
    run=current_time,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
)
