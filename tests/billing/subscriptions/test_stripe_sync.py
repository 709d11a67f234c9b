"""B11.2, B11.3, B12, B14.7, B15: what follows from what Stripe says, and what the user is told of it."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing import emails, policies, tasks
from billing.errors import PaymentsDisabled, PaymentServiceUnavailable
from billing.models import Account, BillingNotice, LimitPolicy, PlanChange, Subscription, TierPolicy
from billing.selectors import plan_status
from billing.stripe import api_client, subscription_api
from billing.subscriptions import (
    account_tiers,
    grace_period,
    plan_changes,
    plan_checkouts,
    plan_previews,
    stripe_sync,
)
from tests.support import factories
from tests.support.plan_shop import API, CENTS
from tests.support.rest_clients import JSON, code_of, person

pytestmark = pytest.mark.django_db


# --- which subscription counts, and what it entitles to -------------------------------------------------


def test_of_several_the_highest_then_the_oldest_is_kept(shop, caplog):
    """B11.2, B11.c4: two were paid all the same: one remains, the others end at once, staff are told."""
    for tier in ("PRO", "BUSINESS", "BUSINESS"):
        shop.fake.subscribe(shop.customer(), shop.prices[tier])
        shop.pass_time(hours=1)
    shop.sync()
    [kept] = shop.live()
    oldest_business = sorted(
        one["id"]
        for one in shop.fake.all("subscription")
        if one["items"]["data"][0]["price"]["id"] == shop.prices["BUSINESS"]
    )[0]
    assert (shop.tier, kept["id"], shop.mirror.stripe_id) == ("BUSINESS", oldest_business, oldest_business)
    assert len([line for line in caplog.messages if "'kind': 'several_subscriptions'" in line]) == 2


def test_what_stops_entitling_leaves_the_grant(shop):
    """B11.3: the fallback is the granted tier, else FREE, and it is written once: who has none keeps his tier."""
    account_tiers.grant_tier(shop.account.pk, "PRO", actor_id=None, reason="a friend")
    shop.subscribe("BUSINESS")
    assert shop.tier == "BUSINESS"
    shop.ask("FREE")
    shop.pass_time(days=31)
    shop.sync()
    assert (shop.tier, shop.mirror.status) == ("PRO", "canceled")
    shop.ask("FREE")
    shop.sync()
    assert shop.tier == "FREE"


def test_an_unknown_price_changes_nothing_but_is_reported(shop, caplog):
    """B11.3"""
    shop.subscribe("PRO")
    TierPolicy.objects.filter(tier="PRO").update(stripe_price_id="price_of_this_year")
    shop.sync()
    assert (shop.tier, shop.mirror.tier) == ("PRO", None)
    assert "'kind': 'unknown_price'" in caplog.text
    assert shop.status()["status"] == "active"


def test_enterprise_is_left_by_staff_alone(shop, caplog):
    """B11.3: sync warns of what drifts and writes no tier."""
    shop.subscribe("PRO")
    account_tiers.grant_tier(shop.account.pk, "ENTERPRISE", actor_id=None, reason="a contract")
    shop.sync()
    assert shop.tier == "ENTERPRISE"
    assert "enterprise_account_has_subscription" in caplog.text


def test_a_customer_that_stripe_forgot_has_no_subscription(shop):
    """B14.4: an object that Stripe no longer has counts as ended."""
    shop.subscribe("PRO")
    Account.objects.update(stripe_customer_id=None)
    shop.sync()
    assert (shop.tier, shop.mirror.status, shop.mirror.entitles) == ("FREE", "canceled", False)


def test_the_nightly_check_finds_what_no_webhook_reported(shop):
    """B14.7: mirrors that are not ended are synced; where Stripe fails, the next night does it."""
    shop.subscribe("PRO")
    shop.ask("FREE")
    shop.pass_time(days=31)
    shop.fake.faults.add("error", times=3)
    tasks.reconcile()
    assert shop.tier == "PRO"
    tasks.reconcile()
    assert (shop.tier, shop.mirror.status) == ("FREE", "canceled")
    assert stripe_sync.reconcile_subscriptions() == 0


# --- checkouts ------------------------------------------------------------------------------------------


def test_one_page_is_open_and_a_paid_one_is_noticed_b11_c4(shop):
    """B11.9, B11.c4: a second request ends the first page; one that was paid meanwhile is followed, not repeated."""
    first = shop.ask("PRO").json()["url"]
    second = shop.ask("BUSINESS").json()["url"]
    assert first != second
    [open_one] = [one for one in shop.fake.all("checkout.session") if one["status"] == "open"]
    assert second.endswith(open_one["id"])
    assert shop.fake.pay(open_one["id"])
    said = shop.ask("BUSINESS").json()
    assert (said["tier"], said["action"], len(shop.live())) == ("BUSINESS", "none", 1)
    states = PlanChange.objects.filter(kind="CHECKOUT").order_by("created_at").values_list("state", flat=True)
    assert list(states) == ["FAILED", "DONE"]


def test_a_page_says_who_buys_what(shop):
    """B11.9: one of it, cards only, the user's id on session and subscription, an hour to pay."""
    shop.ask("PRO")
    [made] = shop.fake.calls_of("POST", "/v1/checkout/sessions")
    asked = made.params
    assert (asked["mode"], asked["allowed_payment_method_types"]) == ("subscription", ["card"])
    assert asked["line_items"] == [{"price": shop.prices["PRO"], "quantity": "1"}]
    assert asked["metadata"]["user_id"] == str(shop.user.pk)
    assert asked["subscription_data"]["metadata"]["user_id"] == str(shop.user.pk)
    assert int(asked["expires_at"]) - shop.fake.world.now in range(3_590, 3_611)
    assert asked["success_url"].endswith("/billing/plan?paid")


def test_an_unfinished_first_payment_is_dropped_before_another(shop):
    """B11.2: `incomplete` is cancelled before a new checkout."""
    shop.fake.card("decline")
    half = shop.fake.subscribe(shop.customer(), shop.prices["PRO"])
    assert half["status"] == "incomplete"
    _, made = shop.calls(lambda: shop.ask("PRO"))
    assert made == ["list", "cancel now", "checkout"]
    assert half["status"] == "canceled"


def test_a_page_nobody_paid_on_ends_its_attempt(shop):
    """B14.5: checkout.session.expired."""
    shop.ask("PRO")
    plan_checkouts.fail_checkout(shop.fake.all("checkout.session")[0]["id"])
    assert PlanChange.objects.get().state == "FAILED"


# --- status ---------------------------------------------------------------------------------------------


def test_what_is_pending_shows_at_once_and_goes_at_once_b12_c1(shop):
    """B12.c1: a downgrade shows with the period's end; after keep both fields are null, without half a minute's delay."""
    shop.subscribe("BUSINESS")
    shop.status()  # kept: nothing is pending
    shop.ask("PRO")
    said = shop.status()
    assert (said["pending_tier"], said["pending_tier_effective_at"]) == ("PRO", said["current_period_end"])
    shop.ask("BUSINESS")
    said = shop.status()
    assert (said["pending_tier"], said["pending_tier_effective_at"]) == (None, None)


def test_one_look_up_serves_many_and_failures_are_not_kept_b12_c2(shop, monkeypatch):
    """B12.c2, B12.4: ten answers, one look-up; a failure is asked again; a bug is a bug."""
    shop.subscribe("PRO")
    _, made = shop.calls(lambda: [shop.status() for _ in range(10)])
    assert made == ["get"]
    shop.sync()
    shop.fake.faults.add("error", "GET", "/v1/subscriptions/", times=2)
    assert shop.status()["pending_unknown"] is True
    said, made = shop.calls(shop.status)
    assert (said["pending_unknown"], made) == (False, ["get"])

    def broken(*_):
        raise KeyError

    monkeypatch.setattr(plan_status, "extract_pending_plan", broken)
    shop.sync()
    client = person(shop.user)
    client.raise_request_exception = False
    assert client.get(f"{API}/subscription").status_code == 500


def test_nobody_is_asked_about_who_never_paid_b12_c3(shop):
    """B12.c3"""
    said, made = shop.calls(shop.status)
    assert (said["status"], said["pending_unknown"], made) == ("none", False, [])


def test_status_has_its_shape(shop):
    """B12.1, B16.c1: the golden answer, before and after a subscription."""
    nothing = {
        "tier": "FREE", "status": "none", "monthly_cost_cents": 0,
        "tier_costs_cents": {"FREE": 0, "PRO": 2_000, "BUSINESS": 10_000}, "proration_credit_cents": 0,
        "pending_tier": None, "pending_tier_effective_at": None, "pending_unknown": False, "trial_ends_at": None,
        "grace_until": None, "current_period_end": None, "payments_enabled": True, "action": "none", "url": "",
    }  # fmt: skip
    assert shop.status() == nothing
    shop.subscribe("PRO")
    shop.pass_time(days=15)
    said = shop.status()
    assert said["proration_credit_cents"] in (
        999,
        1_000,
    )  # half a month of 2,000, and the seconds of this test
    assert {name: said[name] for name in nothing if said[name] != nothing[name]} == {
        "tier": "PRO",
        "status": "active",
        "monthly_cost_cents": 2_000,
        "proration_credit_cents": said["proration_credit_cents"],
        "current_period_end": f"{shop.mirror.period_end:%Y-%m-%dT%H:%M:%SZ}",
    }


def test_a_schedule_created_at_stripe_is_recognized_by_its_start(shop):
    """B12.3: tier by the price of the first phase to come, date by its start; an unknown price is nothing."""
    shop.subscribe("BUSINESS")
    shop.ask("PRO")
    TierPolicy.objects.filter(tier="PRO").update(stripe_price_id="another")
    shop.sync()
    assert (shop.status()["pending_tier"], shop.status()["pending_tier_effective_at"]) == (None, None)


def test_a_preview_is_what_the_upgrade_charges(shop):
    """B12.2: due now, and the same is charged when the user has thought about it for a while."""
    shop.subscribe("PRO")
    shop.pass_time(days=10)
    told = (
        person(shop.user).post(f"{API}/subscription/preview", {"tier": "BUSINESS"}, content_type=JSON).json()
    )
    assert set(told) == {"due_now_cents", "proration_date"}
    shop.pass_time(hours=0.2)
    shop.ask("BUSINESS")
    assert shop.fake.all("invoice")[0]["amount_due"] == told["due_now_cents"]
    free = person(shop.user).post(f"{API}/subscription/preview", {"tier": "FREE"}, content_type=JSON).json()
    assert free["due_now_cents"] == 0


def test_a_preview_of_a_first_plan_is_its_price(shop):
    """B12.2: without a subscription nothing is asked of Stripe."""
    told, made = shop.calls(lambda: plan_previews.preview_plan_change(shop.user.pk, "PRO"))
    assert (told.due_now_cents, made) == (CENTS["PRO"], [])
    TierPolicy.objects.filter(tier="PRO").update(trial_days=14)
    assert plan_previews.preview_plan_change(shop.user.pk, "PRO").due_now_cents == 0


# --- grace ----------------------------------------------------------------------------------------------


def failed(shop):
    """What the webhook of a failed attempt does."""
    shop.sync()
    found = subscription_api.get_invoice(api_client.start_task_deadline(), shop.fake.all("invoice")[0]["id"])
    grace_period.handle_failed_renewal(
        shop.account.pk, found, attempt=found.attempt_count, attempted_at=timezone.now()
    )


def test_a_renewal_that_fails_b15_c1(shop, django_capture_on_commit_callbacks):
    """B15.c1: grace to day 37 and a notice; the second failure a second one and the same grace; lapsed; paid, back."""
    shop.subscribe("PRO")
    begun = timezone.now()
    shop.fake.card("decline")
    shop.pass_time(days=30, hours=1)
    failed(shop)
    until = shop.mirror.grace_until
    assert abs(until - (begun + timedelta(days=37, hours=1))) < timedelta(minutes=5)
    assert (shop.tier, shop.status()["status"]) == ("PRO", "past_due")
    shop.pass_time(days=3)
    failed(shop)
    failed(shop)  # told twice
    told = list(BillingNotice.objects.order_by("pk").values_list("kind", flat=True))
    assert (told, shop.mirror.grace_until) == (["payment_failed", "payment_failed"], until)
    shop.pass_time(days=4, hours=1)
    tasks.lapse_overdue()
    assert (shop.tier, plan_status.get_plan_state(shop.user.pk).lapsed) == ("FREE", True)
    assert BillingNotice.objects.filter(kind="plan_lapsed").count() == 1
    shop.fake.card("ok")
    shop.pass_time(days=1)
    shop.fake.pay_invoice(shop.fake.all("invoice")[0]["id"])
    shop.sync()
    assert (shop.tier, shop.mirror.grace_until) == ("PRO", None)


def test_only_a_renewal_begins_a_grace(shop):
    """B15.1: a failed upgrade invoice starts none, and is told elsewhere."""
    shop.subscribe("PRO")
    shop.fake.card("decline")
    shop.ask("BUSINESS")
    failed(shop)
    assert (shop.mirror.grace_until, BillingNotice.objects.count()) == (None, 0)


def test_a_grace_is_over_even_without_keys(shop, settings):
    """B15.1: by what we were told last; while Stripe cannot be asked, nobody lapses by mistake."""
    shop.subscribe("PRO")
    shop.fail_renewal()
    shop.clock.shift(timedelta(days=8))
    shop.fake.faults.add("error", times=9)
    grace_period.lapse_overdue_subscriptions()
    assert shop.tier == "PRO"
    settings.STRIPE_SECRET_KEY = ""
    grace_period.lapse_overdue_subscriptions()
    assert (shop.tier, shop.mirror.entitles) == ("FREE", False)


def test_a_failed_payment_is_mailed_once(shop):
    """B15.1: with the addresses of the invoice and of the portal, which opens; the last attempt is called so."""
    shop.subscribe("PRO")
    shop.fake.card("decline")
    shop.pass_time(days=30, hours=1)
    failed(shop)
    [notice] = BillingNotice.objects.all()
    assert [emails.send_notice_email(notice.pk) for _ in range(2)] == [True, False]
    [sent] = mail.outbox
    assert sent.to == [shop.user.email]
    assert notice.data["invoice_url"] in sent.body
    assert notice.data["portal_url"] in sent.body
    opened = person(shop.user).get(notice.data["portal_url"].removeprefix(settings.SITE_URL))
    assert f"{shop.fake.address}/p/" in opened.content.decode()
    assert opened.headers["Cache-Control"].count("no-store")
    sent_away = Client().get("/billing/portal")
    assert (sent_away.status_code, "next=/billing/portal" in sent_away.url) == (302, True)
    shop.fake.world.retry_days = ()
    shop.pass_time(days=20)
    failed(shop)
    assert emails.send_waiting_emails() >= 1
    assert "Last attempt" in mail.outbox[-1].subject


# --- trial, portal, staff -------------------------------------------------------------------------------


def test_one_trial_for_ever_b15_c4(shop):
    """B15.c4, B15.2: the first checkout carries it, one after it was used does not; it ends without a card."""
    TierPolicy.objects.filter(tier="PRO").update(trial_days=14)
    shop.ask("PRO")
    [made] = shop.fake.calls_of("POST", "/v1/checkout/sessions")
    assert made.params["subscription_data"]["trial_period_days"] == "14"
    shop.fake.pay(shop.fake.all("checkout.session")[0]["id"], with_card=False)
    shop.sync()
    said = shop.status()
    assert (shop.tier, said["status"], said["proration_credit_cents"]) == ("PRO", "trialing", 0)
    assert said["trial_ends_at"] is not None
    shop.pass_time(days=15)
    shop.sync()
    assert shop.tier == "FREE"
    shop.ask("PRO")
    again = shop.fake.calls_of("POST", "/v1/checkout/sessions")[-1]
    assert "trial_period_days" not in again.params["subscription_data"]


def test_the_portal_needs_a_customer_b15_c4(shop):
    """B15.c4, B15.3: 409 without one, an address with one, 400 for a hostile way back."""
    client = person(shop.user)

    def asked(**body):
        return client.post(f"{API}/portal", body, content_type=JSON)

    refused = asked()
    assert (refused.status_code, code_of(refused)) == (409, "no_customer")
    shop.customer()
    assert asked().json()["url"].startswith(shop.fake.address)
    assert asked(return_url="https://good.example@evil.test/").status_code == 400
    LimitPolicy.objects.update(payments_enabled=False)
    policies.clear_policy_cache()
    assert code_of(asked()) == "payments_off"


def test_a_tier_that_staff_set_is_checked_for_drift_b15_c2(
    shop, caplog, django_capture_on_commit_callbacks, monkeypatch
):
    """B15.c2: an answer at once, one warning, the next sync sets PRO; no broker is no failure."""
    asked = []
    monkeypatch.setattr(
        account_tiers.current_app, "send_task", lambda name, args, **_: asked.append((name, args))
    )
    shop.subscribe("PRO")
    with django_capture_on_commit_callbacks(execute=True):
        _, made = shop.calls(
            lambda: account_tiers.grant_tier(shop.account.pk, "BUSINESS", actor_id=None, reason="trust")
        )
    assert (made, asked) == ([], [("billing.tasks.check_drift", [shop.account.pk])])
    tasks.check_drift(shop.account.pk)
    [warned] = [record.msg for record in caplog.records if "billing_drift" in record.getMessage()]
    assert (warned["tier"], warned["subscription_id"]) == ("BUSINESS", shop.mirror.stripe_id)
    assert (warned["price_id"], warned["expected_price_id"]) == (shop.prices["PRO"], shop.prices["BUSINESS"])
    shop.sync()
    assert shop.tier == "PRO"
    tasks.check_drift(shop.account.pk)
    assert len([line for line in caplog.messages if "billing_drift" in line]) == 1


def test_a_drift_check_ends_though_stripe_hangs_b15_c2(shop, monkeypatch, caplog):
    """B15.c2: the task has five seconds, its call fewer; whatever happens, nobody fails."""
    assert tasks.check_drift.time_limit == 5
    assert tasks.check_drift.time_limit > account_tiers.DRIFT_CHECK_SECONDS
    shop.subscribe("PRO")
    monkeypatch.setattr(account_tiers, "DRIFT_CHECK_SECONDS", 0.2)
    shop.fake.faults.add("hang", times=9)
    caplog.set_level(logging.INFO)
    tasks.check_drift(shop.account.pk)
    assert "drift_check_failed" in caplog.text


# --- going for good -------------------------------------------------------------------------------------


def test_erasing_ends_what_is_paid_for(shop, settings):
    """B2.5: cancelled now, no page stays open, and a second time is nothing; the ledger is not touched."""
    shop.subscribe("PRO")
    plan_changes.erase_subscription(shop.user.pk)
    assert (shop.live(), shop.tier) == ([], "FREE")
    plan_changes.erase_subscription(shop.user.pk)
    plan_changes.erase_subscription(factories.bob().pk)
    shop.ask("PRO")
    plan_changes.erase_subscription(shop.user.pk)
    assert [one["status"] for one in shop.fake.all("checkout.session")] == ["expired"]


def test_erasing_says_when_somebody_would_go_on_paying(shop, settings):
    """B2.5: without a key, or while Stripe does not answer, it fails and the deletion is retried."""
    shop.subscribe("PRO")
    shop.fake.faults.add("error", times=9)
    with pytest.raises(PaymentServiceUnavailable):
        plan_changes.erase_subscription(shop.user.pk)
    settings.STRIPE_SECRET_KEY = ""
    with pytest.raises(PaymentsDisabled):
        plan_changes.erase_subscription(shop.user.pk)
    Subscription.objects.update(status="canceled")
    plan_changes.erase_subscription(shop.user.pk)


# --- staff pages ----------------------------------------------------------------------------------------


def test_staff_sync_an_account_and_see_what_is_to_come(shop):
    """B18.1, B18.c1: the action follows Stripe and leaves its line; a Stripe that is away is told."""
    shop.fake.subscribe(shop.customer(), shop.prices["BUSINESS"])
    staff, page = person(factories.grace()), reverse("admin:billing_account_changelist")
    asked = {
        "action": "sync_now", "_selected_action": [shop.account.pk], "apply": "yes", "reason": "A late word"
    }  # fmt: skip
    staff.post(page, asked)
    assert shop.tier == "BUSINESS"
    assert LogEntry.objects.get().change_message == "Synced from Stripe. A late word"
    shop.ask("PRO")
    own = staff.get(reverse("admin:billing_account_change", args=[shop.account.pk])).content.decode()
    assert "PRO on " in own
    shop.fake.faults.add("error", times=9)
    assert "contact support" in staff.post(page, asked, follow=True).content.decode()
    assert LogEntry.objects.count() == 1


def test_a_price_is_looked_up_before_it_is_believed(shop):
    """B18.3: recurring, monthly, active, our currency; the plan then costs what it says, and a price in use stays."""
    row = TierPolicy.objects.get(tier="PRO")
    page, staff = reverse("admin:billing_tierpolicy_change", args=[row.pk]), person(factories.grace())

    def save(price):
        given = {
            "multiplier": 5,
            "stripe_price_id": price,
            "monthly_cents": 1,
            "trial_days": 0,
            "turns_at_once": 10,
            "selectable": "on",
            "reason": "A new price",
        }
        return staff.post(page, given, follow=True).content.decode()

    assert "Stripe doesn&#x27;t know this price ID." in save("price_nowhere")
    assert "Use a price with one fixed amount per month" in save(shop.fake.price(500, interval="year"))
    assert "This price is in eur" in save(shop.fake.price(500, currency="eur"))
    assert "Limits now: FREE $1.000000" in save(shop.fake.price(2_500))
    row.refresh_from_db()
    assert row.monthly_cents == 2_500
    shop.prices["PRO"] = row.stripe_price_id
    shop.subscribe("PRO")
    assert "1 subscriptions still use" in save(shop.fake.price(3_000))
    shop.fake.faults.add("error", times=9)
    assert "contact support" in save(row.stripe_price_id)
