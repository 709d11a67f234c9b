"""Two workers who need the same row: who fetched first never writes last, and neither waits for the other in a circle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
from django.db import connection, transaction

from billing import accounts, ledger
from billing.models import Account, AutoTopUp, LedgerEntry, StripeEvent, TopUp, UsageWindow
from billing.stripe import api_client, event_handlers
from billing.subscriptions import account_tiers, stripe_sync
from billing.top_ups import auto_top_ups, purchases, refunds
from billing.usage import windows
from tests.stripe_fake import Fake
from tests.support import factories
from tests.support.stripe_webhooks import settle
from tests.support.turn_engine import until
from tests.support.usage import record_usage

pytestmark = pytest.mark.django_db(transaction=True)
PURCHASE = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")


class Beside(threading.Thread):
    """Another worker; the test continues when it waits for a lock of ours, or is done."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self.raised: Exception | None = None
        self.start()
        until(lambda: not self.is_alive() or somebody_waits())

    def run(self) -> None:
        try:
            self._act()
        except Exception as problem:
            self.raised = problem
        finally:
            connection.close()

    def ends_well(self) -> None:
        self.join()
        assert self.raised is None


def somebody_waits() -> bool:
    """For this very connection: other tests have locks of their own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
        )
        return bool(cursor.fetchone()[0])


def bought(stripe: Fake) -> TopUp:
    top_up = purchases.start_top_up(factories.ada().pk, PURCHASE, key=None)
    stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    top_up.refresh_from_db()
    assert top_up.payment_intent_id
    return top_up


def apply_told(stripe: Fake, kind: str) -> Callable[[], object]:
    """What a worker does with the one event of this kind that waits at Stripe's."""
    (event,) = [one for one in stripe.webhooks.take() if one["type"] == kind]
    stripe.webhooks.deliver([event])
    return partial(event_handlers.apply_stripe_event, StripeEvent.objects.get(event_id=event["id"]).pk)


def test_a_worker_that_was_slow_takes_nothing_for_a_refund_that_failed_meanwhile(stripe: Fake) -> None:
    """B10.5, B14.4: he looked while it was pending; the end is known to another before he writes."""
    top_up = bought(stripe)
    refund_id = stripe.refund(top_up.payment_intent_id, 1_000, status="pending")
    heard = apply_told(stripe, "refund.created")
    with transaction.atomic():
        TopUp.objects.select_for_update().get(pk=top_up.pk)
        slow = Beside(heard)
        stripe.end_refund(refund_id, "failed")
        refunds.apply_refunds(top_up.payment_intent_id, api_client.start_task_deadline())
    slow.ends_well()
    assert Account.objects.get(user=factories.ada()).credit_balance_cents == 1_000
    assert list(LedgerEntry.objects.values_list("kind", flat=True)) == ["TOP_UP"]


def test_a_worker_that_was_slow_takes_nothing_for_a_dispute_that_was_won_meanwhile(stripe: Fake) -> None:
    """B10.6, B14.4: the same of a dispute, which the bank has decided since."""
    top_up = bought(stripe)
    dispute_id = stripe.dispute(top_up.payment_intent_id, 1_000)
    heard = apply_told(stripe, "charge.dispute.created")
    with transaction.atomic():
        TopUp.objects.select_for_update().get(pk=top_up.pk)
        slow = Beside(heard)
        stripe.close_dispute(dispute_id, won=True)
    slow.ends_well()
    assert Account.objects.get(user=factories.ada()).credit_balance_cents == 1_000
    assert list(LedgerEntry.objects.values_list("kind", flat=True)) == ["TOP_UP"]


def test_a_customer_is_forgotten_while_his_subscription_is_synced(stripe: Fake) -> None:
    """B14.5, B14.4: Stripe tells of both ends at once; neither worker waits for the other in a circle."""
    account = accounts.get_or_create_account(factories.ada().pk)
    customer_id = accounts.ensure_stripe_customer(account, api_client.start_task_deadline())
    stripe.webhooks.take()
    stripe.world.emit("customer.deleted", stripe.world.objects[customer_id])
    heard = apply_told(stripe, "customer.deleted")
    with transaction.atomic():
        stripe_sync._acquire_sync_lock(account.pk)  # as another sync does, before it asks Stripe
        forgetting = Beside(heard)
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '5s'")
        account_tiers.lock_account(account.pk)  # and after it
    forgetting.ends_well()
    assert set(StripeEvent.objects.values_list("state", "attempts")) == {("DONE", 1)}
    assert Account.objects.get(pk=account.pk).stripe_customer_id is None


def test_a_window_is_rebuilt_while_a_call_is_recorded_in_it(stripe: Fake) -> None:
    """B5.7: its row was lost; the repair waits for the call, and counts it."""
    ada = factories.ada()
    record_usage(ada, 400)
    UsageWindow.objects.all().delete()
    day, week = windows.find_window_mismatches()

    def repair() -> None:
        windows.repair_window(day)
        windows.repair_window(week)

    with transaction.atomic():
        record_usage(ada, 70)
        repairing = Beside(repair)
    repairing.ends_well()
    assert list(UsageWindow.objects.values_list("used_microdollars", flat=True)) == [470, 470]
    assert list(windows.find_window_mismatches()) == []


def test_credit_runs_low_while_the_last_purchase_is_credited(stripe: Fake) -> None:
    """B10.4, B10.c4: it still counts as open then; neither waits for the other in a circle, and nothing is bought twice."""
    account = accounts.get_or_create_account(factories.ada().pk)
    stripe.save_card(accounts.ensure_stripe_customer(account, api_client.start_task_deadline()))
    AutoTopUp.objects.create(account=account, enabled=True, threshold_cents=500, amount_cents=1_000)
    auto_top_ups.top_up_if_low(account.pk)
    top_up = TopUp.objects.get()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '5s'")
        purchases.move_top_up(top_up.pk, purchases.TopUpState.PAID)  # the first half of its credit …
        low = Beside(partial(auto_top_ups.top_up_if_low, account.pk))
        ledger.post_top_up(account.user_id, 1_000, key=f"topup:{top_up.pk}")  # … and the second
    low.ends_well()
    assert (TopUp.objects.count(), len(stripe.all("payment_intent"))) == (1, 1)
    assert Account.objects.get(pk=account.pk).credit_balance_cents == 1_000
