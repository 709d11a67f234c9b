"""Change an account's plan under a lease, from the request to the outcome, and end subscriptions of deleted accounts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import assert_never
from uuid import uuid4

import structlog
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from billing import accounts, plans
from billing.errors import (
    BillingRequestRefused,
    PaymentOverdue,
    PaymentsDisabled,
    PaymentServiceError,
    PaymentServiceRefusal,
    PlanChangeInProgress,
    PlanManagedByAdmin,
)
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.selectors import plan_status
from billing.selectors.plan_status import ClientAction, Status
from billing.stripe import api_client, objects, payment_api, subscription_api
from billing.stripe.objects import SchedulePhase, StripeSubscription
from billing.subscriptions import account_tiers, current_plan, plan_checkouts, plan_previews
from billing.subscriptions.current_plan import CurrentPlan
from billing.subscriptions.plan_checkouts import CheckoutUrls
from billing.subscriptions.plan_decisions import (
    HEALTH_BY_STATUS,
    PlanAction,
    decide_with_payment,
    decide_without_payment,
)
from billing.subscriptions.stripe_sync import sync_subscription

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlanChangeAttempt:
    """One attempt at Stripe: its deadline, and the plan change that all idempotency keys derive from."""

    change: PlanChange
    deadline: api_client.StripeDeadline
    completed_steps: list[str] = field(default_factory=list)  # recorded if the attempt fails

    def build_key(self, step: str) -> str:
        return f"plan:{self.change.pk}:{step}"


def keep_plan(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Undo every pending change: schedule, cancellation and unpaid upgrade."""
    _release_schedule(attempt, subscription)
    _undo_cancellation(attempt, subscription)
    _void_pending_upgrade(attempt, subscription)


def cancel_at_period_end(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Cancel at the end of the period. The schedule goes first, because Stripe refuses this on scheduled subscriptions."""
    _release_schedule(attempt, subscription)
    _void_pending_upgrade(attempt, subscription)
    if not subscription.cancel_at_period_end:
        subscription_api.set_cancel_at_period_end(
            attempt.deadline, subscription.id, cancel=True, key=attempt.build_key("cancel")
        )
        attempt.completed_steps.append("cancel")


def cancel_immediately(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    subscription_api.cancel_subscription(attempt.deadline, subscription.id, key=attempt.build_key("cancel"))
    attempt.completed_steps.append("cancel")


def upgrade_subscription(
    attempt: PlanChangeAttempt,
    subscription: StripeSubscription,
    price_id: str,
    *,
    proration_date: datetime | None,
) -> StripeSubscription:
    """Raise the price and charge at once. If unpaid, Stripe keeps the old price and returns a pending update."""
    is_pending = subscription.pending_update is not None and subscription.pending_update.price_id == price_id
    _release_schedule(attempt, subscription)
    _undo_cancellation(attempt, subscription)
    if (
        is_pending
        and subscription.latest_invoice is not None
        and subscription.latest_invoice.status == "open"
    ):
        return subscription  # a repeated request pays the same invoice, not a second one
    _void_pending_upgrade(attempt, subscription)
    raised = subscription_api.change_subscription_price(
        attempt.deadline,
        subscription,
        price_id,
        key=attempt.build_key("price"),
        proration_date=proration_date,
    )
    attempt.completed_steps.append("price")
    return raised


def downgrade_subscription(
    attempt: PlanChangeAttempt, subscription: StripeSubscription, price_id: str
) -> None:
    """Lower the price with the next period by a schedule, and leave no half-made schedule on failure."""
    _release_schedule(attempt, subscription)
    _undo_cancellation(attempt, subscription)
    _void_pending_upgrade(attempt, subscription)
    try:
        schedule = subscription_api.create_schedule(
            attempt.deadline, subscription.id, key=attempt.build_key("schedule")
        )
        attempt.completed_steps.append("schedule")
        subscription_api.schedule_price_change(
            attempt.deadline,
            schedule.id,
            current=_build_current_phase(subscription, schedule),
            price_id=price_id,
            key=attempt.build_key("phases"),
        )
    except PaymentServiceError:
        _drop_schedule(attempt, subscription)
        raise


def _build_current_phase(
    subscription: StripeSubscription, schedule: objects.SubscriptionSchedule
) -> SchedulePhase:
    """Return the running phase exactly as Stripe has it."""
    first_phase = schedule.phases[0]
    return SchedulePhase(
        price_id=subscription.price_id,
        starts_at=schedule.current_starts_at or first_phase.starts_at,
        ends_at=schedule.current_ends_at or first_phase.ends_at,
        trial_ends_at=subscription.trial_end if subscription.status == "trialing" else None,
    )


def _drop_schedule(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Release the schedule, even if its creation was never confirmed to us. If this fails, the next attempt releases it."""
    try:
        current = subscription_api.get_subscription(attempt.deadline, subscription.id)
        if current is not None and current.schedule_id:
            subscription_api.release_schedule(
                attempt.deadline, current.schedule_id, key=attempt.build_key("undo")
            )
    except PaymentServiceError:
        log.warning("schedule_release_failed", subscription_id=subscription.id)


# --- Steps ---


def _release_schedule(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Release the schedule. After a refusal, check whether it is already over, which counts as done."""
    if not subscription.schedule_id or (subscription.schedule is not None and subscription.schedule.is_over):
        return
    try:
        subscription_api.release_schedule(
            attempt.deadline, subscription.schedule_id, key=attempt.build_key("release")
        )
    except PaymentServiceRefusal:
        schedule = subscription_api.get_schedule(attempt.deadline, subscription.schedule_id)
        if schedule is not None and not schedule.is_over:
            raise
    attempt.completed_steps.append("release")


def _undo_cancellation(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    if subscription.cancel_at_period_end or subscription.cancel_at is not None:
        subscription_api.set_cancel_at_period_end(
            attempt.deadline, subscription.id, cancel=False, key=attempt.build_key("uncancel")
        )
        attempt.completed_steps.append("uncancel")


def _void_pending_upgrade(attempt: PlanChangeAttempt, subscription: StripeSubscription) -> None:
    """Void the open invoice of an unpaid upgrade, which makes Stripe drop the upgrade."""
    invoice = subscription.latest_invoice
    if subscription.pending_update is None or invoice is None or invoice.status != "open":
        return
    try:
        subscription_api.void_invoice(attempt.deadline, invoice.id, key=attempt.build_key("void"))
    except PaymentServiceRefusal:
        current = subscription_api.get_invoice(attempt.deadline, invoice.id)
        if current is not None and current.status == "open":
            raise
    attempt.completed_steps.append("void")


CHANGE_LEASE_DURATION = timedelta(
    seconds=120
)  # four times a request's deadline at Stripe, so that only a crash lets it expire


@contextmanager
def hold_change_lease(account_id: int) -> Iterator[None]:
    """Hold the lease for the block, or raise PlanChangeInProgress without waiting."""
    token, now = uuid4(), timezone.now()
    free = Q(change_token=None) | Q(change_lease_until__lt=now)
    taken = Account.objects.filter(free, pk=account_id).update(
        change_token=token, change_lease_until=now + CHANGE_LEASE_DURATION
    )
    if not taken:
        raise PlanChangeInProgress
    try:
        yield
    finally:
        Account.objects.filter(pk=account_id, change_token=token).update(
            change_token=None, change_lease_until=None
        )


CHANGE_TIMEOUT_SECONDS = 30.0  # all calls to Stripe in one request
MAX_DECISION_ROUNDS = 3  # decide again if the plan changed while we looked


@dataclass(frozen=True, kw_only=True)
class PlanChangeRequest:
    """The requested tier, and where the browser returns to after a checkout."""

    tier: str
    urls: CheckoutUrls


@dataclass(frozen=True, kw_only=True)
class PlanChangeOutcome:
    """The next step for the client, if any."""

    action: ClientAction = "none"
    url: str = ""


class _PlanMovedMeanwhile(Exception):
    """The account's plan changed after it was loaded."""


def change_plan(user_id: int, change_request: PlanChangeRequest) -> Status:
    """Change the plan and return the status, read after the lease is released."""
    account = accounts.get_or_create_account(user_id)
    if account.tier == "ENTERPRISE":
        raise PlanManagedByAdmin
    with hold_change_lease(account.pk):
        outcome = _decide_and_perform(
            account.pk, change_request, api_client.start_request_deadline(CHANGE_TIMEOUT_SECONDS)
        )
    return plan_status.get_subscription_status(user_id, action=outcome.action, url=outcome.url)


def _decide_and_perform(
    account_id: int, change_request: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> PlanChangeOutcome:
    for _ in range(MAX_DECISION_ROUNDS):
        with _record_early_failure(account_id, change_request, deadline):
            current = current_plan.load_current_plan(account_id, deadline)
        try:
            return _perform_request(current, change_request, deadline)
        except _PlanMovedMeanwhile:
            with _record_early_failure(account_id, change_request, deadline):
                sync_subscription(account_id, deadline=deadline)
    raise PlanChangeInProgress


@contextmanager
def _record_early_failure(
    account_id: int, change_request: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> Iterator[None]:
    """Record an attempt that fails before anything is decided."""
    try:
        yield
    except PaymentServiceError as problem:
        account = Account.objects.get(pk=account_id)
        kind = _get_change_kind(
            PlanAction.KEEP if change_request.tier == account.tier else None,
            account.tier,
            change_request.tier,
        )
        change = PlanChange(account=account, kind=kind, from_tier=account.tier, to_tier=change_request.tier)
        _record_failure(PlanChangeAttempt(change=change, deadline=deadline), problem)
        raise


def _perform_request(
    current: CurrentPlan, change_request: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> PlanChangeOutcome:
    account = current.account
    if account.tier == "ENTERPRISE":
        raise PlanManagedByAdmin
    situation = current.get_situation()
    policy = TierPolicy.objects.filter(tier=change_request.tier).first()
    action = decide_without_payment(situation, change_request.tier)
    change = PlanChange(
        account=account,
        kind=_get_change_kind(action, account.tier, change_request.tier),
        from_tier=account.tier,
        to_tier=change_request.tier,
    )
    attempt = PlanChangeAttempt(change=change, deadline=deadline)
    try:
        if action is None:
            action = decide_with_payment(situation, change_request.tier, current_plan.get_tier_offer(policy))
            change.kind = _get_change_kind(action, account.tier, change_request.tier)
        outcome = _perform_action(action, attempt, current, change_request)
    except BillingRequestRefused as problem:
        _record_failure(attempt, problem)
        raise _add_portal_url(problem, current, change_request, deadline) from problem
    if outcome.action == "none":
        change.state = PlanChange.State.DONE
        change.save(update_fields=["state"])
    if current.subscription is not None:
        sync_subscription(account.pk, deadline=deadline)
    return outcome


def _get_change_kind(action: PlanAction | None, tier: str, requested_tier: str) -> str:
    """Return the kind to record for an attempt, including one that fails."""
    kinds = PlanChange.Kind
    match action:
        case PlanAction.KEEP:
            return kinds.KEEP
        case PlanAction.CHECKOUT:
            return kinds.CHECKOUT
        case _:
            if requested_tier == "FREE":
                return kinds.CANCEL
            raised = plans.get_tier_rank(requested_tier) > plans.get_tier_rank(tier)
            return kinds.UPGRADE if raised else kinds.DOWNGRADE


# --- Performing ---


def _perform_action(
    action: PlanAction, attempt: PlanChangeAttempt, current: CurrentPlan, change_request: PlanChangeRequest
) -> PlanChangeOutcome:
    if action is PlanAction.CHECKOUT:
        return _perform_checkout(attempt, current, change_request)
    attempt.change.save(force_insert=True)
    if action is PlanAction.SET:
        with transaction.atomic():
            account_tiers.write_tier(account_tiers.lock_account(current.account.pk), change_request.tier)
        return PlanChangeOutcome()
    subscription = current.subscription
    if subscription is None:
        if action is not PlanAction.KEEP or current.is_waiting_for_stripe:
            raise PaymentsDisabled  # a subscription exists but there is no key: never show a change that Stripe does not make
        return PlanChangeOutcome()
    match action:
        case PlanAction.KEEP:
            keep_plan(attempt, subscription)
        case PlanAction.CANCEL_LATER:
            cancel_at_period_end(attempt, subscription)
        case PlanAction.CANCEL_NOW:
            cancel_immediately(attempt, subscription)
        case PlanAction.DOWNGRADE:
            downgrade_subscription(attempt, subscription, _get_price_id(change_request.tier))
        case PlanAction.UPGRADE:
            return _perform_upgrade(attempt, current, subscription, change_request)
        case unreachable:
            assert_never(unreachable)
    return PlanChangeOutcome()


def _perform_upgrade(
    attempt: PlanChangeAttempt,
    current: CurrentPlan,
    subscription: objects.StripeSubscription,
    change_request: PlanChangeRequest,
) -> PlanChangeOutcome:
    price_id = _get_price_id(change_request.tier)
    proration_date = plan_previews.get_previewed_date(current.account.user_id, subscription, price_id)
    raised = upgrade_subscription(attempt, subscription, price_id, proration_date=proration_date)
    if raised.pending_update is None:
        return PlanChangeOutcome()
    attempt.change.subscription_id = (
        subscription.id
    )  # lets the sync finish this change once it is paid or abandoned
    attempt.change.save(update_fields=["subscription_id"])
    invoice = raised.latest_invoice
    if invoice is not None and invoice.hosted_url:
        return PlanChangeOutcome(action="pay_invoice", url=invoice.hosted_url)
    return PlanChangeOutcome(action="portal", url=_get_portal_url(current, change_request, attempt.deadline))


def _perform_checkout(
    attempt: PlanChangeAttempt, current: CurrentPlan, change_request: PlanChangeRequest
) -> PlanChangeOutcome:
    """Clear open checkouts before recording the attempt, because only one may be open."""
    account, deadline = current.account, attempt.deadline
    if plan_checkouts.close_open_checkout(account, deadline):
        raise _PlanMovedMeanwhile
    found = current.all_subscriptions
    if found is None and account.stripe_customer_id:
        found = subscription_api.list_subscriptions(deadline, account.stripe_customer_id)
        if any(subscription.is_live or subscription.is_owing for subscription in found):
            raise _PlanMovedMeanwhile
    plan_checkouts.cancel_incomplete_subscriptions(found or [], deadline)
    attempt.change.save(force_insert=True)
    policy = TierPolicy.objects.get(tier=change_request.tier)
    return PlanChangeOutcome(
        action="checkout",
        url=plan_checkouts.open_checkout(attempt.change, account, policy, change_request.urls, deadline),
    )


def _get_price_id(tier: str) -> str:
    return TierPolicy.objects.get(tier=tier).stripe_price_id or ""


# --- Failures ---


def _record_failure(attempt: PlanChangeAttempt, problem: BillingRequestRefused) -> None:
    change = attempt.change
    change.state, change.error = PlanChange.State.FAILED, problem.code
    if attempt.completed_steps:
        change.error += f" after {', '.join(attempt.completed_steps)}"
    if isinstance(problem, PaymentServiceError):
        log.error(
            "plan_change_failed",
            plan_change_id=str(change.pk),
            account_id=change.account_id,
            error=change.error,
        )
    change.save()


def _add_portal_url(
    problem: BillingRequestRefused,
    current: CurrentPlan,
    change_request: PlanChangeRequest,
    deadline: api_client.StripeDeadline,
) -> BillingRequestRefused:
    """Add the portal URL to an overdue-payment error, if Stripe answers."""
    if not isinstance(problem, PaymentOverdue):
        return problem
    try:
        return PaymentOverdue(_get_portal_url(current, change_request, deadline))
    except PaymentServiceError:
        return problem


def _get_portal_url(
    current: CurrentPlan, change_request: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> str:
    customer_id = current.account.stripe_customer_id or ""
    return payment_api.create_portal_session(
        deadline, customer_id=customer_id, return_url=change_request.urls.cancel_url
    )


# --- Account deletion ---


def erase_subscription(user_id: int) -> int:
    """End everything that could still be charged. Called on request and again when the deletion begins.

    Raises if Stripe cannot be reached, so that the caller retries. Ledger, usage and audit rows stay.
    """
    account = Account.objects.filter(user_id=user_id).first()
    if account is None or not account.stripe_customer_id:
        return 0
    deadline = api_client.start_request_deadline()  # a user may be waiting
    try:
        plan_checkouts.close_open_checkout(account, deadline)
        _cancel_all_subscriptions(account.stripe_customer_id, deadline)
        sync_subscription(account.pk, deadline=deadline)
    except PaymentsDisabled:
        if Subscription.objects.filter(account=account, status__in=HEALTH_BY_STATUS).exists():
            raise  # a subscription is still being paid, and there is no key to cancel it
    return 0


def _cancel_all_subscriptions(customer_id: str, deadline: api_client.StripeDeadline) -> None:
    for subscription in subscription_api.list_subscriptions(deadline, customer_id):
        if not subscription.is_over:
            subscription_api.cancel_subscription(deadline, subscription.id, key=f"erase:{subscription.id}")
