"""The errors billing raises.

BillingError
├── BillingRequestRefused          the user must act or wait; carries the error code and HTTP status
│   ├── InvalidRequest             400  the request is malformed; names the field
│   ├── UsageResetRefused          400, 409, 429  no reset can be bought now
│   ├── RefundTooLarge             400  the refund exceeds the spend
│   ├── TierNotAvailable           400  the plan is not sold
│   ├── InsufficientCredits        402  the balance is too low
│   ├── PaymentOverdue             402  an unpaid invoice comes first; carries the payment URL
│   ├── PlanManagedByAdmin         403  staff set the plan
│   ├── UnknownUser                404
│   ├── PlanChangeInProgress       409  another request is changing the plan
│   ├── PaymentsDisabled           409  payments are not set up, or switched off
│   ├── NoStripeCustomer           409  the user has never paid
│   ├── NoSavedCard                409  there is no card to charge
│   ├── LimitReached               429  the daily or weekly limit is used up
│   ├── UsageResetUnavailable      503  the reset failed; nothing was charged, or it was refunded
│   └── PaymentServiceError        502  Stripe did not do what was asked
│       ├── PaymentServiceUnavailable  a retry may work: no connection, a Stripe outage, too many calls
│       ├── PaymentServiceRefusal      a retry will not work
│       │   └── PaymentResourceMissing  the object does not exist at Stripe
│       └── CardDeclined           402  the bank declined, or needs the customer to confirm
├── InvalidWebhookSignature        the request to the webhook was not signed by Stripe
├── IdempotencyConflict            the idempotency key was used for something else
└── CountersUnavailable            Redis did not answer; limit checks allow, resets refuse
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Literal

from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

WindowName = Literal["daily", "weekly"]
LimitReason = Literal["used", "held"]
RefusalDetail = str | int | bool | dict[str, list[str]]

RESET_REFUSAL_MESSAGES: dict[str, tuple[int, _StrPromise]] = {
    "reset_not_available": (400, gettext_lazy("Limit resets aren't available here.")),
    "no_daily_limit": (400, gettext_lazy("You have no daily limit, so there is nothing to reset.")),
    "not_over_limit": (
        400,
        gettext_lazy("You haven't reached your daily limit, so there is nothing to reset."),
    ),
    "weekly_limit_reached": (
        409,
        gettext_lazy("You've reached your weekly limit too, so resetting the day wouldn't help."),
    ),
    "reset_in_progress": (409, gettext_lazy("Another reset is already in progress.")),
    "too_many_resets": (429, gettext_lazy("You've used all your resets for today.")),
}


class BillingError(Exception):
    retryable: ClassVar[bool] = False


class BillingRequestRefused(BillingError):
    status: int = 400

    def __init__(self, message: str, *, code: str, **details: RefusalDetail) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self._details = details

    def details(self) -> dict[str, RefusalDetail]:
        return self._details

    def retry_after_seconds(self, now: datetime) -> int | None:
        """Return how long to wait before a retry, or None if waiting does not help."""
        return None


class InvalidRequest(BillingRequestRefused):
    def __init__(self, errors: dict[str, list[str]]) -> None:
        first = next(f"{name}: {texts[0]}" for name, texts in errors.items())
        super().__init__(first, code="invalid_request", errors=errors)


class UsageResetRefused(BillingRequestRefused):
    def __init__(self, code: str) -> None:
        self.status, message_text = RESET_REFUSAL_MESSAGES[code]
        super().__init__(str(message_text), code=code)


class RefundTooLarge(BillingRequestRefused):
    def __init__(self) -> None:
        super().__init__(_("You can't refund more than was spent."), code="refund_too_large")


class TierNotAvailable(BillingRequestRefused):
    def __init__(self) -> None:
        super().__init__(_("This plan isn't available."), code="tier_not_available")


class PaymentOverdue(BillingRequestRefused):
    status = 402

    def __init__(self, url: str = "") -> None:
        text = _("A payment for your plan is overdue. Pay it first, or cancel the plan.")
        super().__init__(text, code="payment_overdue", url=url)


class PlanManagedByAdmin(BillingRequestRefused):
    status = 403

    def __init__(self) -> None:
        super().__init__(_("Your plan is managed by an administrator."), code="managed_by_admin")


class PlanChangeInProgress(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        text = _("Your plan is being changed right now. Check again in a moment.")
        super().__init__(text, code="change_in_progress")


class InsufficientCredits(BillingRequestRefused):
    status = 402

    def __init__(self) -> None:
        super().__init__(_("You don't have enough credits for this."), code="insufficient_credits")


class UnknownUser(BillingRequestRefused):
    status = 404

    def __init__(self) -> None:
        super().__init__(_("This user doesn't exist."), code="unknown_user")


class PaymentsDisabled(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        text = _("Payments aren't set up here. An administrator can change your plan.")
        super().__init__(text, code="payments_off")


class NoStripeCustomer(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        super().__init__(_("You haven't paid for anything yet."), code="no_customer")


class NoSavedCard(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        text = _("There is no saved card. Top up once and choose to save your card.")
        super().__init__(text, code="no_saved_card")


class LimitReached(BillingRequestRefused):
    """No new work until `resets_at`. The message names the window and the time, never an amount."""

    status = 429

    def __init__(
        self,
        *,
        window: WindowName,
        resets_at: datetime,
        reason: LimitReason = "used",
        reset_cost_cents: int = 0,
        can_reset: bool = False,
    ) -> None:
        self.window: WindowName = window
        self.resets_at = resets_at
        self.reason: LimitReason = reason
        self.reset_cost_cents = reset_cost_cents
        self.can_reset = can_reset
        super().__init__(
            _build_limit_message(self),
            code="limit_reached" if reason == "used" else "limit_held",
            window=window,
            resets_at=f"{resets_at:%Y-%m-%dT%H:%M:%SZ}",
            reason=reason,
            reset_cost_cents=reset_cost_cents,
            can_reset=can_reset,
        )

    def retry_after_seconds(self, now: datetime) -> int:
        """Return whole seconds, rounded up, at least one."""
        return max(1, -((now - self.resets_at) // timedelta(seconds=1)))


class UsageResetUnavailable(BillingRequestRefused):
    status = 503

    def __init__(self, *, refunded: bool = False) -> None:
        text = (
            _("The reset failed. Your credits were refunded.")
            if refunded
            else _("The reset failed. Nothing was charged.")
        )
        super().__init__(text, code="reset_unavailable", refunded=refunded)


class PaymentServiceError(BillingRequestRefused):
    """Stripe did not do what was asked; the details are in the log."""

    status = 502

    def __init__(self, message: str = "", *, code: str = "stripe_unavailable") -> None:
        text = _(
            "The payment service couldn't do this right now. Try again, or contact support if it keeps failing."
        )
        super().__init__(message or text, code=code)


class PaymentServiceUnavailable(PaymentServiceError):
    """No connection, a Stripe outage or too many calls: a retry may work."""

    retryable = True


class PaymentServiceRefusal(PaymentServiceError):
    """Stripe understood and refused: a retry will not work."""


class PaymentResourceMissing(PaymentServiceRefusal):
    """The object does not exist at Stripe, or no longer."""


class CardDeclined(PaymentServiceError):
    """`needs_customer` means the payment would succeed if the customer confirmed it with the bank."""

    status = 402

    def __init__(self, *, needs_customer: bool, payment_intent_id: str) -> None:
        self.needs_customer = needs_customer
        self.payment_intent_id = payment_intent_id
        super().__init__(_("Your card was declined."), code="card_declined")


class InvalidWebhookSignature(BillingError):
    """The signature is forged or too old, or the body is unreadable."""


class IdempotencyConflict(BillingError):
    """The key belongs to an entry with other content; nothing was written."""


class CountersUnavailable(BillingError):
    """Redis did not answer in time, or with an error."""

    retryable = True


_LIMIT_MESSAGES = {
    ("daily", "used"): gettext_lazy("You've reached your daily limit. It resets on %(when)s."),
    ("weekly", "used"): gettext_lazy("You've reached your weekly limit. It resets on %(when)s."),
    ("daily", "held"): gettext_lazy(
        "Your running chats have taken up the rest of your daily limit. It resets on %(when)s."
    ),
    ("weekly", "held"): gettext_lazy(
        "Your running chats have taken up the rest of your weekly limit. It resets on %(when)s."
    ),
}


def _build_limit_message(limit: LimitReached) -> str:
    when = f"{date_format(limit.resets_at, 'l, d F Y, H:i')} UTC"
    return str(_LIMIT_MESSAGES[limit.window, limit.reason]) % {"when": when}
