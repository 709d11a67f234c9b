"""When a failed model call is tried again, how often and how long that may take (A7.1–A7.3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from copilot.agent.carried import Sent
from copilot.providers.base import FailureCode, ProviderFailure

JITTER = 0.25


class Settings(Protocol):
    """The settings that say when a model is asked again."""

    RETRY_TRANSIENT_SECONDS: list[int]
    RETRY_RATE_SECONDS: list[int]
    RETRY_BROKEN_SECONDS: list[int]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Schedules in seconds, and the bounds over them."""

    transient: tuple[float, ...] = (2, 8, 20)
    rate: tuple[float, ...] = (15, 45)
    broken: tuple[float, ...] = (2,)
    longest_retry_after: float = 60  # a longer one is no wait but an answer
    waiting_per_round: float = 120
    waiting_per_turn: float = 300
    requests_per_model_and_round: int = 6
    requests_per_round: int = 10
    requests_beyond_rounds: int = 20  # a turn sends at most one request per round + these

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            transient=tuple(settings.RETRY_TRANSIENT_SECONDS),
            rate=tuple(settings.RETRY_RATE_SECONDS),
            broken=tuple(settings.RETRY_BROKEN_SECONDS),
        )

    @property
    def longest_wait(self) -> float:
        return max(
            self.longest_retry_after,
            *((1 + JITTER) * delay for delay in (*self.transient, *self.rate, *self.broken)),
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
class Wait:
    delay_seconds: float
    attempt: int
    attempts: int


@dataclass
class _Round:
    requests: Counter[str] = field(default_factory=Counter)  # by model
    retried: Counter[tuple[str, FailureCode]] = field(default_factory=Counter)  # by model and failure class
    waited: float = 0.0
    retracted: bool = False


class Retries:
    """Counts what one turn spends on trying again."""

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        chance: Callable[[], float] = random.random,
        requests_beyond_rounds: int = 0,
        before: Iterable[Sent] = (),
    ) -> None:
        """`before`: what earlier runs of the turn sent; the round that goes on begins with its own of it."""
        self._policy = policy or Policy()
        self._chance = chance
        self._round = _Round()
        self._beyond_rounds = requests_beyond_rounds  # of earlier runs of the turn, too
        self._waited = 0.0
        self._goes_on = _Round()
        for sent in before:
            self._take_up(sent)

    def _take_up(self, sent: Sent) -> None:
        """What passed between two requests was waited, unless nobody was there to wait."""
        tried_again = bool(self._policy.schedule(sent.failure))
        waited = min(sent.seconds_to_next, self._policy.longest_wait) if tried_again else 0.0
        self._waited += waited
        if sent.in_round:
            self._goes_on.requests[sent.model] += 1
            self._goes_on.waited += waited
            if sent.failure is not None:
                self._goes_on.retried[sent.model, sent.failure] += 1
            self._goes_on.retracted = self._goes_on.retracted or sent.partial

    def begin_round(self) -> None:
        self._round, self._goes_on = self._goes_on, _Round()

    def count_request(self, model: str) -> None:
        self._round.requests[model] += 1

    def after(self, failure: ProviderFailure, *, model: str, shown: bool, seconds_left: float) -> Wait | None:
        """The wait before another try, which is thereby spent; None when the failure stands.

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
        return Wait(delay_seconds=delay, attempt=used + 1, attempts=len(schedule))

    @property
    def exhausted(self) -> bool:
        """No model may be asked again in this round, whatever for (A7.2)."""
        return (
            self._round.requests.total() >= self._policy.requests_per_round
            or self._beyond_rounds >= self._policy.requests_beyond_rounds
        )

    def can_send(self, model: str, *, shown: bool) -> bool:
        """Whether the round may ask `model` once more, after a wait or a healing."""
        spent = self._round.requests[model] >= self._policy.requests_per_model_and_round
        return not spent and self.can_switch(shown=shown)

    def can_switch(self, *, shown: bool) -> bool:
        """Whether a model that this round has not asked yet may be."""
        return not (self.exhausted or (shown and self._round.retracted))

    def spend_request(self, *, shown: bool) -> None:
        """One more goes out than the round's own."""
        self._beyond_rounds += 1
        self._round.retracted = self._round.retracted or shown

    def _delay(self, scheduled: float, retry_after: float | None) -> float | None:
        if retry_after is None:
            return scheduled * (1 + JITTER * (2 * self._chance() - 1))
        return max(0.0, retry_after) if retry_after <= self._policy.longest_retry_after else None

    def _waits_too_long(self, delay: float, seconds_left: float) -> bool:
        return (
            self._round.waited + delay > self._policy.waiting_per_round
            or self._waited + delay > self._policy.waiting_per_turn
            or delay >= seconds_left
        )
