"""Count the retries of a turn and the time it waits for them, within limits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from copilot.agent.guards import SentRequest
from copilot.providers.base import FailureCode, ProviderFailure

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
