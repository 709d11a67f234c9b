"""The connection to Stripe: one client per thread, bounded in time, its errors in our words (B13)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import requests
import stripe
from django.conf import settings

from billing import alerts, metrics
from billing.errors import (
    CardDeclined,
    GatewayDown,
    GatewayError,
    GatewayMissing,
    GatewayRefusal,
    PaymentsOff,
)

logger = logging.getLogger(__name__)
logging.getLogger("stripe").setLevel(logging.WARNING)  # below, it writes whole requests

API_VERSION = "2026-10-28.endive"  # the SDK's own; SDK, pin and the tests' fake change together
BILLION = 1_000_000_000
CALL_SECONDS = 8.0
NEEDS_CUSTOMER = ("authentication_required", "payment_intent_action_required")


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """Until when a sequence of calls may take, and how often one of them is tried again by the SDK."""

    ends_at_nanoseconds: int  # by the monotonic clock
    retries: int

    def left_seconds(self) -> float:
        return (self.ends_at_nanoseconds - time.monotonic_ns()) / BILLION


def in_request(seconds: float = 30.0) -> Deadline:
    """Somebody waits for it."""
    return Deadline(ends_at_nanoseconds=_from_now(seconds), retries=1)


def in_task(seconds: float = 90.0) -> Deadline:
    """Nobody waits; it still ends before the claim on an event does."""
    return Deadline(ends_at_nanoseconds=_from_now(seconds), retries=2)


def _from_now(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * BILLION)


Answer = tuple[bytes, int, Mapping[str, str]]


class PatientClient(stripe.RequestsClient):
    """Waits for one whole answer as long as the deadline allows, at most eight seconds.

    The time-outs of `requests` are for one connect and one read each; an answer that drips in passes them for ever. So
    the call has a thread of its own, which is left behind, with its connection, when the time is over.
    """

    deadline: Deadline

    def request(  # type: ignore[override]
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None
    ) -> Answer:
        left_seconds = min(CALL_SECONDS, self.deadline.left_seconds())
        if left_seconds <= 0:
            raise stripe.APIConnectionError("The time for this is over.", should_retry=False)  # type: ignore[no-untyped-call]
        self._timeout = left_seconds
        answer: Future[Answer] = Future()
        asked = partial(super().request, method, url, headers, post_data)
        threading.Thread(target=_answered, args=(answer, asked), name="stripe", daemon=True).start()
        try:
            return answer.result(left_seconds)
        except TimeoutError:
            self._session = requests.Session()
            raise stripe.APIConnectionError("No whole answer in time.", should_retry=True) from None  # type: ignore[no-untyped-call]


def _answered(answer: Future[Answer], ask: Callable[[], Answer]) -> None:
    try:
        answer.set_result(ask())
    except stripe.StripeError as problem:  # the SDK makes one of everything
        answer.set_exception(problem)


class _PerThread(threading.local):
    """Sessions of `requests` are not for several threads; a key that changes makes another client."""

    made_for: tuple[str, str, int] = ("", "", 0)
    http: PatientClient
    client: stripe.StripeClient


_mine = _PerThread()


@dataclass(frozen=True, kw_only=True)
class Call:
    """One operation at Stripe: the services, and what goes with each request."""

    client: stripe.StripeClient
    deadline: Deadline

    def options(self, key: str = "") -> Any:
        """A write carries its idempotency key, so that the SDK's repetition makes nothing twice."""
        options: dict[str, str | int] = {"max_network_retries": self.deadline.retries}
        return {**options, "idempotency_key": key} if key else options


@contextmanager
def calling(operation: str, deadline: Deadline) -> Iterator[Call]:
    """Names what goes wrong inside; without a key nothing is tried at all (B19.1)."""
    if not settings.STRIPE_SECRET_KEY:
        raise PaymentsOff
    began, outcome = time.monotonic(), "done"
    try:
        yield Call(client=_client_for(deadline), deadline=deadline)
    except stripe.StripeError as problem:
        error, outcome = _named(problem, operation)
        raise error from problem
    finally:
        metrics.gateway_calls.labels(operation, outcome).observe(time.monotonic() - began)


def _client_for(deadline: Deadline) -> stripe.StripeClient:
    wanted = (settings.STRIPE_SECRET_KEY, settings.STRIPE_API_BASE, deadline.retries)
    if _mine.made_for != wanted:
        _mine.http = PatientClient(timeout=CALL_SECONDS, session=requests.Session())
        _mine.client = stripe.StripeClient(
            settings.STRIPE_SECRET_KEY,
            stripe_version=API_VERSION,
            base_addresses={"api": settings.STRIPE_API_BASE},
            max_network_retries=deadline.retries,  # of later pages of a list, which take no options
            http_client=_mine.http,
        )
        _mine.made_for = wanted
    _mine.http.deadline = deadline
    return _mine.client


def _named(problem: stripe.StripeError, operation: str) -> tuple[GatewayError, str]:
    """Who must act (B13.4). Only codes and Stripe's id of the request are logged."""
    status = problem.http_status or 0
    known_as = f"operation={operation} status={status} code={problem.code} request={problem.request_id}"
    if isinstance(problem, stripe.CardError):
        logger.info("Stripe: a card was declined. %s", known_as)
        return _declined(problem), "declined"
    if isinstance(problem, stripe.APIConnectionError) or status >= 500 or status in (409, 429):
        logger.warning("Stripe: %s. %s", type(problem).__name__, known_as)
        return GatewayDown(), "down"
    if status in (401, 403):
        alerts.call_staff(
            "stripe_key_refused", "Stripe does not accept the key for this.", operation=operation
        )
    elif problem.code == "resource_missing":
        return GatewayMissing(), "missing"
    logger.error("Stripe refused: %s. %s", type(problem).__name__, known_as)
    return GatewayRefusal(), "refused"


def _declined(problem: stripe.CardError) -> CardDeclined:
    intent = problem.error.payment_intent if problem.error else None
    return CardDeclined(
        needs_customer=problem.code in NEEDS_CUSTOMER, payment_intent_id=intent.id if intent else ""
    )
