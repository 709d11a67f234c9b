"""What a tool declares about being asked for, and what it costs (A11.1)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from copilot.tools.base import (
    ALWAYS_ASKS_REASON,
    CallAssessment,
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
)
from tests.support.tool_calls import TURN_CONTEXT


class Amount(ToolArguments):
    amount: int


async def _run(arguments: Amount, invocation: ToolInvocation) -> ToolOutput:
    return ToolOutput(value=arguments.amount)


def _tool(**declared: object) -> Tool[Amount]:
    return Tool(name="pay", description="Pays.", arguments=Amount, run=_run, **declared)


def test_a_tool_that_declares_nothing_never_asks() -> None:
    """A11.1: never."""
    assert _tool().assess_call({"amount": 1}, TURN_CONTEXT) == CallAssessment(reason="", estimate=None)


@pytest.mark.parametrize("approval", ["ask", "manual_only"])
def test_a_tool_may_always_ask(approval: str) -> None:
    """A11.1: always."""
    assert _tool(approval=approval).assess_call({"amount": 1}, TURN_CONTEXT).reason == ALWAYS_ASKS_REASON


def test_a_predicate_says_why_it_asks_for_this_call_and_not_for_that() -> None:
    """A11.1: a predicate over validated arguments and context returning a reason."""
    tool = _tool(
        approval_reason=lambda given, context: f"{given.amount} is much" if given.amount > 10 else ""
    )
    assert tool.assess_call({"amount": 10}, TURN_CONTEXT).reason == ""
    assert tool.assess_call({"amount": 11}, TURN_CONTEXT).reason == "11 is much"


def test_an_estimate_is_made_of_the_arguments() -> None:
    """A11.11: what a billable call would cost, or that nobody can tell."""
    tool = _tool(billable=True, estimate=lambda given, context: given.amount * 100 or None)
    assert tool.assess_call({"amount": 4}, TURN_CONTEXT).estimate == 400
    assert tool.assess_call({"amount": 0}, TURN_CONTEXT).estimate is None


def test_arguments_are_validated_before_anybody_is_asked() -> None:
    """A8.6, A11.1: nobody is asked about a call that cannot run."""
    with pytest.raises(ValidationError):
        _tool(approval="ask").assess_call({"amount": "much"}, TURN_CONTEXT)
