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

from billing import metrics, staff_alerts
from billing.errors import (
    CardDeclined,
    PaymentResourceMissing,
    PaymentsDisabled,
    PaymentServiceError,
    PaymentServiceRefusal,
    PaymentServiceUnavailable,
)

logger = logging.getLogger(__name__)
logging.getLogger("stripe").setLevel(logging.WARNING)  # below, it writes whole requests

API_VERSION = "2026-10-28.endive"  # the SDK's own; SDK, pin and the tests' fake change together
NANOSECONDS_PER_SECOND = 1_000_000_000
CALL_TIMEOUT_SECONDS = 8.0
AUTHENTICATION_CODES = ("authentication_required", "payment_intent_action_required")


@dataclass(frozen=True, kw_only=True)
class StripeDeadline:
    """Until when a sequence of calls may take, and how often one of them is tried again by the SDK."""

    ends_at_nanoseconds: int  # by the monotonic clock
    retries: int

    def get_seconds_left(self) -> float:
        return (self.ends_at_nanoseconds - time.monotonic_ns()) / NANOSECONDS_PER_SECOND


def start_request_deadline(seconds: float = 30.0) -> StripeDeadline:
    """Somebody waits for it."""
    return StripeDeadline(ends_at_nanoseconds=_compute_end(seconds), retries=1)


def start_task_deadline(seconds: float = 90.0) -> StripeDeadline:
    """Nobody waits; it still ends before the claim on an event does."""
    return StripeDeadline(ends_at_nanoseconds=_compute_end(seconds), retries=2)


def _compute_end(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * NANOSECONDS_PER_SECOND)


RawResponse = tuple[bytes, int, Mapping[str, str]]


class DeadlineHttpClient(stripe.RequestsClient):
    """Waits for one whole answer as long as the deadline allows, at most eight seconds.

    The time-outs of `requests` are for one connect and one read each; an answer that drips in passes them for ever. So
    the call has a thread of its own, which is left behind, with its connection, when the time is over.
    """

    deadline: StripeDeadline

    def request(  # type: ignore[override]
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None
    ) -> RawResponse:
        left_seconds = min(CALL_TIMEOUT_SECONDS, self.deadline.get_seconds_left())
        if left_seconds <= 0:
            raise stripe.APIConnectionError("The time for this is over.", should_retry=False)  # type: ignore[no-untyped-call]
        self._timeout = left_seconds
        answer: Future[RawResponse] = Future()
        asked = partial(super().request, method, url, headers, post_data)
        threading.Thread(target=_resolve_response, args=(answer, asked), name="stripe", daemon=True).start()
        try:
            return answer.result(left_seconds)
        except TimeoutError:
            self._session = requests.Session()
            raise stripe.APIConnectionError("No whole answer in time.", should_retry=True) from None  # type: ignore[no-untyped-call]


def _resolve_response(answer: Future[RawResponse], ask: Callable[[], RawResponse]) -> None:
    try:
        answer.set_result(ask())
    except stripe.StripeError as problem:  # the SDK makes one of everything
        answer.set_exception(problem)


class _ThreadClients(threading.local):
    """Sessions of `requests` are not for several threads; a key that changes makes another client."""

    made_for: tuple[str, str, int] = ("", "", 0)
    http: DeadlineHttpClient
    client: stripe.StripeClient


_thread_clients = _ThreadClients()


@dataclass(frozen=True, kw_only=True)
class StripeCall:
    """One operation at Stripe: the services, and what goes with each request."""

    client: stripe.StripeClient
    deadline: StripeDeadline

    def build_options(self, key: str = "") -> Any:
        """A write carries its idempotency key, so that the SDK's repetition makes nothing twice."""
        options: dict[str, str | int] = {"max_network_retries": self.deadline.retries}
        return {**options, "idempotency_key": key} if key else options


@contextmanager
def call_stripe(operation: str, deadline: StripeDeadline) -> Iterator[StripeCall]:
    """Names what goes wrong inside; without a key nothing is tried at all (B19.1)."""
    if not settings.STRIPE_SECRET_KEY:
        raise PaymentsDisabled
    began, outcome = time.monotonic(), "done"
    try:
        yield StripeCall(client=_get_client(deadline), deadline=deadline)
    except stripe.StripeError as problem:
        error, outcome = _convert_error(problem, operation)
        raise error from problem
    finally:
        metrics.stripe_calls.labels(operation, outcome).observe(time.monotonic() - began)


def _get_client(deadline: StripeDeadline) -> stripe.StripeClient:
    wanted = (settings.STRIPE_SECRET_KEY, settings.STRIPE_API_BASE, deadline.retries)
    if _thread_clients.made_for != wanted:
        _thread_clients.http = DeadlineHttpClient(timeout=CALL_TIMEOUT_SECONDS, session=requests.Session())
        _thread_clients.client = stripe.StripeClient(
            settings.STRIPE_SECRET_KEY,
            stripe_version=API_VERSION,
            base_addresses={"api": settings.STRIPE_API_BASE},
            max_network_retries=deadline.retries,  # of later pages of a list, which take no options
            http_client=_thread_clients.http,
        )
        _thread_clients.made_for = wanted
    _thread_clients.http.deadline = deadline
    return _thread_clients.client


def _convert_error(problem: stripe.StripeError, operation: str) -> tuple[PaymentServiceError, str]:
    """Who must act (B13.4). Only codes and Stripe's id of the request are logged."""
    status = problem.http_status or 0
    known_as = f"operation={operation} status={status} code={problem.code} request={problem.request_id}"
    if isinstance(problem, stripe.CardError):
        logger.info("Stripe: a card was declined. %s", known_as)
        return _convert_card_error(problem), "declined"
    if isinstance(problem, stripe.APIConnectionError) or status >= 500 or status in (409, 429):
        logger.warning("Stripe: %s. %s", type(problem).__name__, known_as)
        return PaymentServiceUnavailable(), "down"
    if status in (401, 403):
        staff_alerts.alert_staff(
            "stripe_key_refused", "Stripe does not accept the key for this.", operation=operation
        )
    elif problem.code == "resource_missing":
        return PaymentResourceMissing(), "missing"
    logger.error("Stripe refused: %s. %s", type(problem).__name__, known_as)
    return PaymentServiceRefusal(), "refused"


def _convert_card_error(problem: stripe.CardError) -> CardDeclined:
    intent = problem.error.payment_intent if problem.error else None
    return CardDeclined(
        needs_customer=problem.code in AUTHENTICATION_CODES, payment_intent_id=intent.id if intent else ""
    )
