"""Keep a turn from running forever or in circles: rounds, time, repetition, unusable calls and budget."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from copilot.agent.interfaces import Budget, BudgetStatus
from copilot.chat.notices import LimitCode
from copilot.providers.base import FailureCode, ToolCall, ToolSpecification
from copilot.realtime.payloads import Tokens
from copilot.tools.base import ToolCallOutcome
from copilot.tools.calls import lacks_required_arguments


@dataclass(frozen=True, kw_only=True)
class SentRequest:
    """A request to a model, and the time until the next request to it."""

    model: str
    failure: FailureCode | None = None
    seconds_to_next: float = 0.0
    in_round: bool = False  # part of the round that is running now
    partial: bool = False  # failed midway, and its output was retracted


@dataclass(frozen=True, kw_only=True)
class CompletedToolGroup:
    """The calls of one reply with all their outcomes."""

    calls: tuple[ToolCall, ...]
    outcomes: Mapping[str, ToolCallOutcome]  # by call id


@dataclass(frozen=True, kw_only=True)
class PriorRuns:
    """Record the work of earlier runs, so that a pause or a takeover does not reset the limits."""

    calls: int = 0  # model calls
    rounds: int = 0
    seconds: float = 0.0  # of active time
    tokens: Tokens = field(default_factory=Tokens)
    generation_seconds: float = 0.0
    cut_texts: int = 0  # by the output limit, and continued
    requests: tuple[SentRequest, ...] = ()
    groups: tuple[CompletedToolGroup, ...] = ()  # inside the window that is checked for repetition
    compactions: int = 0
    forced_compactions: int = 0
    gave_up_compacting: bool = False  # an automatic compaction failed, with a notice
    spoke: bool = False  # in any round
    ran_tools: bool = False  # and the model has said nothing since


LAST_ROUND_NOTE = (
    "This is the last round of this turn: tools end now and calls will not be executed. "
    "Answer with what you have, and say what is left to do."
)
COMPACTED_NOTE = (
    "You were in the middle of this request when the conversation became too long; what you had done until then "
    "is in the summary. Go on from there: do not start over, and do not repeat what is done."
)
REPETITION_NOTE = (
    "You have made the same calls with the same results {times} times. Repeating them will not help: "
    "change your approach, or say what stands in the way."
)
INVALID_ARGUMENTS_NOTE = (
    "Two calls in a row of {tool} had arguments that are not valid JSON. Change your approach: "
    "send smaller pieces, or divide the content over several calls."
)
LOST_CALLS_NOTE = (
    "Your reply reached the output limit while it wrote these tool calls, which are lost: {tools}. "
    "None of them was executed. Repeat what is still needed with smaller content, in several calls if need be."
)
CONTINUE_TEXT_NOTE = (
    "Your reply reached the output limit; the user sees what you see of it. Go on exactly where it stops, in the middle "
    "of a word if need be, without repeating anything, without an introduction and without mentioning the limit."
)
MALFORMED_CALLS_BEFORE_NOTE = 2  # in a row, for one tool


class TurnLimitSettings(Protocol):
    TURN_MAX_ROUNDS: int
    TURN_MAX_SECONDS: float
    TOOL_CALLS_PER_REPLY: int
    LOOP_WINDOW_ROUNDS: int
    LOOP_REPEATS: int
    LOOP_WARN_AT: int
    UNUSABLE_CALLS_IN_A_ROW: int
    COMPACTIONS_PER_TURN: int
    FORCED_COMPACTIONS_PER_TURN: int
    OUTPUT_CONTINUATIONS_PER_TURN: int


@dataclass(frozen=True, kw_only=True)
class TurnLimits:
    max_rounds: int = 50
    max_seconds: float = 3600.0  # of active time
    calls_per_reply: int = 16
    loop_window: int = 10
    loop_repeats: int = 5
    loop_warn_at: int = 3
    unusable_in_a_row: int = 5
    compactions: int = 3
    forced_compactions: int = 2  # of them, those that an overflow forces
    continuations: int = 2  # of texts that the output limit cut

    @classmethod
    def from_settings(cls, settings: TurnLimitSettings) -> Self:
        return cls(
            max_rounds=settings.TURN_MAX_ROUNDS,
            max_seconds=settings.TURN_MAX_SECONDS,
            calls_per_reply=settings.TOOL_CALLS_PER_REPLY,
            loop_window=settings.LOOP_WINDOW_ROUNDS,
            loop_repeats=settings.LOOP_REPEATS,
            loop_warn_at=settings.LOOP_WARN_AT,
            unusable_in_a_row=settings.UNUSABLE_CALLS_IN_A_ROW,
            compactions=settings.COMPACTIONS_PER_TURN,
            forced_compactions=settings.FORCED_COMPACTIONS_PER_TURN,
            continuations=settings.OUTPUT_CONTINUATIONS_PER_TURN,
        )


@dataclass(frozen=True, kw_only=True)
class ReachedLimit:
    """The reason why no further model call is allowed."""

    code: LimitCode
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class RoundState:
    """The facts besides the reply that decide the next step."""

    last_round: bool = False
    ran_tools: bool = False  # and no person has written since
    continues_text: bool = False  # the reply continues an interrupted text


class LoopGuards:
    def __init__(self, limits: TurnLimits, *, polling: frozenset[str] = frozenset()) -> None:
        self._limits = limits
        self._polling = polling
        self._signatures: deque[str | None] = deque(maxlen=limits.loop_window)
        self._warned: set[str] = set()
        self._unusable = 0
        self._broken = False
        self._malformed = ("", 0)  # tool name, times in a row

    def find_limit(self, *, next_round: int, seconds: float) -> LimitCode | None:
        """Return the reason why no further round may begin, or None."""
        if self._broken:
            return "tool_calls_broken"
        if self._repeats(self._signatures[-1] if self._signatures else None) > self._limits.loop_repeats:
            return "loop_detected"
        if next_round > self._limits.max_rounds:
            return "round_limit"
        return "time_limit" if seconds >= self._limits.max_seconds else None

    def is_last_round(self, round_number: int) -> bool:
        return round_number >= self._limits.max_rounds

    def record_tool_group(
        self,
        calls: Sequence[ToolCall],
        outcomes: Mapping[str, ToolCallOutcome],
        specifications: Mapping[str, ToolSpecification],
    ) -> tuple[str, ...]:
        notes: list[str] = []
        for call in calls:
            notes += self._check_usable(call, specifications.get(call.tool))
        self._signatures.append(self._signature(calls, outcomes))
        return (*notes, *self._repetition_note())

    def _check_usable(self, call: ToolCall, specification: ToolSpecification | None) -> list[str]:
        malformed = call.arguments is None
        if not malformed and not lacks_required_arguments(call, specification):
            self._unusable, self._malformed = 0, ("", 0)
            return []
        self._unusable += 1
        self._broken = self._broken or self._unusable >= self._limits.unusable_in_a_row
        if not malformed:
            return []
        tool, times = self._malformed
        self._malformed = (call.tool, times + 1 if call.tool == tool else 1)
        due = self._malformed[1] == MALFORMED_CALLS_BEFORE_NOTE
        return [INVALID_ARGUMENTS_NOTE.format(tool=call.tool)] if due else []

    def _repetition_note(self) -> tuple[str, ...]:
        signature = self._signatures[-1]
        if signature is None or signature in self._warned:
            return ()
        times = self._repeats(signature)
        if times < self._limits.loop_warn_at:
            return ()
        self._warned.add(signature)
        return (REPETITION_NOTE.format(times=times),)

    def _repeats(self, signature: str | None) -> int:
        return 0 if signature is None else self._signatures.count(signature)

    def _signature(self, calls: Sequence[ToolCall], outcomes: Mapping[str, ToolCallOutcome]) -> str | None:
        """Hash what a round called and got; None if it only polled."""
        acts = [
            (call.tool, call.arguments, digest_outcome(outcomes[call.call_id]))
            for call in calls
            if call.tool not in self._polling
        ]
        return _hash_text(json.dumps(acts, sort_keys=True)) if acts else None


def digest_outcome(outcome: ToolCallOutcome) -> str:
    """Hash a call's output without its id, which a truncated output contains."""
    return outcome.digest or _hash_text(outcome.content.replace(outcome.call_id, ""))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class BudgetGuard:
    """Check before each model call that the turn and its user can pay for it.

    The first call of a turn that did not wait needs no check: admission made one just before.
    """

    def __init__(self, budget: Budget, *, resumed: bool) -> None:
        self._budget = budget
        self._spent = None if resumed else 0  # at the start of the round; unknown for an earlier run
        self._last_round = 0

    async def check_before_round(self) -> ReachedLimit | None:
        """Check that a round can begin, and that another one as expensive as the last would fit."""
        spending = await self._budget.read_spending()
        self._last_round = 0 if self._spent is None else spending.spent - self._spent
        self._spent = spending.spent
        return self._refusal(spending)

    async def check_within_round(self) -> ReachedLimit | None:
        return self._refusal(await self._budget.read_spending())

    def _refusal(self, spending: BudgetStatus) -> ReachedLimit | None:
        taken = spending.spent + spending.reserved
        if spending.budget and (taken >= spending.budget or taken + self._last_round > spending.budget):
            return ReachedLimit(code="budget_reached")
        return ReachedLimit(code="limit_reached", details=spending.limit) if spending.limit else None
