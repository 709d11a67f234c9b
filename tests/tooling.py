"""Tools outside the loop: a running turn to use them in, and one call of one of them."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from copilot.context import CHANNELS, TurnContext
from copilot.events import JSON, Event
from copilot.models import Turn
from copilot.permissions import UNRESTRICTED
from copilot.providers.base import ToolCall
from copilot.tools import execution
from copilot.tools.base import CallOutcome
from tests import make


def make_context(**fields: Any) -> TurnContext:
    """Ada's running turn."""
    turn = make.turn(make.session(), Turn.Status.RUNNING)
    given = {"origin": "web", "permissions": UNRESTRICTED, "channel": CHANNELS["web"]} | fields
    return TurnContext(
        user_id=make.ada().pk,
        session_id=str(turn.session_id),
        turn_id=str(turn.id),
        fence=turn.fence,
        **given,
    )


async def use(
    context: TurnContext, tool: str, /, *, events: list[Event] | None = None, **arguments: JSON
) -> CallOutcome:
    call = ToolCall(call_id="this-call", tool=tool, arguments=arguments)
    told: list[Event] = [] if events is None else events
    async with aclosing(execution.run_group([call], context=context, emit=told.append)) as group:
        return await anext(group)
