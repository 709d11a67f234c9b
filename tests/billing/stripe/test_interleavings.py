"""What happens between two looks: a page that is paid while it is closed, a schedule that ends while it is released,
a Redis or a Stripe that goes away in the midst of it. Every road ends where both sides agree, and nobody pays twice."""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import uuid4

import pytest
from django.db import DatabaseError, InterfaceError
from kombu.exceptions import OperationalError

from billing import accounts, ledger, policies, redis_counters, tasks
from billing.errors import (
    CountersUnavailable,
    IdempotencyConflict,
    InsufficientCredits,
    NoSavedCard,
    PaymentServiceError,
    PaymentServiceRefusal,
    PlanManagedByAdmin,
)
from billing.models import Account, AutoTopUp, LedgerEntry, LimitPolicy, PlanChange, TopUp
from billing.selectors import credit_statements
from billing.stripe import api_client, checkout_api, subscription_api
from billing.subscriptions import account_tiers, current_plan, grace_period, plan_previews
from billing.top_ups import auto_top_ups, purchases, refunds
from billing.usage import limit_checks, resets
from tests.stripe_fake import Fake
from tests.support import factories
from tests.support.plan_shop import Shop, schedule_downgrade_to_pro, start_unpaid_upgrade
from tests.support.rest_clients import code_of
from tests.support.stripe_webhooks import settle
from tests.support.usage import record_usage

pytestmark = pytest.mark.django_db
Patch = pytest.MonkeyPatch


def first(monkeypatch: Patch, place: object, name: str, event: object) -> None:
    """The event happens just before the next call of this function, and only then."""
    whole = getattr(place, name)

    def after_it(*args: object, **kwargs: object) -> object:
        monkeypatch.setattr(place, name, whole)
        event()
        return whole(*args, **kwargs)

    monkeypatch.setattr(place, name, after_it)


def no_broker(*args: object, **kwargs: object) -> None:
    raise OperationalError


def no_redis(*args: object, **kwargs: object) -> None:
    raise CountersUnavailable


# --- plans ----------------------------------------------------------------------------------------------


def test_a_page_that_is_paid_while_it_is_closed_is_followed(shop: Shop, monkeypatch: Patch) -> None:
    """B11.9: already complete: sync and decide again; no second page, one subscription."""
    shop.ask("PRO")
    [session] = shop.fake.all("checkout.session")
    first(monkeypatch, checkout_api, "expire_checkout", lambda: shop.fake.pay(session["id"]))
    said = shop.ask("PRO").json()
    assert (said["tier"], said["action"]) == ("PRO", "none")
    assert len(shop.live()) == len(shop.fake.all("checkout.session")) == 1
    assert set(PlanChange.objects.values_list("kind", "state")) == {("CHECKOUT", "DONE"), ("KEEP", "DONE")}


def test_a_page_that_is_over_does_not_stand_in_the_way(shop: Shop, monkeypatch: Patch) -> None:
    """B11.9: already expired is fine."""
    shop.ask("PRO")
    first(monkeypatch, checkout_api, "expire_checkout", lambda: shop.pass_time(hours=2))
    assert shop.ask("PRO").json()["action"] == "checkout"
    assert [one["status"] for one in shop.fake.all("checkout.session")] == ["open", "expired"]


def test_a_subscription_without_a_webhook_is_found_before_a_second_is_sold(shop: Shop) -> None:
    """B11.4: a granted tier, and a subscription whose webhook is late: followed, not sold again."""
    shop.customer()
    account_tiers.grant_tier(shop.account.pk, "PRO", actor_id=None, reason="a friend")
    shop.fake.subscribe(shop.customer(), shop.prices["BUSINESS"])
    said, made = shop.calls(lambda: shop.ask("BUSINESS"))
    assert (said.json()["tier"], said.json()["action"]) == ("BUSINESS", "none")
    assert "checkout" not in made
    assert len(shop.live()) == 1


def test_what_moves_with_every_look_is_given_up(shop: Shop, monkeypatch: Patch) -> None:
    """B11.4: a request is decided again a few times, then refused with a retry time; the lease is released."""
    shop.customer()
    account_tiers.grant_tier(shop.account.pk, "PRO", actor_id=None, reason="a friend")
    shop.fake.subscribe(shop.customer(), shop.prices["BUSINESS"])
    monkeypatch.setattr("billing.subscriptions.plan_changes.sync_subscription", lambda *args, **kwargs: None)
    refused = shop.ask("BUSINESS")
    assert (refused.status_code, code_of(refused)) == (409, "change_in_progress")
    assert shop.account.change_token is None


def test_a_user_who_becomes_enterprise_during_the_request_is_refused(shop: Shop, monkeypatch: Patch) -> None:
    """B11.4: step 2 holds for the account as it is, not as it was."""

    def staff_act() -> None:
        account_tiers.grant_tier(shop.account.pk, "ENTERPRISE", actor_id=None, reason="a contract")

    first(monkeypatch, current_plan, "load_current_plan", staff_act)
    assert code_of(shop.ask("PRO")) == "managed_by_admin"
    with pytest.raises(PlanManagedByAdmin):
        plan_previews.preview_plan_change(shop.user.pk, "PRO")


def test_a_schedule_that_ended_on_its_own_counts_as_released(shop: Shop, monkeypatch: Patch) -> None:
    """B11.8: a refusal is read again; terminal counts as done, anything else is told."""
    schedule_downgrade_to_pro(shop)
    [schedule] = shop.fake.all("subscription_schedule")

    def release() -> None:
        subscription_api.release_schedule(
            api_client.start_task_deadline(), schedule["id"], key="by staff at Stripe"
        )

    first(monkeypatch, subscription_api, "release_schedule", release)
    assert shop.ask("BUSINESS").json()["pending_tier"] is None
    shop.ask("PRO")
    monkeypatch.setattr(subscription_api, "release_schedule", _refuse)
    assert code_of(shop.ask("BUSINESS")) == "stripe_unavailable"


def _refuse(*args: object, **kwargs: object) -> None:
    raise PaymentServiceRefusal


def test_an_upgrade_that_is_paid_while_it_is_voided_stays_paid(shop: Shop, monkeypatch: Patch) -> None:
    """B11.8: the invoice is no longer open; what was paid for is there, and an invoice that stays open is told."""
    start_unpaid_upgrade(shop)
    with monkeypatch.context() as patch:
        patch.setattr(subscription_api, "void_invoice", _refuse)
        assert code_of(shop.ask("PRO")) == "stripe_unavailable"
    shop.fake.card("ok")
    invoice = shop.live()[0]["latest_invoice"]
    first(monkeypatch, subscription_api, "void_invoice", lambda: shop.fake.pay_invoice(invoice))
    assert shop.ask("PRO").status_code == 200
    assert shop.tier == "BUSINESS"


def test_a_schedule_that_cannot_be_undone_is_undone_by_the_next_attempt(shop: Shop) -> None:
    """B11.6, B11.c6: Stripe goes away after the schedule was made, and stays away."""
    shop.subscribe("BUSINESS")
    schedule = "/v1/subscription_schedules/"
    shop.fake.faults.add("error", "POST", schedule, times=9)  # the phases, and the release
    assert shop.ask("PRO").status_code == 502
    shop.fake.faults.clear()
    assert shop.ask("PRO").json()["pending_tier"] == "PRO"
    assert len([one for one in shop.fake.all("subscription_schedule") if one["status"] == "active"]) == 1


def test_an_open_debt_is_reported_although_the_portal_cannot_be_opened(shop: Shop) -> None:
    """B11.4: step 9; the address is empty rather than the refusal another one."""
    shop.subscribe("PRO")
    shop.fail_renewal()
    shop.fake.faults.add("error", "POST", "/v1/billing_portal", times=9)
    refused = shop.ask("BUSINESS")
    assert (refused.status_code, refused.json()["error"]["url"]) == (402, "")
    assert code_of(refused) == "payment_overdue"


def test_an_unpaid_upgrade_without_an_invoice_page_leads_to_the_portal(
    shop: Shop, monkeypatch: Patch
) -> None:
    """B12.1: the client is told where to go."""
    shop.subscribe("PRO")
    shop.fake.card("decline")
    change_price = subscription_api.change_subscription_price
    monkeypatch.setattr(
        subscription_api,
        "change_subscription_price",
        lambda *args, **kwargs: replace(change_price(*args, **kwargs), latest_invoice=None),
    )
    said = shop.ask("BUSINESS").json()
    assert (said["action"], said["tier"], bool(said["url"])) == ("portal", "PRO", True)


def test_an_event_of_a_failed_attempt_after_the_end_causes_no_notice(shop: Shop) -> None:
    """B15.1: what Stripe says now decides: no grace and no notice for a plan that has ended."""
    shop.subscribe("PRO")
    shop.fail_renewal()
    invoice = subscription_api.get_invoice(
        api_client.start_task_deadline(), shop.fake.all("invoice")[0]["id"]
    )
    assert invoice is not None
    subscription_api.cancel_subscription(
        api_client.start_task_deadline(), shop.mirror.stripe_id, key="by staff at Stripe"
    )
    attempted_at = shop.mirror.synced_at
    grace_period.handle_failed_renewal(shop.account.pk, invoice, attempt=1, attempted_at=attempted_at)
    assert (shop.tier, shop.mirror.grace_until) == ("FREE", None)


def test_a_preview_needs_no_redis(shop: Shop, monkeypatch: Patch) -> None:
    """B12.2, B1.3: then the upgrade is reckoned by its own moment."""
    shop.subscribe("PRO")
    monkeypatch.setattr(redis_counters, "cache_preview_date", no_redis)
    monkeypatch.setattr(redis_counters, "read_preview_date", no_redis)
    assert plan_previews.preview_plan_change(shop.user.pk, "BUSINESS").due_now_cents > 0
    assert shop.ask("BUSINESS").json()["tier"] == "BUSINESS"


@pytest.mark.django_db(transaction=True)
def test_a_drift_that_cannot_be_looked_for_harms_nobody(
    shop: Shop, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """B15.4: no broker, no customer."""
    tasks.check_drift(shop.account.pk)
    shop.customer()
    monkeypatch.setattr("billing.subscriptions.account_tiers.current_app.send_task", no_broker)
    account_tiers.grant_tier(shop.account.pk, "PRO", actor_id=None, reason="a friend")
    assert shop.tier == "PRO"
    assert "drift_check_not_enqueued" in caplog.text
    assert "billing_drift" not in caplog.text


# --- credits --------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_charge_that_fails_for_whatever_reason_is_written_down(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """B9.8: one line with leak_type, account, cents and key; the account is named by its own id."""
    ada = factories.ada()
    account = accounts.get_or_create_account(ada.pk)
    ledger.grant_credits(ada.pk, 5, key="tool:1")
    assert not ledger.charge_after_delivery(ada.pk, 5, key="tool:1")
    monkeypatch.setattr(ledger, "spend", _database_away)
    monkeypatch.setattr(Account.objects, "filter", _database_away)
    assert not ledger.charge_after_delivery(ada.pk, 5, key="tool:2")
    monkeypatch.setattr(ledger, "spend", _connection_gone)
    assert not ledger.charge_after_delivery(ada.pk, 5, key="tool:3")
    names = ("event", "leak_type", "account_id", "cents", "key")
    logged = [record.msg for record in caplog.records if record.levelno == logging.ERROR]
    assert [tuple(fields[name] for name in names) for fields in logged] == [
        ("billing_leak", "unexpected_error", account.pk, 5, "tool:1"),
        ("billing_leak", "unexpected_error", None, 5, "tool:2"),
        ("billing_leak", "unexpected_error", None, 5, "tool:3"),
    ]


def _database_away(*args: object, **kwargs: object) -> None:
    raise DatabaseError


def _connection_gone(*args: object, **kwargs: object) -> None:
    raise InterfaceError


def test_the_database_has_the_last_word_on_a_balance(monkeypatch: Patch) -> None:
    """B9.2: should what was read be wrong, the constraint refuses, and it looks like any other lack of credit."""
    ada = factories.ada()
    ledger.grant_credits(ada.pk, 100, key="grant:1")
    begin = ledger.AccountLedger.__init__

    def misread(book: ledger.AccountLedger, account_id: int) -> None:
        begin(book, account_id)
        book.account.credit_balance_cents += 50

    monkeypatch.setattr(ledger.AccountLedger, "__init__", misread)
    with pytest.raises(InsufficientCredits):
        ledger.spend(ada.pk, 130, key="spend:1")
    assert credit_statements.get_balance(ada.pk).balance_cents == 100
    assert LedgerEntry.objects.count() == 1


def test_a_key_that_another_account_takes_at_the_same_moment_is_a_conflict(monkeypatch: Patch) -> None:
    """B9.1: keys are unique for all; who looked too early is told so by the database, and nothing is written."""
    ada, bob = factories.ada(), factories.user("bob")
    ledger.grant_credits(ada.pk, 100, key="grant:1")
    monkeypatch.setattr(ledger.AccountLedger, "find_posted", lambda *args: None)
    with pytest.raises(IdempotencyConflict):
        ledger.grant_credits(bob.pk, 100, key="grant:1")
    assert credit_statements.get_balance(bob.pk).balance_cents == 0


@pytest.mark.parametrize("cents", [0, -5])
def test_an_entry_moves_at_least_one_cent(cents: int) -> None:
    """B9.1, B1.2: nothing and less than nothing is no amount."""
    with pytest.raises(ValueError, match="at least one cent"):
        ledger.spend(factories.ada().pk, cents, key="spend:1")


@pytest.mark.django_db(transaction=True)
def test_a_spend_does_not_need_a_broker(monkeypatch: Patch, caplog: pytest.LogCaptureFixture) -> None:
    """B10.4, B1.4: what was to be bought is bought after the next spend."""
    ada = factories.ada()
    ledger.grant_credits(ada.pk, 100, key="grant:1")
    account = accounts.get_or_create_account(ada.pk)
    AutoTopUp.objects.create(account=account, enabled=True, threshold_cents=90, amount_cents=500)
    monkeypatch.setattr("billing.ledger.current_app.send_task", no_broker)
    ledger.spend(ada.pk, 50, key="spend:1")
    assert credit_statements.get_balance(ada.pk).balance_cents == 50
    assert "auto_top_up_not_enqueued" in caplog.text


def test_an_automatic_charge_of_a_customer_who_is_gone_is_switched_off(stripe: Fake) -> None:
    """B10.4: no customer is no card."""
    account = accounts.get_or_create_account(factories.ada().pk)
    AutoTopUp.objects.create(account=account, enabled=True, threshold_cents=500, amount_cents=500)
    auto_top_ups.top_up_if_low(account.pk)
    assert TopUp.objects.get().state == TopUp.State.FAILED
    assert AutoTopUp.objects.get().disabled_reason == "no_saved_card"
    with pytest.raises(NoSavedCard):
        auto_top_ups._choose_card(api_client.start_task_deadline(), "cus_nobody")


def test_pages_and_payments_of_others_credit_nobody(stripe: Fake) -> None:
    """B14.3: somebody else uses the same Stripe account: nothing of it is ours, and it is said so."""
    top_up = purchases.start_top_up(
        factories.ada().pk,
        purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x"),
        key=None,
    )
    stripe.pay(top_up.checkout_session_id)
    session = checkout_api.get_checkout(api_client.start_task_deadline(), top_up.checkout_session_id)
    assert session is not None
    for stranger in (str(uuid4()), "not an id", ""):
        foreign = replace(session, client_reference_id=stranger)
        assert not purchases.fulfil_checkout(foreign)
        assert not purchases.end_checkout(foreign)
    assert not refunds.apply_refunds("pi_nobody", api_client.start_task_deadline())
    assert not LedgerEntry.objects.exists()


def test_only_what_was_paid_is_credited(stripe: Fake) -> None:
    """B10.2: a page that was completed without a payment is looked at by a person; an end told after that changes nothing."""
    top_up = purchases.start_top_up(
        factories.ada().pk,
        purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x"),
        key=None,
    )
    stripe.pay(top_up.checkout_session_id)
    session = checkout_api.get_checkout(api_client.start_task_deadline(), top_up.checkout_session_id)
    assert session is not None
    for _ in range(2):
        purchases.fulfil_checkout(replace(session, payment_status="no_payment_required"))
    purchases.end_checkout(session)
    assert TopUp.objects.get().state == TopUp.State.REVIEW
    assert not LedgerEntry.objects.exists()


def test_what_was_not_paid_or_is_refunded_already_cannot_be_refunded(stripe: Fake) -> None:
    """B10.7: by staff, once."""
    purchase = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")
    top_up = purchases.start_top_up(factories.ada().pk, purchase, key=None)
    with pytest.raises(PaymentServiceRefusal):
        refunds.refund_top_up(top_up)
    stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    top_up.refresh_from_db()
    stripe.refund(top_up.payment_intent_id or "", 1_000)
    with pytest.raises(PaymentServiceError):
        refunds.refund_top_up(top_up)


# --- limits ---------------------------------------------------------------------------------------------


@pytest.fixture(name="holds")
def holds_fixture() -> None:
    LimitPolicy.objects.update(turn_hold_microdollars=200_000)
    policies.clear_policy_cache()


@pytest.mark.usefixtures("holds")
def test_a_redis_that_dies_after_the_check_admits(
    monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """B1.4, B6.7: fails open, with a warning."""
    ada = factories.ada()
    monkeypatch.setattr(redis_counters, "place_hold", no_redis)
    limit_checks.check_limits_and_hold(ada.pk, "turn-1")
    assert "limit_check_degraded" in caplog.text


@pytest.mark.usefixtures("holds")
def test_a_counter_that_says_too_much_is_put_right_and_asked_again(monkeypatch: Patch) -> None:
    """B6.7, B6.5: full by Redis, not by the rows; the rows decide."""
    ada = factories.ada()
    record_usage(ada, 100)
    limit_checks.check_limits(ada.pk)
    whole = redis_counters.place_hold
    answers: list[str] = []

    def wrong_once(*args: object, **kwargs: object) -> redis_counters.HoldResult:
        held = (
            whole(*args, **kwargs)
            if answers
            else redis_counters.HoldResult(answer="full", held_microdollars=0)
        )
        answers.append(held.answer)
        return held

    monkeypatch.setattr(redis_counters, "place_hold", wrong_once)
    limit_checks.check_limits_and_hold(ada.pk, "turn-1")
    assert answers == ["full", "stored"]


@pytest.mark.usefixtures("holds")
def test_a_flush_between_check_and_hold_is_healed(monkeypatch: Patch) -> None:
    """B6.7, B5.5: missing rows are created again, and the hold is stored."""
    ada = factories.ada()
    limit_checks.check_limits(ada.pk)
    redis_counters.get_redis_client().flushdb()
    limit_checks.check_limits_and_hold(ada.pk, "turn-1", checked=True)
    assert [one.hold_id for one in redis_counters.read_open_holds(ada.pk)] == ["turn-1"]


@pytest.mark.django_db(transaction=True)
def test_a_reset_bought_by_the_other_tab_while_this_one_waited_is_the_same_one(monkeypatch: Patch) -> None:
    """B8.c4: the key was used between the first look and the lock: one charge, the same answer."""
    ada = factories.ada()
    ledger.grant_credits(ada.pk, 1_000, key="grant:1")
    record_usage(ada, 1_000_000)
    first(monkeypatch, redis_counters, "acquire_reset_lock", lambda: resets.buy_usage_reset(ada.pk, key="k"))
    assert resets.buy_usage_reset(ada.pk, key="k").balance_cents == 500
    assert LedgerEntry.objects.filter(kind="SPEND").count() == 1
