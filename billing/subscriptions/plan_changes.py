"""The right to change an account's plan: one at a time, whoever asks and from wherever (B11.4, step 3)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never
from uuid import uuid4

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
)  # four times what a request may spend at Stripe: only a dead process lets it run out


@contextmanager
def hold_change_lease(account_id: int) -> Iterator[None]:
    """Given back in all outcomes; who finds it taken does not wait."""
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


# MERGED subscriptions.changing: One request for a plan, from the lease to the answer (B11.4).

logger = logging.getLogger(__name__)

CHANGE_TIMEOUT_SECONDS = 30.0  # at Stripe, for a whole request
MAX_DECISION_ROUNDS = 3  # what was paid or ended while we looked is decided anew; it cannot go on happening


@dataclass(frozen=True, kw_only=True)
class PlanChangeRequest:
    """What was asked for, and where the browser goes if it must be paid."""

    tier: str
    urls: CheckoutUrls


@dataclass(frozen=True, kw_only=True)
class PlanChangeOutcome:
    """What the client has to do next, if anything."""

    action: ClientAction = "none"
    url: str = ""


class _PlanMovedMeanwhile(Exception):
    """The account is not what it was when we looked."""


def change_plan(user_id: int, wish: PlanChangeRequest) -> Status:
    """The status afterwards, read when everything is written and the lease given back."""
    account = accounts.get_or_create_account(user_id)
    if account.tier == "ENTERPRISE":
        raise PlanManagedByAdmin
    with hold_change_lease(account.pk):
        outcome = _decide_and_perform(
            account.pk, wish, api_client.start_request_deadline(CHANGE_TIMEOUT_SECONDS)
        )
    return plan_status.get_subscription_status(user_id, action=outcome.action, url=outcome.url)


def _decide_and_perform(
    account_id: int, wish: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> PlanChangeOutcome:
    for _ in range(MAX_DECISION_ROUNDS):
        with _record_early_failure(account_id, wish, deadline):
            present = current_plan.load_current_plan(account_id, deadline)
        try:
            return _perform_request(present, wish, deadline)
        except _PlanMovedMeanwhile:
            with _record_early_failure(account_id, wish, deadline):
                sync_subscription(account_id, deadline=deadline)
    raise PlanChangeInProgress


@contextmanager
def _record_early_failure(
    account_id: int, wish: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> Iterator[None]:
    """An attempt that fails before anything is decided leaves its line too."""
    try:
        yield
    except PaymentServiceError as problem:
        account = Account.objects.get(pk=account_id)
        kind = _get_change_kind(
            PlanAction.KEEP if wish.tier == account.tier else None, account.tier, wish.tier
        )
        change = PlanChange(account=account, kind=kind, from_tier=account.tier, to_tier=wish.tier)
        _record_failure(PlanChangeAttempt(change=change, deadline=deadline), problem)
        raise


def _perform_request(
    present: CurrentPlan, wish: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> PlanChangeOutcome:
    account = present.account
    if account.tier == "ENTERPRISE":
        raise PlanManagedByAdmin
    situation = present.get_situation()
    policy = TierPolicy.objects.filter(tier=wish.tier).first()
    move = decide_without_payment(situation, wish.tier)
    change = PlanChange(
        account=account,
        kind=_get_change_kind(move, account.tier, wish.tier),
        from_tier=account.tier,
        to_tier=wish.tier,
    )
    errand = PlanChangeAttempt(change=change, deadline=deadline)
    try:
        if move is None:
            move = decide_with_payment(situation, wish.tier, current_plan.get_tier_offer(policy))
            change.kind = _get_change_kind(move, account.tier, wish.tier)
        outcome = _perform_action(move, errand, present, wish)
    except BillingRequestRefused as problem:
        _record_failure(errand, problem)
        raise _add_portal_url(problem, present, wish, deadline) from problem
    if outcome.action == "none":
        change.state = PlanChange.State.DONE
        change.save(update_fields=["state"])
    if present.subscription is not None:
        sync_subscription(account.pk, deadline=deadline)
    return outcome


def _get_change_kind(move: PlanAction | None, tier: str, asked: str) -> str:
    """How an attempt is written down; also one that comes to nothing."""
    kinds = PlanChange.Kind
    match move:
        case PlanAction.KEEP:
            return kinds.KEEP
        case PlanAction.CHECKOUT:
            return kinds.CHECKOUT
        case _:
            if asked == "FREE":
                return kinds.CANCEL
            raised = plans.get_tier_rank(asked) > plans.get_tier_rank(tier)
            return kinds.UPGRADE if raised else kinds.DOWNGRADE


# --- doing it -------------------------------------------------------------------------------------------


def _perform_action(
    move: PlanAction, errand: PlanChangeAttempt, present: CurrentPlan, wish: PlanChangeRequest
) -> PlanChangeOutcome:
    if move is PlanAction.CHECKOUT:
        return _perform_checkout(errand, present, wish)
    errand.change.save(force_insert=True)
    if move is PlanAction.SET:
        with transaction.atomic():
            account_tiers.write_tier(account_tiers.lock_account(present.account.pk), wish.tier)
        return PlanChangeOutcome()
    one = present.subscription
    if one is None:
        if move is not PlanAction.KEEP or present.is_waiting_for_stripe:
            raise PaymentsDisabled  # a subscription is known and there is no key: never show what Stripe does not do
        return PlanChangeOutcome()
    match move:
        case PlanAction.KEEP:
            stripe_actions.keep_plan(errand, one)
        case PlanAction.CANCEL_LATER:
            stripe_actions.cancel_at_period_end(errand, one)
        case PlanAction.CANCEL_NOW:
            stripe_actions.cancel_immediately(errand, one)
        case PlanAction.DOWNGRADE:
            stripe_actions.downgrade_subscription(errand, one, _get_price_id(wish.tier))
        case PlanAction.UPGRADE:
            return _perform_upgrade(errand, present, one, wish)
        case unreachable:
            assert_never(unreachable)
    return PlanChangeOutcome()


def _perform_upgrade(
    errand: PlanChangeAttempt, present: CurrentPlan, one: objects.StripeSubscription, wish: PlanChangeRequest
) -> PlanChangeOutcome:
    price_id = _get_price_id(wish.tier)
    said = plan_previews.get_previewed_date(present.account.user_id, one, price_id)
    raised = stripe_actions.upgrade_subscription(errand, one, price_id, proration_date=said)
    if raised.pending_update is None:
        return PlanChangeOutcome()
    errand.change.subscription_id = one.id  # by which sync ends it, once it is paid or given up
    errand.change.save(update_fields=["subscription_id"])
    invoice = raised.latest_invoice
    if invoice is not None and invoice.hosted_url:
        return PlanChangeOutcome(action="pay_invoice", url=invoice.hosted_url)
    return PlanChangeOutcome(action="portal", url=_get_portal_url(present, wish, errand.deadline))


def _perform_checkout(
    errand: PlanChangeAttempt, present: CurrentPlan, wish: PlanChangeRequest
) -> PlanChangeOutcome:
    """What stands in the way is cleared before the attempt is written down: only one may be open."""
    account, deadline = present.account, errand.deadline
    if plan_checkouts.close_open_checkout(account, deadline):
        raise _PlanMovedMeanwhile
    found = present.all_subscriptions
    if found is None and account.stripe_customer_id:
        found = subscription_api.list_subscriptions(deadline, account.stripe_customer_id)
        if any(one.is_live or one.is_owing for one in found):
            raise _PlanMovedMeanwhile
    plan_checkouts.cancel_incomplete_subscriptions(found or [], deadline)
    errand.change.save(force_insert=True)
    policy = TierPolicy.objects.get(tier=wish.tier)
    return PlanChangeOutcome(
        action="checkout",
        url=plan_checkouts.open_checkout(errand.change, account, policy, wish.urls, deadline),
    )


def _get_price_id(tier: str) -> str:
    return TierPolicy.objects.get(tier=tier).stripe_price_id or ""


# --- what went wrong ------------------------------------------------------------------------------------


def _record_failure(errand: PlanChangeAttempt, problem: BillingRequestRefused) -> None:
    change = errand.change
    change.state, change.error = PlanChange.State.FAILED, problem.code
    if errand.completed_steps:
        change.error += f" after {', '.join(errand.completed_steps)}"
    if isinstance(problem, PaymentServiceError):
        logger.error("Plan change %s of account %s failed: %s.", change.pk, change.account_id, change.error)
    change.save()


def _add_portal_url(
    problem: BillingRequestRefused,
    present: CurrentPlan,
    wish: PlanChangeRequest,
    deadline: api_client.StripeDeadline,
) -> BillingRequestRefused:
    """Who owes is told where he pays, if Stripe can say it now."""
    if not isinstance(problem, PaymentOverdue):
        return problem
    try:
        return PaymentOverdue(_get_portal_url(present, wish, deadline))
    except PaymentServiceError:
        return problem


def _get_portal_url(
    present: CurrentPlan, wish: PlanChangeRequest, deadline: api_client.StripeDeadline
) -> str:
    customer_id = present.account.stripe_customer_id or ""
    return payment_api.create_portal_session(
        deadline, customer_id=customer_id, return_url=wish.urls.cancel_url
    )


# MERGED subscriptions.ending: A user goes for good: nothing is charged any more, and nothing that could be (S17, B2.5).


def erase_subscription(user_id: int) -> int:
    """Called at the request and again when the erasure begins; what is left to do is nothing the second time.

    It raises when Stripe could not be told: whoever erases tries again. Ledger, use and audit stay (B2.5).
    """
    account = Account.objects.filter(user_id=user_id).first()
    if account is None or not account.stripe_customer_id:
        return 0
    deadline = api_client.start_request_deadline()  # at the request somebody waits for it
    try:
        plan_checkouts.close_open_checkout(account, deadline)
        _cancel_all_subscriptions(account.stripe_customer_id, deadline)
        sync_subscription(account.pk, deadline=deadline)
    except PaymentsDisabled:
        if Subscription.objects.filter(account=account, status__in=HEALTH_BY_STATUS).exists():
            raise  # somebody goes on paying, and there is no key to stop it
    return 0


def _cancel_all_subscriptions(customer_id: str, deadline: api_client.StripeDeadline) -> None:
    for one in subscription_api.list_subscriptions(deadline, customer_id):
        if not one.is_over:
            subscription_api.cancel_subscription(deadline, one.id, key=f"erase:{one.id}")
