"""Call tools outside the loop, in a running turn."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from config.core.json_values import JSON
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext
from copilot.models import Turn
from copilot.providers.base import ToolCall
from copilot.realtime.events import Event
from copilot.tools import execution
from copilot.tools.base import ToolCallOutcome
from tests.support import factories


def make_context(**fields: Any) -> TurnContext:
    """Start a turn of Ada."""
    turn = factories.turn(factories.session(), Turn.Status.RUNNING)
    given: dict[str, Any] = {
        "origin": "web",
        "permissions": UNRESTRICTED,
        "channel": CHANNELS_BY_ORIGIN["web"],
    } | fields
    return TurnContext(
        user_id=factories.ada().pk,
        session_id=str(turn.session_id),
        turn_id=str(turn.id),
        fence=turn.fence,
        **given,
    )


async def use(
    context: TurnContext, tool: str, /, *, events: list[Event] | None = None, **arguments: JSON
) -> ToolCallOutcome:
    call = ToolCall(call_id="this-call", tool=tool, arguments=arguments)
    told: list[Event] = [] if events is None else events
    async with aclosing(execution.run_tool_calls([call], context=context, emit=told.append)) as group:
        return await anext(group)


TURN_CONTEXT = TurnContext(
    user_id=1,
    session_id="session",
    turn_id="turn",
    fence=1,
    origin="web",
    permissions=UNRESTRICTED,
    channel=CHANNELS_BY_ORIGIN["web"],
)
