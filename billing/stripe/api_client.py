"""Call Stripe: one client per thread, a deadline for every operation, and Stripe's errors translated to ours."""

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
import structlog
from django.conf import settings

from billing import metrics
from billing.errors import (
    CardDeclined,
    PaymentResourceMissing,
    PaymentsDisabled,
    PaymentServiceError,
    PaymentServiceRefusal,
    PaymentServiceUnavailable,
)

log = structlog.get_logger(__name__)
logging.getLogger("stripe").setLevel(logging.WARNING)  # at INFO the SDK logs whole requests

API_VERSION = "2026-10-28.endive"  # the SDK's version; change it together with the SDK and the tests' fake
NANOSECONDS_PER_SECOND = 1_000_000_000
CALL_TIMEOUT_SECONDS = 8.0
AUTHENTICATION_CODES = ("authentication_required", "payment_intent_action_required")


@dataclass(frozen=True, kw_only=True)
class StripeDeadline:
    """The deadline of a sequence of calls, and how often the SDK retries each."""

    ends_at_nanoseconds: int  # by the monotonic clock
    retries: int

    def get_seconds_left(self) -> float:
        return (self.ends_at_nanoseconds - time.monotonic_ns()) / NANOSECONDS_PER_SECOND


def start_request_deadline(seconds: float = 30.0) -> StripeDeadline:
    """Start a deadline for work that somebody waits for."""
    return StripeDeadline(ends_at_nanoseconds=_compute_end(seconds), retries=1)


def start_task_deadline(seconds: float = 90.0) -> StripeDeadline:
    """Start a deadline for background work, shorter than the claim on an event."""
    return StripeDeadline(ends_at_nanoseconds=_compute_end(seconds), retries=2)


def _compute_end(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * NANOSECONDS_PER_SECOND)


RawResponse = tuple[bytes, int, Mapping[str, str]]


class DeadlineHttpClient(stripe.RequestsClient):
    """Wait for a whole response until the deadline, at most eight seconds.

    The timeouts of `requests` cover one connect and one read, so a response that trickles in never times out. Each call
    therefore runs on its own thread, which is abandoned with its connection when the time is up.
    """

    deadline: StripeDeadline

    def request(  # type: ignore[override]
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None
    ) -> RawResponse:
        left_seconds = min(CALL_TIMEOUT_SECONDS, self.deadline.get_seconds_left())
        if left_seconds <= 0:
            raise stripe.APIConnectionError("Deadline exceeded.", should_retry=False)  # type: ignore[no-untyped-call]
        self._timeout = left_seconds
        answer: Future[RawResponse] = Future()
        send = partial(super().request, method, url, headers, post_data)
        threading.Thread(target=_resolve_response, args=(answer, send), name="stripe", daemon=True).start()
        try:
            return answer.result(left_seconds)
        except TimeoutError:
            self._session = requests.Session()
            raise stripe.APIConnectionError("No complete response in time.", should_retry=True) from None  # type: ignore[no-untyped-call]


def _resolve_response(answer: Future[RawResponse], send: Callable[[], RawResponse]) -> None:
    try:
        answer.set_result(send())
    except stripe.StripeError as problem:  # the SDK wraps every failure in one
        answer.set_exception(problem)


class _ThreadClients(threading.local):
    """`requests` sessions are not thread-safe; a changed key or base URL creates a new client."""

    created_for: tuple[str, str, int] = ("", "", 0)
    http: DeadlineHttpClient
    client: stripe.StripeClient


_thread_clients = _ThreadClients()


@dataclass(frozen=True, kw_only=True)
class StripeCall:
    """One operation at Stripe: the client and the options of each request."""

    client: stripe.StripeClient
    deadline: StripeDeadline

    def build_options(self, key: str = "") -> Any:
        """Build request options. A write carries its idempotency key, so that the SDK's retry creates nothing twice."""
        options: dict[str, str | int] = {"max_network_retries": self.deadline.retries}
        return {**options, "idempotency_key": key} if key else options


@contextmanager
def call_stripe(operation: str, deadline: StripeDeadline) -> Iterator[StripeCall]:
    """Translate Stripe's errors and measure the call. Raise PaymentsDisabled without a key."""
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
    key = (settings.STRIPE_SECRET_KEY, settings.STRIPE_API_BASE, deadline.retries)
    if _thread_clients.created_for != key:
        _thread_clients.http = DeadlineHttpClient(timeout=CALL_TIMEOUT_SECONDS, session=requests.Session())
        _thread_clients.client = stripe.StripeClient(
            settings.STRIPE_SECRET_KEY,
            stripe_version=API_VERSION,
            base_addresses={"api": settings.STRIPE_API_BASE},
            max_network_retries=deadline.retries,  # for later pages of a list, which take no options
            http_client=_thread_clients.http,
        )
        _thread_clients.created_for = key
    _thread_clients.http.deadline = deadline
    return _thread_clients.client


def _convert_error(problem: stripe.StripeError, operation: str) -> tuple[PaymentServiceError, str]:
    """Translate an error. Only codes and Stripe's request id are logged."""
    status = problem.http_status or 0
    fields = {
        "operation": operation,
        "status": status,
        "code": problem.code,
        "request_id": problem.request_id,
        "error": type(problem).__name__,
    }
    if isinstance(problem, stripe.CardError):
        log.info("stripe_card_declined", **fields)
        return _convert_card_error(problem), "declined"
    if isinstance(problem, stripe.APIConnectionError) or status >= 500 or status in (409, 429):
        log.warning("stripe_unavailable", **fields)
        return PaymentServiceUnavailable(), "down"
    if status in (401, 403):
        metrics.alert_staff(
            "stripe_key_refused", "Stripe refused the API key for this operation.", operation=operation
        )
    elif problem.code == "resource_missing":
        return PaymentResourceMissing(), "missing"
    log.error("stripe_request_refused", **fields)
    return PaymentServiceRefusal(), "refused"


def _convert_card_error(problem: stripe.CardError) -> CardDeclined:
    intent = problem.error.payment_intent if problem.error else None
    return CardDeclined(
        needs_customer=problem.code in AUTHENTICATION_CODES, payment_intent_id=intent.id if intent else ""
    )
