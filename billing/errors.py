"""What billing refuses, and who must act.

BillingError
├── Refused                  the user must act or wait; carries the wire's code and status
│   ├── InvalidRequest       400  the request is malformed; says where
│   ├── ResetRefused         400, 409, 429  no reset can be bought now
│   ├── RefundTooLarge       400  more would be refunded than was spent
│   ├── TierNotAvailable     400  the plan is not sold
│   ├── InsufficientCredits  402  the balance does not suffice
│   ├── PaymentOverdue       402  what is owed comes first; says where it is paid
│   ├── ManagedByAdmin       403  the plan is set by staff
│   ├── UnknownUser          404
│   ├── ChangeInProgress     409  another request changes the plan at this moment
│   ├── PaymentsOff          409  nothing is sold on this installation, or just now
│   ├── NoCustomer           409  nothing was ever paid, so there is nothing to look at
│   ├── NoSavedCard          409  nothing can be charged without asking
│   ├── LimitReached         429  the day's or week's use is at its limit
│   ├── ResetUnavailable     503  a reset could not be made; nothing was charged, or it was refunded
│   └── GatewayError         502  Stripe did not do what was asked
│       ├── GatewayDown      it may work later: no connection, a fault of theirs, too many calls
│       ├── GatewayRefusal   it will not work as asked
│       │   └── GatewayMissing  there is no such thing at Stripe
│       └── CardDeclined     402  the customer's bank refused, or wants to see him
├── BadSignature             what was sent to Stripe's door is not Stripe's
├── Conflict                 an idempotency key was used before, for something else
└── CountersDown             Redis did not answer; callers go on without it or refuse, as B1.4 says
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
    "reset_not_available": (400, gettext_lazy("Resets are not sold on this installation.")),
    "no_daily_limit": (400, gettext_lazy("You have no daily limit, so there is nothing to reset.")),
    "not_over_limit": (
        400,
        gettext_lazy("You have not reached your daily limit, so there is nothing to reset."),
    ),
    "weekly_limit_reached": (
        409,
        gettext_lazy("Your weekly limit is reached too, so a reset of the day would not help."),
    ),
    "reset_in_progress": (409, gettext_lazy("Another reset is being made at this moment.")),
    "too_many_resets": (429, gettext_lazy("You have bought all resets there are for today.")),
}


class BillingError(Exception):
    """Root of the tree; never raised itself."""

    retryable: ClassVar[bool] = False


class BillingRequestRefused(BillingError):
    """A request that was understood and cannot be served to this user now."""

    status: int = 400

    def __init__(self, message: str, *, code: str, **details: RefusalDetail) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self._details = details

    def details(self) -> dict[str, RefusalDetail]:
        """The wire's fields besides code and message (B16.3)."""
        return self._details

    def retry_after_seconds(self, now: datetime) -> int | None:
        """When it is worth trying again; None when time alone does not help."""
        return None


class InvalidRequest(BillingRequestRefused):
    def __init__(self, errors: dict[str, list[str]]) -> None:
        first = next(f"{name}: {texts[0]}" for name, texts in errors.items())
        super().__init__(first, code="invalid_request", errors=errors)


class UsageResetRefused(BillingRequestRefused):
    """By one of the codes above."""

    def __init__(self, code: str) -> None:
        self.status, sentence = RESET_REFUSAL_MESSAGES[code]
        super().__init__(str(sentence), code=code)


class RefundTooLarge(BillingRequestRefused):
    def __init__(self) -> None:
        super().__init__(_("More would be refunded than was spent."), code="refund_too_large")


class TierNotAvailable(BillingRequestRefused):
    def __init__(self) -> None:
        super().__init__(_("This plan is not for sale."), code="tier_not_available")


class PaymentOverdue(BillingRequestRefused):
    """What is owed comes first; `url` is where it is settled."""

    status = 402

    def __init__(self, url: str = "") -> None:
        text = _("A payment for your plan is overdue. Settle it first, or cancel the plan.")
        super().__init__(text, code="payment_overdue", url=url)


class PlanManagedByAdmin(BillingRequestRefused):
    status = 403

    def __init__(self) -> None:
        super().__init__(_("Your plan is managed by an administrator."), code="managed_by_admin")


class PlanChangeInProgress(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        text = _("Your plan is being changed at this moment. Look again when that has ended.")
        super().__init__(text, code="change_in_progress")


class InsufficientCredits(BillingRequestRefused):
    status = 402

    def __init__(self) -> None:
        super().__init__(_("You do not have enough credits for this."), code="insufficient_credits")


class UnknownUser(BillingRequestRefused):
    status = 404

    def __init__(self) -> None:
        super().__init__(_("There is no such user."), code="unknown_user")


class PaymentsDisabled(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        text = _("Payments are not set up on this installation. An administrator can change your plan.")
        super().__init__(text, code="payments_off")


class NoStripeCustomer(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        super().__init__(_("You have not paid for anything yet."), code="no_customer")


class NoSavedCard(BillingRequestRefused):
    status = 409

    def __init__(self) -> None:
        text = _("There is no saved card. Top up once with automatic top-ups wanted, and it is kept.")
        super().__init__(text, code="no_saved_card")


class LimitReached(BillingRequestRefused):
    """No new work before `resets_at` (B6.6). Its text names window and time, never an amount."""

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
        """Whole seconds, rounded up, at least one (B16.4)."""
        return max(1, -((now - self.resets_at) // timedelta(seconds=1)))


class UsageResetUnavailable(BillingRequestRefused):
    status = 503

    def __init__(self, *, refunded: bool = False) -> None:
        text = (
            _("The reset could not be made. What it cost was refunded.")
            if refunded
            else _("The reset could not be made. Nothing was charged.")
        )
        super().__init__(text, code="reset_unavailable", refunded=refunded)


class PaymentServiceError(BillingRequestRefused):
    """Stripe did not do what was asked. The user may try again or ask for help; we know more from the log."""

    status = 502

    def __init__(self, message: str = "", *, code: str = "stripe_unavailable") -> None:
        text = _(
            "The payment service could not do this just now. Try again, or contact support if it goes on."
        )
        super().__init__(message or text, code=code)


class PaymentServiceUnavailable(PaymentServiceError):
    """No connection, a fault of theirs, or too many calls: the same may work later."""

    retryable = True


class PaymentServiceRefusal(PaymentServiceError):
    """Understood and refused: asking the same again is of no use."""


class PaymentResourceMissing(PaymentServiceRefusal):
    """There is no such thing at Stripe, or no longer."""


class CardDeclined(PaymentServiceError):
    """By the bank. `needs_customer`: it would go through if he were there to prove himself."""

    status = 402

    def __init__(self, *, needs_customer: bool, payment_intent_id: str) -> None:
        self.needs_customer = needs_customer
        self.payment_intent_id = payment_intent_id
        super().__init__(_("Your card was declined."), code="card_declined")


class InvalidWebhookSignature(BillingError):
    """Forged, too old, or not readable at all."""


class IdempotencyConflict(BillingError):
    """Nothing was written: the key belongs to an entry of other content (B9.1)."""


class CountersUnavailable(BillingError):
    """Redis did not answer in time, or not as it should."""

    retryable = True


_LIMIT_MESSAGES = {
    ("daily", "used"): gettext_lazy("You have reached your daily limit. It resets on %(when)s."),
    ("weekly", "used"): gettext_lazy("You have reached your weekly limit. It resets on %(when)s."),
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
