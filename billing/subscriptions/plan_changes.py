"""Change an account's plan under a lease, from the request to the outcome, and end subscriptions of deleted accounts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
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
    PlanChangeInProgress,
    PlanManagedByAdmin,
)
from billing.models import Account, PlanChange, Subscription, TierPolicy
from billing.selectors import plan_status
from billing.selectors.plan_status import ClientAction, Status
from billing.stripe import api_client, objects, payment_api, subscription_api
from billing.subscriptions import account_tiers, current_plan, plan_checkouts, plan_previews, stripe_actions
from billing.subscriptions.current_plan import CurrentPlan
from billing.subscriptions.plan_checkouts import CheckoutUrls
from billing.subscriptions.plan_decisions import (
    HEALTH_BY_STATUS,
    PlanAction,
    decide_with_payment,
    decide_without_payment,
)
from billing.subscriptions.stripe_actions import PlanChangeAttempt
from billing.subscriptions.stripe_sync import sync_subscription

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


log = structlog.get_logger(__name__)

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
            stripe_actions.keep_plan(attempt, subscription)
        case PlanAction.CANCEL_LATER:
            stripe_actions.cancel_at_period_end(attempt, subscription)
        case PlanAction.CANCEL_NOW:
            stripe_actions.cancel_immediately(attempt, subscription)
        case PlanAction.DOWNGRADE:
            stripe_actions.downgrade_subscription(attempt, subscription, _get_price_id(change_request.tier))
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
    raised = stripe_actions.upgrade_subscription(
        attempt, subscription, price_id, proration_date=proration_date
    )
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
