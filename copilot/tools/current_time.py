"""Tells the model what time it is."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from pydantic import Field

from config.core.zones import find_zone
from copilot.tools.base import Arguments, Invocation, Tool, ToolFailed, ToolOutput, prose


class CurrentTime(Arguments):
    timezone: str | None = Field(default=None, max_length=64, description="IANA name, such as Europe/Berlin.")


async def current_time(arguments: CurrentTime, invocation: Invocation) -> ToolOutput:
    name = arguments.timezone or invocation.context.timezone
    now = datetime.now(UTC).astimezone(_zone(name))
    return ToolOutput(
        value={"time": now.isoformat(timespec="seconds"), "weekday": f"{now:%A}", "timezone": name}
    )


def _zone(name: str) -> ZoneInfo:
    zone = find_zone(name)
    if zone is None:
        raise ToolFailed("invalid_timezone", "There is no such time zone; use a name like Europe/Berlin.")
    return zone


TOOL = Tool(
    name="current_time",
    arguments=CurrentTime,
    run=current_time,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    read_only=True,
    repeatable=True,
)
