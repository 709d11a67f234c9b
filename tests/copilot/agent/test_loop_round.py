"""One round, in its order: what is asked of the world, and when (A2.2)."""

from __future__ import annotations

from copilot.agent.outputs import CompactionSucceeded, LoopAnswered
from copilot.providers.base import CatalogueEntry, UsageReported, UserMessage
from copilot.realtime.payloads import Tokens
from tests.support.agent_doubles import (
    InMemoryApprovalPolicy,
    InMemoryBudget,
    InMemoryCompactor,
    InMemoryFollowUps,
    InMemoryToolbox,
)
from tests.support.agent_loop import Reciter, call, calls, look, loop_of, play, say

WINDOWED = CatalogueEntry(name="Recital", provider="scripted", model="recital", context_window=100_000)
FULL = UsageReported(Tokens(input=85_000, output=100))
SHORT = CompactionSucceeded(messages=(UserMessage(text="All so far."),), tokens=1_000)


class Diary:
    """Every port writes down that it was asked."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def noting(self, port, method, line):
        ask = getattr(port, method)

        def noted(*args, **kwargs):
            self.lines.append(line)
            return ask(*args, **kwargs)

        setattr(port, method, noted)
        return port


async def test_a_round_goes_limits_room_follow_ups_model_approvals_tools():
    """A2.2: what came at the boundary is taken once the next round is certain, and after the summary (A13.7, A17.7)"""
    diary = Diary()
    reciter = Reciter([FULL, *calls(call("a", "look"))], calls(call("b", "look")), say("Done."))
    toolbox = InMemoryToolbox(tools={"look": look})
    loop = loop_of(
        diary.noting(reciter, "stream", "model"),
        chain=(WINDOWED,),
        toolbox=diary.noting(toolbox, "run_calls", "tools"),
        approvals=diary.noting(InMemoryApprovalPolicy(), "select_calls_to_approve", "approvals"),
        budget=diary.noting(InMemoryBudget(), "read_spending", "limits"),
        compactor=diary.noting(InMemoryCompactor(SHORT), "compact", "room"),
        follow_ups=diary.noting(
            InMemoryFollowUps([(UserMessage(text="And this?"),)]), "take_follow_ups", "follow-ups"
        ),
    )
    assert (await play(loop))[-1] == LoopAnswered()
    first = ["model", "approvals", "tools"]  # money is looked at once some was spent
    second = ["limits", "room", "limits", "follow-ups", "model", "approvals", "tools"]
    assert diary.lines == [*first, *second, "limits", "follow-ups", "model"]
    assert "And this?" in reciter.requests[1].messages[-1].text
