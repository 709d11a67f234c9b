"""Decide whether a failed model call is retried, repaired or sent to another model, within limits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from copilot.agent.fallback import MODEL_FAILURES, FallbackChain, RequestNeeds
from copilot.agent.guards import SentRequest
from copilot.agent.interfaces import LoopPorts
from copilot.agent.model_context import collect_call_ids, find_last_replay, strip_replay
from copilot.agent.model_stream import ModelAttempt
from copilot.agent.outputs import LoopOutput
from copilot.agent.request_repair import RequestRepair
from copilot.agent.token_meters import count_request_characters, estimate_tokens
from copilot.chat.notices import NOTICES
from copilot.providers.base import CatalogueEntry, FailureCode, ModelMessage, ModelRequest, ProviderFailure
from copilot.realtime.events import ModelHealed, ModelRetrying, ModelSwitched, StepRetracted

RETRY_JITTER = 0.25


class RetrySettings(Protocol):
    RETRY_TRANSIENT_SECONDS: list[int]
    RETRY_RATE_SECONDS: list[int]
    RETRY_BROKEN_SECONDS: list[int]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Retry delays in seconds by kind of failure, and the limits over all of them."""

    transient: tuple[float, ...] = (2, 8, 20)
    rate: tuple[float, ...] = (15, 45)
    broken: tuple[float, ...] = (2,)
    longest_retry_after: float = 60  # a longer Retry-After counts as a failure
    waiting_per_round: float = 120
    waiting_per_turn: float = 300
    requests_per_model_and_round: int = 6
    requests_per_round: int = 10
    requests_beyond_rounds: int = 20  # beyond one request per round

    @classmethod
    def from_settings(cls, settings: RetrySettings) -> Self:
        return cls(
            transient=tuple(settings.RETRY_TRANSIENT_SECONDS),
            rate=tuple(settings.RETRY_RATE_SECONDS),
            broken=tuple(settings.RETRY_BROKEN_SECONDS),
        )

    @property
    def longest_wait(self) -> float:
        return max(
            self.longest_retry_after,
            *((1 + RETRY_JITTER) * delay for delay in (*self.transient, *self.rate, *self.broken)),
        )

    def schedule(self, code: FailureCode | None) -> tuple[float, ...]:
        match code:
            case "overloaded":
                return self.transient
            case "rate_limited":
                return self.rate
            case "no_response" | "malformed_stream":
                return self.broken
            case _:
                return ()


@dataclass(frozen=True, kw_only=True)
class RetryWait:
    delay_seconds: float
    attempt: int
    attempts: int


@dataclass
class _RoundRetries:
    requests: Counter[str] = field(default_factory=Counter)  # by model
    retried: Counter[tuple[str, FailureCode]] = field(default_factory=Counter)  # by model and failure class
    waited: float = 0.0
    retracted: bool = False


class RetryBudget:
    """Count the requests and waits that one turn spends on retries."""

    def __init__(
        self,
        *,
        policy: RetryPolicy | None = None,
        chance: Callable[[], float] = random.random,
        requests_beyond_rounds: int = 0,
        before: Iterable[SentRequest] = (),
    ) -> None:
        """Start with `before`, the requests of earlier runs; some belong to the unfinished round."""
        self._policy = policy or RetryPolicy()
        self._chance = chance
        self._round = _RoundRetries()
        self._beyond_rounds = requests_beyond_rounds  # including earlier runs of the turn
        self._waited = 0.0
        self._unfinished_round = _RoundRetries()
        for sent in before:
            self._restore_request(sent)

    def _restore_request(self, sent: SentRequest) -> None:
        """Count the time until the next request as waiting, at most the longest wait there can be."""
        was_retried = bool(self._policy.schedule(sent.failure))
        waited = min(sent.seconds_to_next, self._policy.longest_wait) if was_retried else 0.0
        self._waited += waited
        if sent.in_round:
            self._unfinished_round.requests[sent.model] += 1
            self._unfinished_round.waited += waited
            if sent.failure is not None:
                self._unfinished_round.retried[sent.model, sent.failure] += 1
            self._unfinished_round.retracted = self._unfinished_round.retracted or sent.partial

    def begin_round(self) -> None:
        self._round, self._unfinished_round = self._unfinished_round, _RoundRetries()

    def count_request(self, model: str) -> None:
        self._round.requests[model] += 1

    def next_wait(
        self, failure: ProviderFailure, *, model: str, shown: bool, seconds_left: float
    ) -> RetryWait | None:
        """Return the wait before a retry and count it as spent; None when there is no retry.

        `shown`: clients have seen text or calls of the failed step, so that a retry retracts it.
        """
        schedule = self._policy.schedule(failure.code)
        used = self._round.retried[model, failure.code]
        if used >= len(schedule) or not self.can_send(model, shown=shown):
            return None
        delay = self._delay(schedule[used], failure.retry_after_seconds)
        if delay is None or self._waits_too_long(delay, seconds_left):
            return None
        self.spend_request(shown=shown)
        self._round.retried[model, failure.code] += 1
        self._round.waited += delay
        self._waited += delay
        return RetryWait(delay_seconds=delay, attempt=used + 1, attempts=len(schedule))

    @property
    def is_exhausted(self) -> bool:
        return (
            self._round.requests.total() >= self._policy.requests_per_round
            or self._beyond_rounds >= self._policy.requests_beyond_rounds
        )

    def can_send(self, model: str, *, shown: bool) -> bool:
        spent = self._round.requests[model] >= self._policy.requests_per_model_and_round
        return not spent and self.can_switch(shown=shown)

    def can_switch(self, *, shown: bool) -> bool:
        return not (self.is_exhausted or (shown and self._round.retracted))

    def spend_request(self, *, shown: bool) -> None:
        self._beyond_rounds += 1
        self._round.retracted = self._round.retracted or shown

    def _delay(self, scheduled: float, retry_after: float | None) -> float | None:
        if retry_after is None:
            return scheduled * (1 + RETRY_JITTER * (2 * self._chance() - 1))
        return max(0.0, retry_after) if retry_after <= self._policy.longest_retry_after else None

    def _waits_too_long(self, delay: float, seconds_left: float) -> bool:
        return (
            self._round.waited + delay > self._policy.waiting_per_round
            or self._waited + delay > self._policy.waiting_per_turn
            or delay >= seconds_left
        )


# --- Choosing what to do after a failure ---

RetryAction = RetryWait | ModelHealed | ModelSwitched


class RetryPlanner:
    """Choose the next request of a turn: `entry` is the current model, `repair` what changed for it."""

    def __init__(
        self,
        chain: tuple[CatalogueEntry, ...],
        ports: LoopPorts,
        retry_budget: RetryBudget,
        *,
        thinking_tokens: int,
        deadline: float,
    ) -> None:
        """Set up the plan of a turn. `deadline` is a time of the ports' clock that no wait may pass."""
        self.entry = chain[0]
        self.retry_budget = retry_budget
        self.repair = RequestRepair(ports.learned, thinking_tokens=thinking_tokens)
        self.is_waiting = False
        self._chain = chain
        self._ports = ports
        self._deadline = deadline
        self._fallback = FallbackChain(chain, ports.health.open_breaker_code)

    def restore_requests(
        self, before: Sequence[SentRequest], messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> None:
        entries = {entry.name: entry for entry in self._chain}
        for sent in before:
            if sent.model in entries:
                self.repair.restore_repair(sent.failure, entries[sent.model])
        if self.repair.reasoning_dropped:
            messages[:] = strip_replay(messages)
        if in_tool_loop and not find_last_replay(messages):
            self.repair.drop_reasoning()

    async def plan_retry(
        self,
        failure: ProviderFailure,
        attempt: ModelAttempt,
        messages: list[ModelMessage],
        *,
        in_tool_loop: bool,
    ) -> RetryAction | None:
        """Choose a wait, a repair or a fallback; None when nothing is left.

        `messages` changes when something in it can no longer be sent.
        """
        seconds_left = self._deadline - self._ports.clock.now()
        shown = attempt.has_visible_output
        wait = self.retry_budget.next_wait(
            failure, model=self.entry.name, shown=shown, seconds_left=seconds_left
        )
        if wait is not None or seconds_left <= 0:
            return wait
        if (repaired := await self._repair_request(failure, messages, shown=shown)) is not None:
            self.retry_budget.spend_request(shown=shown)
            return repaired
        if failure.code == "context_overflow":
            return None  # compaction is tried first, with the same model
        if failure.code in MODEL_FAILURES:
            self._ports.health.report_failure(self.entry, failure.code)
        return self.fall_back(failure, attempt, messages, in_tool_loop=in_tool_loop)

    def final_failure(self, failure: ProviderFailure) -> ProviderFailure:
        return self._fallback.final_failure(
            failure, self.entry, out_of_requests=self.retry_budget.is_exhausted
        )

    async def wait(self, wait: RetryWait) -> None:
        self.is_waiting = True
        try:
            await self._ports.clock.sleep(wait.delay_seconds)
        finally:
            self.is_waiting = False

    # --- Request repairs ---

    async def _repair_request(
        self, failure: ProviderFailure, messages: list[ModelMessage], *, shown: bool
    ) -> ModelHealed | None:
        kind = self.repair.choose_repair(failure, self.entry)
        if kind is None or not self.retry_budget.can_send(self.entry.name, shown=shown):
            return None
        if kind == "credentials" and not await self._renew_credential():
            return None
        self.repair.apply(kind, self.entry, failure)
        if kind == "signature":
            messages[:] = strip_replay(messages)
        label = NOTICES[failure.code].label
        return ModelHealed(model=self.entry.name, healing=kind, failure_class=failure.code, label=label)

    async def _renew_credential(self) -> bool:
        credential = await self._ports.credential(self.entry)
        renewed = credential != self.entry.credential
        self.entry = replace(self.entry, credential=credential)
        return renewed

    # --- Fallback ---

    def fall_back(
        self,
        failure: ProviderFailure,
        attempt: ModelAttempt,
        messages: list[ModelMessage],
        *,
        in_tool_loop: bool,
    ) -> ModelSwitched | None:
        shown = attempt.has_visible_output
        if not self.retry_budget.can_switch(shown=shown):
            return None
        entry = self._fallback.choose_next(failure, self.entry, _request_needs(attempt.request, messages))
        if entry is None:
            return None
        self.retry_budget.spend_request(shown=shown)
        return self._switch_to(entry, failure.code, messages, in_tool_loop=in_tool_loop)

    def skip_failing_model(
        self, code: FailureCode, request: ModelRequest, messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> Iterator[ModelSwitched]:
        """Start with another model of the chain while the first one's circuit breaker is open."""
        entry = self._fallback.choose_instead_of_first(_request_needs(request, messages))
        if entry is not None:
            yield self._switch_to(entry, code, messages, in_tool_loop=in_tool_loop)

    def _switch_to(
        self, entry: CatalogueEntry, code: FailureCode, messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> ModelSwitched:
        before, self.entry = self.entry, entry
        messages[:] = strip_replay(messages)
        if in_tool_loop:
            self.repair.drop_reasoning()
        label = NOTICES[code].label
        return ModelSwitched(from_model=before.name, to_model=entry.name, failure_class=code, label=label)


def _request_needs(request: ModelRequest, messages: list[ModelMessage]) -> RequestNeeds:
    return RequestNeeds(
        tools=bool(request.tools or collect_call_ids(messages)),
        prompt_tokens=estimate_tokens(count_request_characters(request)),
    )


# --- Events for clients ---


def announce_retry(
    attempt: ModelAttempt, failure: ProviderFailure, remedy: RetryAction
) -> Iterator[LoopOutput]:
    yield from end_failed_step(attempt, failure)
    yield _retrying_event(failure, remedy) if isinstance(remedy, RetryWait) else remedy


def end_failed_step(attempt: ModelAttempt, failure: ProviderFailure) -> Iterator[LoopOutput]:
    step = attempt.step
    if attempt.has_visible_output:
        yield StepRetracted(
            step_id=step.id,
            round=step.round,
            failure_class=failure.code,
            row_ids=[str(block.row_id) for block in attempt.own_blocks],
        )
    else:
        yield step.finish_event("failed")
    step.is_over = True


def _retrying_event(failure: ProviderFailure, wait: RetryWait) -> ModelRetrying:
    return ModelRetrying(
        failure_class=failure.code,
        label=NOTICES[failure.code].label,
        delay_seconds=round(wait.delay_seconds, 3),
        attempt=wait.attempt,
        attempts=wait.attempts,
    )
