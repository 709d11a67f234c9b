"""B1, B2, B19: what holds of the whole: Redis is disposable, modules keep to their places, settings are checked."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from billing import accounts, checks, ledger, tasks
from billing.models import Subscription, TierPolicy, TopUp
from billing.selectors import credit_statements, plan_status, usage_status
from billing.subscriptions import account_tiers
from billing.usage import limit_checks, usage_records
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.usage import make_usage_call


def ids(found):
    return [one.id for one in found]


@pytest.mark.django_db(transaction=True)
def test_a_flush_of_redis_changes_nothing_that_counts(redis_clean):
    """B1.c2: balances, use, pending changes and rights read the same."""
    ada = factories.ada()
    account = accounts.get_or_create_account(ada.pk)
    usage_records.record_usage(make_usage_call(ada, at=datetime.now(UTC), reported="0.5"))
    ledger.grant_credits(ada.pk, 1_000, key="grant:1")
    account_tiers.grant_tier(account.pk, "PRO", actor_id=None, reason="a friend")
    ends = datetime.now(UTC) + timedelta(days=9)
    Subscription.objects.create(
        account=account, stripe_id="sub_1", status="active", tier="PRO", period_end=ends,
        cancel_at_period_end=True, synced_at=datetime.now(UTC),
    )  # fmt: skip
    limit_checks.check_limits(ada.pk)

    def everything():
        return (
            usage_status.get_usage(ada.pk), credit_statements.get_balance(ada.pk), plan_status.get_plan_terms(ada.pk), usage_status.get_staff_limits(ada.pk),
            Subscription.objects.values().get(),
        )  # fmt: skip

    before = everything()
    redis_clean.flushdb()
    assert everything() == before
    limit_checks.check_limits(ada.pk)
    assert everything() == before


@pytest.mark.django_db
def test_without_keys_the_night_asks_nobody(settings):
    """B19.1: a subscription and a purchase of former days are left as they are, and nothing fails"""
    account = accounts.get_or_create_account(factories.ada().pk)
    Subscription.objects.create(
        account=account, stripe_id="sub_1", status="active", tier="PRO", synced_at=datetime.now(UTC)
    )
    TopUp.objects.create(account=account, amount_cents=500, created_at=datetime.now(UTC) - timedelta(days=1))
    settings.STRIPE_SECRET_KEY = ""
    tasks.reconcile()
    tasks.reconcile_top_ups()
    tasks.sweep_events()
    tasks.lapse_overdue()
    assert (Subscription.objects.get().status, TopUp.objects.get().state) == ("active", "CREATED")


def test_no_test_has_a_key_or_reaches_outside(settings):
    """B19.c1: the whole suite runs without Stripe's variables and as if the network were blocked; the machine itself is there."""
    assert (settings.STRIPE_SECRET_KEY, settings.STRIPE_WEBHOOK_SECRETS) == ("", [])
    for outside in ("192.0.2.1", "api.stripe.com", "2001:db8::1"):
        family = socket.AF_INET6 if ":" in outside else socket.AF_INET
        with socket.socket(family) as made, pytest.raises(OSError, match="unreachable"):
            made.connect((outside, 443))
    with socket.create_server(("127.0.0.1", 0)) as here:
        socket.create_connection(here.getsockname()).close()


@pytest.mark.slow
def test_imports_out_of_place_are_found(tmp_path):
    """B2.c1, B2.1, B2.2, B1.1: stripe outside gateway, redis outside counters, Django in pure modules, copilot in billing."""
    for app in ("config", "diagnostics", "linking", "copilot", "billing"):
        shutil.copytree(
            ROOT / app, tmp_path / app, ignore=lambda _, names: [n for n in names if n == "__pycache__"]
        )
    shutil.copy(ROOT / ".importlinter", tmp_path)
    violations = {
        "billing/ledger.py": "import stripe",
        "billing/notices.py": "import redis",
        "billing/plans.py": "import django",
        "billing/accounts.py": "from copilot import metrics",
    }
    for file, line in violations.items():
        with (tmp_path / file).open("a") as text:
            text.write(f"\n{line}\n")
    lint = Path(sys.executable).with_name("lint-imports")
    told = subprocess.run(
        [lint, "--no-logo", "--no-cache"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1
    for importer, imported in [
        ("billing.ledger", "stripe"),
        ("billing.notices", "redis"),
        ("billing.plans", "django"),
        ("billing.accounts", "config.core.errors"),
    ]:
        assert f"{importer} -> {imported}" in told.stdout


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, []),
        ({"STRIPE_SECRET_KEY": "sk_test_1"}, ["billing.E001"]),
        ({"STRIPE_API_BASE": "https://stripe.evil.test"}, ["billing.E002"]),
        ({"STRIPE_API_BASE": "http://127.0.0.1:12111"}, []),
        (
            {"STRIPE_SECRET_KEY": "sk_live_1", "STRIPE_WEBHOOK_SECRETS": ["w"], "DEBUG": True},
            ["billing.W001"],
        ),
        (
            {
                "STRIPE_SECRET_KEY": "rk_test_1",
                "STRIPE_WEBHOOK_SECRETS": ["w"],
                "SITE_URL": "https://chat.example",
            },
            ["billing.W002"],
        ),
    ],
)
def test_payment_settings_that_contradict_each_other_are_named(settings, given, found):
    """B19.c2, B19.3, B13.5: an error stops the boot, a warning names the variable."""
    for name, value in given.items():
        setattr(settings, name, value)
    messages = checks.check_payment_settings(None)
    assert ids(messages) == found
    assert all("STRIPE" in one.msg for one in messages)


@pytest.mark.parametrize(
    "origin",
    [
        "example.com",
        "https://",
        "https://a b",
        "ftp://example.com",
        "https://example.com/path",
        "https://x:y",
    ],
)
def test_an_origin_that_is_none_is_named(settings, origin):
    """B19.c2"""
    settings.BILLING_REDIRECT_ORIGINS = ["https://example.com", "http://localhost:8000", origin]
    [found] = checks.check_redirect_origins(None)
    assert found.id == "billing.E003"
    assert "BILLING_REDIRECT_ORIGINS" in found.msg


@pytest.mark.django_db
def test_a_tier_for_sale_without_a_price_is_named(settings):
    """B19.c2: where there is a key, and the database is looked at."""
    assert checks.check_plan_prices(None, databases=["default"]) == []
    settings.STRIPE_SECRET_KEY = "sk_test_1"
    TierPolicy.objects.filter(tier="BUSINESS").update(stripe_price_id="price_1")
    [found] = checks.check_plan_prices(None, databases=["default"])
    assert (found.id, "PRO" in found.msg) == ("billing.W003", True)
    assert checks.check_plan_prices(None) == []
