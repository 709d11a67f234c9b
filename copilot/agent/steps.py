"""What happens after a reply: a pure function of the reply and of what the guards know (A2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from copilot.agent.guards import State
from copilot.providers.base import FailureCode, FinishReason, ToolCall


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One complete answer of a model."""

    text: str
    calls: tuple[ToolCall, ...]
    finish: FinishReason
    replay: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The turn's work is done."""

    truncated: bool = False  # the text was cut by the output limit (A2.4)
    silent: bool = False  # tools ran and nothing was said: a closing line is due (A14.7)


@dataclass(frozen=True, kw_only=True)
class RunTools:
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, kw_only=True)
class Nudge:
    """The reply was cut inside its calls: none of them counts (A8.4)."""

    lost: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Halt:
    """The reply cannot be worked with; `calls` are answered, not executed."""

    code: FailureCode | Literal["round_limit"]
    calls: tuple[ToolCall, ...] = ()


NextStep = Answer | RunTools | Nudge | Halt
UNUSABLE: dict[FinishReason, FailureCode] = {"refused": "refused", "overflow": "context_overflow"}


def next_step(reply: Reply, state: State) -> NextStep:
    if (code := UNUSABLE.get(reply.finish)) is not None:
        return Halt(code=code)
    if reply.calls:
        return _after_calls(reply, state)
    if reply.text:
        return Answer(truncated=reply.finish == "length")
    if state.ran_tools or state.continues_text:
        return Answer(silent=state.ran_tools and not state.continues_text)
    return Halt(code="no_response")


def _after_calls(reply: Reply, state: State) -> NextStep:
    if reply.finish == "length":
        return Nudge(lost=tuple(call.tool for call in reply.calls))
    if state.last_round:
        return Halt(code="round_limit", calls=reply.calls)
    return RunTools(calls=reply.calls)
