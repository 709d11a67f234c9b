"""When a failed model call is tried again, how often and how long that may take (A7.1–A7.3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from copilot.providers.base import FailureCode, ProviderFailure

JITTER = 0.25


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Schedules in seconds, and the bounds over them."""

    transient: tuple[float, ...] = (2, 8, 20)
    rate: tuple[float, ...] = (15, 45)
    once: tuple[float, ...] = (2,)
    longest_retry_after: float = 60  # a longer one is no wait but an answer
    waiting_per_round: float = 120
    waiting_per_turn: float = 300
    requests_per_model_and_round: int = 6
    requests_per_round: int = 10
    requests_beyond_rounds: int = 20  # a turn sends at most one request per round + these

    def schedule(self, code: FailureCode) -> tuple[float, ...]:
        match code:
            case "overloaded":
                return self.transient
            case "rate_limited":
                return self.rate
            case "no_response" | "malformed_stream":
                return self.once
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
    retried: Counter[str] = field(default_factory=Counter)  # by failure class
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
    ) -> None:
        self._policy = policy or Policy()
        self._chance = chance
        self._round = _Round()
        self._beyond_rounds = requests_beyond_rounds  # of earlier runs of the turn, too
        self._waited = 0.0

    def begin_round(self) -> None:
        self._round = _Round()

    def count_request(self, model: str) -> None:
        self._round.requests[model] += 1

    def after(self, failure: ProviderFailure, *, model: str, shown: bool, seconds_left: float) -> Wait | None:
        """The wait before another try, which is thereby spent; None when the failure stands.

        `shown`: clients have seen text or calls of the failed step, so that a retry retracts it.
        """
        schedule = self._policy.schedule(failure.code)
        used = self._round.retried[failure.code]
        if used >= len(schedule) or (shown and self._round.retracted) or self._requests_spent(model):
            return None
        delay = self._delay(schedule[used], failure.retry_after_seconds)
        if delay is None or self._waits_too_long(delay, seconds_left):
            return None
        self._spend(failure.code, delay, shown)
        return Wait(delay_seconds=delay, attempt=used + 1, attempts=len(schedule))

    def _delay(self, scheduled: float, retry_after: float | None) -> float | None:
        if retry_after is None:
            return scheduled * (1 + JITTER * (2 * self._chance() - 1))
        return max(0.0, retry_after) if retry_after <= self._policy.longest_retry_after else None

    def _requests_spent(self, model: str) -> bool:
        counted = self._round.requests
        return (
            counted[model] >= self._policy.requests_per_model_and_round
            or counted.total() >= self._policy.requests_per_round
            or self._beyond_rounds >= self._policy.requests_beyond_rounds
        )

    def _waits_too_long(self, delay: float, seconds_left: float) -> bool:
        return (
            self._round.waited + delay > self._policy.waiting_per_round
            or self._waited + delay > self._policy.waiting_per_turn
            or delay >= seconds_left
        )

    def _spend(self, code: FailureCode, delay: float, shown: bool) -> None:
        self._beyond_rounds += 1
        self._round.retried[code] += 1
        self._round.waited += delay
        self._waited += delay
        self._round.retracted = self._round.retracted or shown
