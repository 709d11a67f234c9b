"""B1, B13, B17.3, B19, B20: what holds of billing as a whole: one clock, short waits, names of keys, a timetable, quiet logs."""

from __future__ import annotations

import ast
import logging
import re
import socket
import tomllib
from datetime import timedelta
from typing import get_args
from uuid import uuid4

import pytest
import stripe as sdk
from celery import current_app
from celery.schedules import crontab
from django.conf import settings
from django.utils import timezone
from prometheus_client import REGISTRY

from billing import accounts, ledger, pricing, redis_counters, tasks
from billing.errors import PaymentServiceError
from billing.models import LedgerEntry
from billing.selectors import credit_statements, usage_status
from billing.stripe import api_client, payment_api
from billing.subscriptions import plan_checkouts
from billing.top_ups import purchases
from billing.usage import limit_checks, resets, usage_records
from config import beat_schedule
from tests import stripe_fake
from tests.stripe_fake import Fake
from tests.stripe_fake.world import Rule
from tests.support import factories, timeouts
from tests.support.billing_admin import run_account_action
from tests.support.paths import ROOT
from tests.support.redis_outages import make_connection_pool
from tests.support.rest_clients import V1, person
from tests.support.stripe_webhooks import settle
from tests.support.usage import make_usage_call, read_cached_usage, record_usage, update_account

pytestmark = pytest.mark.django_db
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(?P<zone>.*)")


# --- time -----------------------------------------------------------------------------------------------


def test_there_is_one_clock():
    """B1.7: Django's, which tests move; nothing in billing asks another one what time it is"""
    others = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "time.time"}
    found = []
    for path in (ROOT / "billing").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in others:
                found.append(f"{path.name}: {ast.unparse(node)}")
    assert found == []


def instants(value):
    match value:
        case dict():
            for inner in value.values():
                yield from instants(inner)
        case list():
            for inner in value:
                yield from instants(inner)
        case str() if INSTANT.fullmatch(value):
            yield INSTANT.fullmatch(value)["zone"]


def test_times_are_utc_and_say_so():
    """B1.7: ISO 8601 with Z, in every answer"""
    ada = factories.ada()
    record_usage(ada, 5)
    ledger.grant_credits(ada.pk, 100, key="grant:1", expires_at=timezone.now() + timedelta(days=9))
    zones = []
    for path in ("usage", "credits", "credits/statement", "subscription", "notices"):
        zones += instants(person(ada).get(f"{V1}/billing/{path}").json())
    assert len(zones) >= 5
    assert set(zones) == {"Z"}


def test_nobody_waits_long_for_a_copy(caplog, monkeypatch):
    """B5.8: 250 ms to connect and for an answer, and no second try: a Redis that says nothing keeps nobody"""
    for name in ("CONNECT_TIMEOUT_SECONDS", "RESPONSE_TIMEOUT_SECONDS"):
        monkeypatch.setattr(redis_counters, name, timeouts.shipped[f"billing.redis_counters.{name}"])
    options = redis_counters._create_client.__wrapped__(settings.REDIS_URL).connection_pool.connection_kwargs
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (0.25, 0.25)
    assert options["retry"].get_retries() == 0
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes the call and never answers
        pool = type(redis_counters.get_redis_client().connection_pool).from_url(
            f"redis://127.0.0.1:{mute.getsockname()[1]}",
            **{key: options[key] for key in ("socket_timeout", "retry")},
        )
        monkeypatch.setattr(redis_counters.get_redis_client(), "connection_pool", pool)
        limit_checks.check_limits(factories.ada().pk)
    assert "limit_check_degraded" in caplog.text


def test_every_scheduled_task_has_an_interval_and_a_time_limit():
    """B19.4: every minute, hour or night, and no task without a time limit"""
    due = {
        job["task"]: job["schedule"]
        for job in beat_schedule.build_beat_schedule().values()
        if str(job["task"]).startswith("billing.")
    }
    minutes = {name for name, often in due.items() if often == 60}
    hours = {name for name, often in due.items() if often == 3_600}
    nights = {name for name, often in due.items() if isinstance(often, crontab)}
    assert {"billing.tasks.publish_windows", "billing.tasks.sweep_events"} <= minutes
    assert {"billing.tasks.lapse_overdue", "billing.tasks.expire_credits"} <= hours
    assert {
        "billing.tasks.reconcile",
        "billing.tasks.reconcile_top_ups",
        "billing.tasks.verify_windows",
    } <= nights
    ours = [task for name, task in current_app.tasks.items() if name.startswith("billing.")]
    assert len(ours) >= 13
    assert [task.name for task in ours if not task.time_limit] == []


def test_every_scheduled_task_may_run_twice():
    """B19.4: all of it, one after the other, two times; nothing changes the second time"""
    ada = factories.ada()
    record_usage(ada, 500)
    ledger.grant_credits(ada.pk, 100, key="grant:1", expires_at=timezone.now() - timedelta(days=1))
    by_the_clock = (
        tasks.publish_windows, tasks.sweep_events, tasks.lapse_overdue, tasks.expire_credits, tasks.mail_waiting,
        tasks.reconcile, tasks.reconcile_top_ups, tasks.verify_windows, tasks.fold_usage,
    )  # fmt: skip
    for task in by_the_clock:
        task()
    after = (usage_status.get_staff_limits(ada.pk), list(LedgerEntry.objects.values()))
    for task in by_the_clock:
        task()
    assert (usage_status.get_staff_limits(ada.pk), list(LedgerEntry.objects.values())) == after


# --- money ----------------------------------------------------------------------------------------------


def test_a_call_costs_everybody_the_same():
    """B4.5: no weighting by tier, by cache share or by the model's family"""
    costs = set()
    for tier in ("FREE", "PRO", "BUSINESS", "ENTERPRISE"):
        user = factories.user(f"a-{tier}")
        update_account(user, tier=tier)
        for model in ("glow-1", "other-family"):
            tokens = pricing.TokenCounts(input=10, cache_read=1_000_000)
            costs.add(
                usage_records.record_usage(
                    make_usage_call(user, at=timezone.now(), model=model, tokens=tokens, reported="0.002")
                )
            )
    assert costs == {usage_records.RecordedUsage(cost_microdollars=2_000, source="REPORTED")}


@pytest.mark.django_db(transaction=True)
def test_staff_forgive_though_redis_is_away(monkeypatch):
    """B8.4: the change stands, staff are warned, and the minute heals the copy"""
    ada = factories.ada()
    record_usage(ada, 700)
    limit_checks.check_limits(ada.pk)
    with monkeypatch.context() as patch:
        patch.setattr(
            redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
        )
        staff = person(factories.grace())
        run_account_action(staff, accounts.get_or_create_account(ada.pk), "reset_day", reason="an outage")
    assert "Redis is unavailable" in staff.get("/admin/billing/account/").content.decode()
    assert usage_status.get_staff_limits(ada.pk).daily_used_microdollars == 0
    assert read_cached_usage(ada).daily.used_microdollars == 700
    tasks.publish_windows()
    assert read_cached_usage(ada).daily.used_microdollars == 0


@pytest.mark.django_db(transaction=True)
def test_keys_of_the_ledger_say_what_they_are_for(stripe: Fake):
    """B9.10: a grant, a reset, what a lot left, a purchase, its debt, a refund that failed, a dispute that was won"""
    ada = factories.ada()
    account = accounts.get_or_create_account(ada.pk)
    run_account_action(
        person(factories.grace()),
        account,
        "grant_credits",
        cents="600",
        key=str(uuid4()),
        expires_on="",
        reason="a gift",
    )
    record_usage(ada, 1_000_000)
    resets.buy_usage_reset(ada.pk)
    ledger.grant_credits(ada.pk, 5, key="grant:old", expires_at=timezone.now() - timedelta(days=1))
    tasks.expire_credits()
    for undo in (_refund_that_fails, _dispute_that_is_won):
        purchase = purchases.TopUpPurchase(
            amount_cents=1_000, success_url="https://x", cancel_url="https://x"
        )
        top_up = purchases.start_top_up(ada.pk, purchase, key=None)
        stripe.pay(top_up.checkout_session_id)
        settle(stripe)
        top_up.refresh_from_db()
        ledger.spend(ada.pk, credit_statements.get_balance(ada.pk).balance_cents, key=f"tool:{uuid4()}")
        undo(stripe, top_up.payment_intent_id)
    uuid, number = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"\d+"
    known = [
        rf"grant:{uuid}", "grant:old", rf"reset:{uuid}", rf"expiry:{number}", rf"tool:{uuid}", rf"topup:{uuid}",
        r"refund:re_\w+", r"refund-failed:re_\w+", r"dispute:dp_\w+", r"dispute-won:dp_\w+",
    ]  # fmt: skip
    keys = list(LedgerEntry.objects.values_list("idempotency_key", flat=True))
    assert [key for key in keys if not any(re.fullmatch(one, key) for one in known)] == []
    assert [one for one in known if not any(re.fullmatch(one, key) for key in keys)] == []


def _refund_that_fails(stripe: Fake, intent_id: str) -> None:
    refund_id = stripe.refund(intent_id, 1_000, status="pending")
    settle(stripe)
    stripe.end_refund(refund_id, "failed")
    settle(stripe)


def _dispute_that_is_won(stripe: Fake, intent_id: str) -> None:
    dispute_id = stripe.dispute(intent_id, 1_000)
    settle(stripe)
    stripe.close_dispute(dispute_id, won=True)
    settle(stripe)


# --- Stripe ---------------------------------------------------------------------------------------------


def test_the_sdk_has_no_state_of_its_own(stripe: Fake):
    """B13.1: a client of its own with the SDK's own version pinned; no key of the module, nothing asynchronous"""
    payment_api.create_customer(
        api_client.start_task_deadline(), email="ada@example.com", account_id=1, user_id=1
    )
    [made] = stripe.calls_of("POST", "/v1/customers")
    assert (made.status, sdk.api_key) == (200, None)  # another version would have been refused
    assert sdk.api_version == api_client.API_VERSION
    source = "".join(path.read_text() for path in (ROOT / "billing" / "stripe").glob("*.py"))
    assert "stripe.RequestsClient" in source
    assert "_async(" not in source
    assert "stripe.api_key" not in source


def test_what_is_bought_is_on_one_page(stripe: Fake):
    """B17.3: filters, the file, top-ups with their state, and invoices through the portal where there is one"""
    ada = factories.ada()
    ledger.grant_credits(ada.pk, 100, key="grant:1", reason="welcome")
    before = person(ada).get("/billing/history").content.decode()
    assert "/billing/portal" not in before
    purchase = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")
    top_up = purchases.start_top_up(ada.pk, purchase, key=None)
    stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    page = person(ada).get("/billing/history?kind=TOP_UP").content.decode()
    assert "welcome" not in page
    for shown in ("statement.csv?kind=TOP_UP", "10.00", ">Paid<", "/billing/portal"):
        assert shown in page, shown


def test_counters_have_their_names():
    """B19.5: what operators build their boards on"""
    names = {
        metric.name: {label for one in metric.samples for label in one.labels}
        for metric in REGISTRY.collect()
    }
    for name in (
        "checks", "records", "publish_failures", "events", "oldest_event_seconds", "ledger_entries", "leaks",
        "gateway_seconds", "alerts",
    ):  # fmt: skip
        assert f"pilothouse_billing_{name}" in names, name


@pytest.mark.django_db(transaction=True)
def test_logs_name_accounts_and_nobody(stripe: Fake, caplog):
    """B19.5: a whole purchase, a decline and a forged webhook; no address, key, signature or payload is logged"""
    caplog.set_level(logging.DEBUG)
    ada = factories.user("ada.lovelace")
    purchase = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")
    top_up = purchases.start_top_up(ada.pk, purchase, key=None)
    stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    stripe.faults.add("unauthorised", "POST", "/v1/billing_portal")
    with pytest.raises(PaymentServiceError):
        plan_checkouts.open_portal(ada.pk, return_url="https://x")
    stripe.webhooks.post(b'{"secret": "payload"}', "t=1,v1=forged-signature")
    written = "\n".join(f"{one.getMessage()} {one.exc_text or ''}" for one in caplog.records)
    for secret in (
        "ada.lovelace", stripe_fake.SECRET_KEY, stripe_fake.WEBHOOK_SECRET, "forged-signature", "payload", "v1=",
    ):  # fmt: skip
        assert secret not in written, secret


# --- tests of it ----------------------------------------------------------------------------------------


def test_tests_of_billing_neither_mock_nor_sleep():
    """B20.1: real servers, a clock that is moved, and barriers"""
    found = []
    for path in [
        *(ROOT / "tests" / "billing").rglob("test_*.py"),
        *(ROOT / "tests" / "races").glob("test_p*_races.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom) and "mock" in ast.unparse(node):
                found.append(f"{path.name}: {ast.unparse(node)}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                found.append(f"{path.name}: {ast.unparse(node)}")
    assert found == []


def test_the_stand_in_says_what_it_copies():
    """B20.4: every rule that can be switched off is in its contract, and nothing else"""
    contract = (ROOT / "tests" / "stripe_fake" / "CONTRACT.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", contract, re.M)) == set(get_args(Rule))


def test_coverage_is_measured_of_the_moneys_modules():
    """B20.9: lines and branches, at least 95 of 100 of each, by `make coverage`"""
    run = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    assert run["branch"]
    assert {re.sub(r"billing/|\.py|/\*", "", one) for one in run["include"]} == {
        "ledger", "plans", "pricing", "top_ups", "subscriptions", "usage",
    }  # fmt: skip
    assert "--fail-under=95" in (ROOT / "Makefile").read_text()


def test_variables_are_read_by_their_names():
    """B19.2: these five, and a currency and origins without being asked"""
    source = (ROOT / "config" / "variables.py").read_text()
    for name in (
        "STRIPE_SECRET_KEY", "STRIPE_WEBHOOK_SECRETS", "STRIPE_API_BASE", "BILLING_CURRENCY",
        "BILLING_REDIRECT_ORIGINS",
    ):  # fmt: skip
        assert re.search(rf'^{name} = _money\.read\(\s*"{name}"', source, re.M), name
    assert settings.BILLING_CURRENCY == "usd"
    assert settings.BILLING_REDIRECT_ORIGINS == [settings.SITE_URL]
