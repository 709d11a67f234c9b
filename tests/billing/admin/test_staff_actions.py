"""B18: what staff may do to accounts, each with its trail; and what not even superusers may."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from billing import accounts, ledger, policies
from billing.admin.policies import list_models_of_unknown_cost, list_unpriced_models
from billing.models import (
    LedgerAllocation,
    LedgerEntry,
    ModelPrice,
    PlanChange,
    UsageRecord,
    UsageReset,
    UsageWindow,
)
from billing.selectors import credit_statements, usage_status
from billing.usage import resets, usage_records
from tests.support import factories
from tests.support.billing_admin import ACCOUNTS, run_account_action
from tests.support.rest_clients import person
from tests.support.usage import make_usage_call, read_windows

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone():
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


@pytest.fixture
def account():
    return accounts.get_or_create_account(factories.ada().pk)


def trail():
    return [entry.change_message for entry in LogEntry.objects.order_by("pk")]


def test_without_stripe_staff_set_a_tier_and_grant_credits(account, django_capture_on_commit_callbacks):
    """B18.c2, B18.c1: limits are five times the base, the statement shows the grant, and both have a trail."""
    grace, staff = factories.grace(), person(factories.grace())
    with django_capture_on_commit_callbacks(execute=True):
        run_account_action(staff, account, "set_tier", tier="PRO", reason="a friend")
    key = "7f1d9c1e-0000-4000-8000-000000000000"
    for _ in range(2):  # the same form sent twice
        run_account_action(staff, account, "grant_credits", cents=1_000, reason="welcome", key=key)
    limits = usage_status.get_staff_limits(account.user_id)
    assert (limits.tier, limits.granted_tier, limits.daily_limit_microdollars) == ("PRO", "PRO", 5_000_000)
    [entry] = credit_statements.get_statement(account.user_id).results
    assert (entry.kind, entry.amount_cents, entry.reason) == ("GRANT", 1_000, "welcome")
    assert LedgerEntry.objects.get().actor == grace
    change = PlanChange.objects.get()
    assert (change.kind, change.state, change.actor, change.reason) == ("GRANT", "DONE", grace, "a friend")
    assert trail()[0] == "Tier PRO. a friend"


def test_staff_set_limits_and_forgive_use(account):
    """B18.c1: overrides and resets, with who and why."""
    staff, ada = person(factories.grace()), account.user
    usage_records.record_usage(make_usage_call(ada, reported="0.5"))
    run_account_action(staff, account, "set_overrides", daily_limit_microdollars=7, reason="too eager")
    account.refresh_from_db()
    assert account.daily_limit_override_microdollars == 7
    run_account_action(staff, account, "set_overrides", reason="better now")
    account.refresh_from_db()
    assert account.daily_limit_override_microdollars is None
    run_account_action(staff, account, "reset_day", reason="an outage")
    run_account_action(staff, account, "reset_day_and_week", reason="another")
    assert [(one.kind, one.actor, one.reason) for one in UsageReset.objects.order_by("created_at")] == [
        ("STAFF", factories.grace(), "an outage"),
        ("STAFF", factories.grace(), "another"),
    ]
    assert len(trail()) == 4


def test_an_act_needs_a_reason_and_the_right(account):
    """B18.c1: without a reason nothing happens; without permission nobody acts."""
    run_account_action(person(factories.grace()), account, "set_tier", tier="PRO", reason="")
    viewer = User.objects.create(username="viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_account"))
    client = person(viewer)
    asked = {
        "action": "set_tier",
        "_selected_action": [account.pk],
        "apply": "1",
        "tier": "PRO",
        "reason": "x",
    }
    client.post(reverse(ACCOUNTS), asked)
    account.refresh_from_db()
    assert account.tier == "FREE"
    assert client.get(reverse(ACCOUNTS)).status_code == 200


def test_an_override_in_the_form_needs_a_reason_too(account):
    """B18.1"""
    staff = person(factories.grace())
    page = reverse("admin:billing_account_change", args=[account.pk])
    inlines = {
        f"{name}-{field}": 0
        for name in ("subscription", "usage_resets", "plan_changes")
        for field in ("TOTAL_FORMS", "INITIAL_FORMS")
    }
    assert b"Enter a reason." in staff.post(page, {"daily_limit_override_microdollars": 9, **inlines}).content
    staff.post(page, {"daily_limit_override_microdollars": 9, "reason": "asked for it", **inlines})
    account.refresh_from_db()
    assert account.daily_limit_override_microdollars == 9
    assert "asked for it" in trail()[0]


@pytest.mark.parametrize(
    "model", [LedgerEntry, LedgerAllocation, UsageRecord, UsageReset, PlanChange, UsageWindow]
)
def test_what_is_written_by_code_is_only_looked_at(model, account):
    """B18.c1, B18.4: not even a superuser adds, changes or deletes it."""
    usage_records.record_usage(make_usage_call(account.user))
    ledger.grant_credits(account.user_id, 5, key="g")
    ledger.spend(account.user_id, 5, key="s")
    resets.reset_usage_as_staff(account.user_id, weekly=True, actor_id=None, reason="r")
    PlanChange.objects.create(account=account, kind="KEEP", from_tier="FREE", to_tier="FREE", state="DONE")
    row = model.objects.first()
    superuser, name = person(factories.grace()), f"admin:billing_{model._meta.model_name}"
    assert superuser.get(reverse(f"{name}_changelist")).status_code == 200
    assert superuser.get(reverse(f"{name}_change", args=[row.pk])).status_code == 200
    for page in (
        reverse(f"{name}_add"),
        reverse(f"{name}_change", args=[row.pk]),
        reverse(f"{name}_delete", args=[row.pk]),
    ):
        assert superuser.post(page, {"post": "yes"}).status_code == 403


def test_the_catalogue_names_models_without_a_price():
    """B18.2: those used of late, those of unknown cost, and what a call would cost."""
    ada, staff = factories.ada(), person(factories.grace())
    from django.utils import timezone

    now = timezone.now()
    usage_records.record_usage(make_usage_call(ada, at=now, model="nobody-knows", reported=None))
    usage_records.record_usage(make_usage_call(ada, at=now, model="it-told-us", reported="0.1"))
    usage_records.record_usage(make_usage_call(ada, at=now, model="priced-1", reported="0.1"))
    ModelPrice.objects.create(
        provider="acme", model="priced*", effective_from=now,
        input_per_million_microdollars=3_000_000, output_per_million_microdollars=15_000_000,
    )  # fmt: skip
    policies.clear_policy_cache()
    page = staff.get(reverse("admin:billing_modelprice_changelist")).content.decode()
    assert "$0.018000 (18,000)" in page
    assert [met.model for met in list_unpriced_models(now)] == ["it-told-us", "nobody-knows"]
    assert [met.model for met in list_models_of_unknown_cost(now)] == ["nobody-knows"]
    assert "acme nobody-knows" in page


def test_the_list_of_accounts_shows_use_against_limits(account):
    """B18.1: in dollars, with microdollars beside."""
    from django.utils import timezone

    usage_records.record_usage(make_usage_call(account.user, at=timezone.now(), reported="0.25"))
    page = person(factories.grace()).get(reverse(ACCOUNTS)).content.decode()
    assert "$0.250000 (250,000) / $1.000000 (1,000,000)" in page
    assert read_windows(account.user, "DAY")
