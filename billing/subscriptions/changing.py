"""One request for a plan, from the lease to the answer (B11.4)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

from django.db import transaction

from billing import accounts, gateway, plans, queries
from billing.errors import (
    ChangeInProgress,
    GatewayError,
    ManagedByAdmin,
    PaymentOverdue,
    PaymentsOff,
    Refused,
)
from billing.models import Account, PlanChange, TierPolicy
from billing.queries import Action, Status
from billing.subscriptions import checkouts, leases, previews, situations, steps, tiers
from billing.subscriptions.checkouts import Ways
from billing.subscriptions.decisions import Move, with_payment, without_payment
from billing.subscriptions.situations import Present
from billing.subscriptions.steps import Errand
from billing.subscriptions.syncing import sync

logger = logging.getLogger(__name__)

BUDGET_SECONDS = 30.0  # at Stripe, for a whole request
ROUNDS = 3  # what was paid or ended while we looked is decided anew; it cannot go on happening


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for, and where the browser goes if it must be paid."""

    tier: str
    ways: Ways


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the client has to do next, if anything."""

    action: Action = "none"
    url: str = ""


class _Meanwhile(Exception):
    """The account is not what it was when we looked."""


def change(user_id: int, wish: Wish) -> Status:
    """The status afterwards, read when everything is written and the lease given back."""
    account = accounts.get_or_create(user_id)
    if account.tier == "ENTERPRISE":
        raise ManagedByAdmin
    with leases.alone(account.pk):
        outcome = _decide(account.pk, wish, gateway.in_request(BUDGET_SECONDS))
    return queries.subscription(user_id, action=outcome.action, url=outcome.url)


def _decide(account_id: int, wish: Wish, deadline: gateway.Deadline) -> Outcome:
    for _ in range(ROUNDS):
        with _noted(account_id, wish, deadline):
            present = situations.look(account_id, deadline)
        try:
            return _answer(present, wish, deadline)
        except _Meanwhile:
            with _noted(account_id, wish, deadline):
                sync(account_id, deadline=deadline)
    raise ChangeInProgress


@contextmanager
def _noted(account_id: int, wish: Wish, deadline: gateway.Deadline) -> Iterator[None]:
    """An attempt that fails before anything is decided leaves its line too."""
    try:
        yield
    except GatewayError as problem:
        account = Account.objects.get(pk=account_id)
        kind = _kind(Move.KEEP if wish.tier == account.tier else None, account.tier, wish.tier)
        change = PlanChange(account=account, kind=kind, from_tier=account.tier, to_tier=wish.tier)
        _note_failure(Errand(change=change, deadline=deadline), problem)
        raise


def _answer(present: Present, wish: Wish, deadline: gateway.Deadline) -> Outcome:
    account = present.account
    if account.tier == "ENTERPRISE":
        raise ManagedByAdmin
    situation = present.situation()
    policy = TierPolicy.objects.filter(tier=wish.tier).first()
    move = without_payment(situation, wish.tier)
    change = PlanChange(
        account=account, kind=_kind(move, account.tier, wish.tier), from_tier=account.tier, to_tier=wish.tier
    )
    errand = Errand(change=change, deadline=deadline)
    try:
        if move is None:
            move = with_payment(situation, wish.tier, situations.offer_of(policy))
            change.kind = _kind(move, account.tier, wish.tier)
        outcome = _carry_out(move, errand, present, wish)
    except Refused as problem:
        _note_failure(errand, problem)
        raise _with_portal(problem, present, wish, deadline) from problem
    if outcome.action == "none":
        change.state = PlanChange.State.DONE
        change.save(update_fields=["state"])
    if present.one is not None:
        sync(account.pk, deadline=deadline)
    return outcome


def _kind(move: Move | None, tier: str, asked: str) -> str:
    """How an attempt is written down; also one that comes to nothing."""
    kinds = PlanChange.Kind
    match move:
        case Move.KEEP:
            return kinds.KEEP
        case Move.CHECKOUT:
            return kinds.CHECKOUT
        case _:
            if asked == "FREE":
                return kinds.CANCEL
            raised = plans.rank(asked) > plans.rank(tier)
            return kinds.UPGRADE if raised else kinds.DOWNGRADE


# --- doing it -------------------------------------------------------------------------------------------


def _carry_out(move: Move, errand: Errand, present: Present, wish: Wish) -> Outcome:
    if move is Move.CHECKOUT:
        return _checkout(errand, present, wish)
    errand.change.save(force_insert=True)
    if move is Move.SET:
        with transaction.atomic():
            tiers.write(tiers.locked(present.account.pk), wish.tier)
        return Outcome()
    one = present.one
    if one is None:
        if move is not Move.KEEP or present.waits_for_stripe:
            raise PaymentsOff  # a subscription is known and there is no key: never show what Stripe does not do
        return Outcome()
    match move:
        case Move.KEEP:
            steps.keep(errand, one)
        case Move.CANCEL_LATER:
            steps.cancel_later(errand, one)
        case Move.CANCEL_NOW:
            steps.cancel_now(errand, one)
        case Move.DOWNGRADE:
            steps.downgrade(errand, one, _price_of(wish.tier))
        case Move.UPGRADE:
            return _upgrade(errand, present, one, wish)
        case unreachable:
            assert_never(unreachable)
    return Outcome()


def _upgrade(errand: Errand, present: Present, one: gateway.Subscription, wish: Wish) -> Outcome:
    price_id = _price_of(wish.tier)
    said = previews.last_date(present.account.user_id, one, price_id)
    raised = steps.upgrade(errand, one, price_id, proration_date=said)
    if raised.pending_update is None:
        return Outcome()
    errand.change.subscription_id = one.id  # by which sync ends it, once it is paid or given up
    errand.change.save(update_fields=["subscription_id"])
    invoice = raised.latest_invoice
    if invoice is not None and invoice.hosted_url:
        return Outcome(action="pay_invoice", url=invoice.hosted_url)
    return Outcome(action="portal", url=_portal(present, wish, errand.deadline))


def _checkout(errand: Errand, present: Present, wish: Wish) -> Outcome:
    """What stands in the way is cleared before the attempt is written down: only one may be open."""
    account, deadline = present.account, errand.deadline
    if checkouts.close_open_one(account, deadline):
        raise _Meanwhile
    found = present.found
    if found is None and account.stripe_customer_id:
        found = gateway.list_subscriptions(deadline, account.stripe_customer_id)
        if any(one.is_live or one.is_owing for one in found):
            raise _Meanwhile
    checkouts.drop_incomplete(found or [], deadline)
    errand.change.save(force_insert=True)
    policy = TierPolicy.objects.get(tier=wish.tier)
    return Outcome(
        action="checkout", url=checkouts.open_one(errand.change, account, policy, wish.ways, deadline)
    )


def _price_of(tier: str) -> str:
    return TierPolicy.objects.get(tier=tier).stripe_price_id or ""


# --- what went wrong ------------------------------------------------------------------------------------


def _note_failure(errand: Errand, problem: Refused) -> None:
    change = errand.change
    change.state, change.error = PlanChange.State.FAILED, problem.code
    if errand.done:
        change.error += f" after {', '.join(errand.done)}"
    if isinstance(problem, GatewayError):
        logger.error("Plan change %s of account %s failed: %s.", change.pk, change.account_id, change.error)
    change.save()


def _with_portal(problem: Refused, present: Present, wish: Wish, deadline: gateway.Deadline) -> Refused:
    """Who owes is told where he pays, if Stripe can say it now."""
    if not isinstance(problem, PaymentOverdue):
        return problem
    try:
        return PaymentOverdue(_portal(present, wish, deadline))
    except GatewayError:
        return problem


def _portal(present: Present, wish: Wish, deadline: gateway.Deadline) -> str:
    customer_id = present.account.stripe_customer_id or ""
    return gateway.open_portal(deadline, customer_id=customer_id, return_url=wish.ways.cancel_url)
