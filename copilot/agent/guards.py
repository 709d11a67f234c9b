"""What earlier runs of a turn did, and used up of its limits: a pause or a lost worker gives nothing of it back (A3.9)."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from copilot.agent.interfaces import Budget, BudgetStatus
from copilot.chat.notices import LimitCode
from copilot.providers.base import FailureCode, ToolCall, ToolSpecification
from copilot.tools.base import ToolCallOutcome
from copilot.tools.calls import lacks_required_arguments


@dataclass(frozen=True, kw_only=True)
class SentRequest:
    """A request to a model, by name, and how long the next one to it was in coming."""

    model: str
    failure: FailureCode | None = None
    seconds_to_next: float = 0.0
    in_round: bool = False  # of the round that goes on now
    partial: bool = False  # failed in the middle: what had come of it was taken back


@dataclass(frozen=True, kw_only=True)
class CompletedToolGroup:
    """The calls of one reply with all their outcomes."""

    calls: tuple[ToolCall, ...]
    outcomes: Mapping[str, ToolCallOutcome]  # by call id


@dataclass(frozen=True, kw_only=True)
class PriorRuns:
    requests: tuple[SentRequest, ...] = ()
    groups: tuple[CompletedToolGroup, ...] = ()  # of the rounds that are still watched
    compactions: int = 0
    forced_compactions: int = 0
    gave_up_compacting: bool = False  # an automatic one failed, and was told of
    spoke: bool = False  # in any of its rounds (A10.6)
    ran_tools: bool = False  # … and the model has said nothing since


# MERGED agent.guards: What keeps a turn from running for ever or in circles: rounds, time, repetition, unusable calls (A10).

LAST_ROUND_NOTE = (
    "This is the last round of this turn: tools end now and calls will not be executed. "
    "Answer with what you have, and say what is left to do."
)
COMPACTED_NOTE = (
    "You were in the middle of this request when the conversation became too long; what you had done until then "
    "is in the summary. Go on from there: do not begin anew, and do not repeat what is done."
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
MALFORMED_CALLS_BEFORE_NOTE = 2  # in a row, for one tool (A8.3)


class TurnLimitSettings(Protocol):
    """The settings that bound a turn."""

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
    """Bounds of one turn (A0.7)."""

    max_rounds: int = 50
    max_seconds: float = 3600.0  # of active time
    calls_per_reply: int = 16
    loop_window: int = 10
    loop_repeats: int = 5
    loop_warn_at: int = 3
    unusable_in_a_row: int = 5
    compactions: int = 3
    forced_compactions: int = 2  # of them, those that an overflow forces
    continuations: int = 2  # of texts that the output limit cut (A2.4)

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
    """Why no further model call may be made."""

    code: LimitCode
    details: str = ""


@dataclass(frozen=True, kw_only=True)
class RoundState:
    """What the choice of the next step depends on besides the reply."""

    last_round: bool = False
    ran_tools: bool = False  # … and nothing was asked of the model by a person since
    continues_text: bool = False  # the reply goes on with a text that was interrupted


class LoopGuards:
    """Watches the rounds of one turn."""

    def __init__(self, limits: TurnLimits, *, polling: frozenset[str] = frozenset()) -> None:
        self._limits = limits
        self._polling = polling
        self._signatures: deque[str | None] = deque(maxlen=limits.loop_window)
        self._warned: set[str] = set()
        self._unusable = 0
        self._broken = False
        self._malformed = ("", 0)  # a tool and how often in a row

    def find_limit(self, *, next_round: int, seconds: float) -> LimitCode | None:
        """Why no further round may begin; None when one may."""
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
        """Take in a complete tool group; the notes that it makes due."""
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
        """What a round did and got, as a hash; None when it only polled."""
        acts = [
            (call.tool, call.arguments, digest_outcome(outcomes[call.call_id]))
            for call in calls
            if call.tool not in self._polling
        ]
        return _hash_text(json.dumps(acts, sort_keys=True)) if acts else None


def digest_outcome(outcome: ToolCallOutcome) -> str:
    """What a call got. A cut output names its call, which is never the same twice."""
    return outcome.digest or _hash_text(outcome.content.replace(outcome.call_id, ""))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# MERGED agent.purse: Whether the next model call may be paid for: the turn's budget, and the user's own limit (A10.4, B6.10).


class BudgetGuard:
    """One turn's. The first call of a turn that did not wait is not asked for: its limit was checked just before."""

    def __init__(self, budget: Budget, *, resumed: bool) -> None:
        self._budget = budget
        self._spent = None if resumed else 0  # when the round began; unknown of an earlier run
        self._last_round = 0

    async def check_before_round(self) -> ReachedLimit | None:
        """Why no further round may begin; one that costs what the last one did must fit too."""
        spending = await self._budget.read_spending()
        self._last_round = 0 if self._spent is None else spending.spent - self._spent
        self._spent = spending.spent
        return self._refusal(spending)

    async def check_within_round(self) -> ReachedLimit | None:
        """The same for a further call of the round that runs: another try, or one after a compaction."""
        return self._refusal(await self._budget.read_spending())

    def _refusal(self, spending: BudgetStatus) -> ReachedLimit | None:
        taken = spending.spent + spending.reserved
        if spending.budget and (taken >= spending.budget or taken + self._last_round > spending.budget):
            return ReachedLimit(code="budget_reached")
        return ReachedLimit(code="limit_reached", details=spending.limit) if spending.limit else None
