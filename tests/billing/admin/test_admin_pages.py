"""B18, A20.6: staff pages show much, change little, and cost the same for many rows as for one."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponseForbidden
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse

from billing import accounts, ledger, policies, pricing
from billing.models import (
    Account,
    AutoTopUp,
    LedgerAllocation,
    LedgerEntry,
    LimitPolicy,
    ModelPrice,
    MonthlyUsage,
    PlanChange,
    StripeEvent,
    TierPolicy,
    TopUp,
    UsageRecord,
    UsageReset,
    UsageWindow,
)
from billing.selectors import usage_status
from billing.usage import usage_records
from copilot.models import ApiKey, Message, ModelCall, Session, Turn, WorkerHeartbeat, WorkspaceFile
from tests.support import factories


def refuse(request, exception):
    return HttpResponseForbidden()


# Staff pages alone: what is proved here does not depend on the product's own pages.
admin.autodiscover()
urlpatterns = [path("admin/", admin.site.urls)]
handler403 = refuse
pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
SECRETS = ("hash-of-the-key", "storage-key-", "opaque-replay", "5ec2e700-0000-4000-8000-000000000000")
VIEWED = [Session, Turn, Message, ModelCall, WorkspaceFile, ApiKey, WorkerHeartbeat, UsageRecord, UsageWindow]
INLINES = ["subscription", "usage_resets", "plan_changes"]
ALL = [*VIEWED, Account, LimitPolicy, TierPolicy, ModelPrice]


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone(monkeypatch):
    monkeypatch.setattr(policies, "CACHE_SECONDS", 600)
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


@pytest.fixture
def staff(client):
    client.force_login(factories.grace())
    return client


def fill(number):
    """One row of everything, of an owner of its own."""
    owner = User.objects.create(username=f"owner-{number}")
    session = factories.session(owner)
    turn = factories.turn(session)
    Turn.objects.filter(pk=turn.pk).update(token=SECRETS[3])
    Message.objects.create(
        session=session,
        turn=turn,
        kind="assistant",
        sequence=1,
        content="private words",
        replay=["opaque-replay"],
    )
    call = ModelCall.objects.create(turn=turn, number=1, provider="acme", model="glow-1")
    WorkspaceFile.objects.create(
        owner=owner, session=session, name="secret-plans.txt", mime="text/plain", size_bytes=1, sha256="0" * 64,
        storage_key=f"storage-key-{number}", source="upload",
    )  # fmt: skip
    ApiKey.objects.create(user=owner, prefix=f"prefix{number:04d}", secret_hash="hash-of-the-key")
    WorkerHeartbeat.objects.create(
        worker=f"worker-{number}", lock_key=number, host="host", pid=1, version="1", turns=[]
    )
    usage_records.record_usage(
        usage_records.UsageCall(
            call_id=call.pk, user_id=owner.pk, occurred_at=NOON, provider="acme", model="glow-1",
            tokens=pricing.TokenCounts(input=5), reported="0.001",
        )
    )  # fmt: skip


def address(model, page, *arguments):
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=arguments)


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_p12_a_list_takes_as_many_statements_for_many_rows_as_for_one(model, staff):
    fill(1)
    staff.get(address(model, "changelist"))
    with CaptureQueriesContext(connection) as for_one:
        staff.get(address(model, "changelist"))
    for number in range(2, 5):
        fill(number)
    with CaptureQueriesContext(connection) as for_many:
        answer = staff.get(address(model, "changelist"))
    assert answer.status_code == 200
    assert len(for_many) == len(for_one)


@pytest.mark.parametrize("model", ALL, ids=lambda model: model.__name__)
def test_a20_6_lists_and_rows_open_and_show_no_secret(model, staff):
    fill(1)
    row = model.objects.first()
    listed = staff.get(address(model, "changelist")).content.decode()
    page = address(model, "change", row.pk)
    if model in (Message, Session):  # which ask for a reason first
        assert "private words" not in staff.get(page).content.decode()
        staff.post(page, {"reason": "ticket 4711"})
    opened = staff.get(page)
    assert opened.status_code == 200
    assert not [secret for secret in SECRETS if secret in listed + opened.content.decode()]
    assert "private words" not in listed
    assert ("private words" in opened.content.decode()) == (model is Message)


@pytest.mark.parametrize("model", [model for model in ALL if model not in (LimitPolicy, TierPolicy)])
def test_lists_can_be_searched_by_any_text(model, staff):
    fill(1)
    for text in ("owner-1", str(uuid.uuid4()), "a b'c%", "7"):
        assert staff.get(address(model, "changelist"), {"q": text}).status_code == 200


def test_what_came_from_stripe_and_went_through_the_ledger_is_found(staff):
    """B18.1, B18.5: by user, by id and by type, whatever is typed"""
    fill(1)
    account = Account.objects.get(user__username="owner-1")
    Account.objects.filter(pk=account.pk).update(stripe_customer_id="cus_7")
    granted = ledger.grant_credits(account.user_id, 100, key="grant:7")
    bought = TopUp.objects.create(account=account, amount_cents=500, payment_intent_id="pi_7")
    for number, kind in enumerate(["invoice.paid", "customer.deleted", "tax.rate.created"]):
        StripeEvent.objects.create(event_id=f"evt_{number}", type=kind, livemode=False, created=NOON)
    for model, query, found in [
        (Account, {"q": "cus_7"}, 1),
        (Account, {"q": str(account.user_id)}, 1),
        (Account, {"q": "wner-"}, 1),
        (LedgerEntry, {"q": "OWNER-1"}, 1),
        (LedgerEntry, {"q": granted.idempotency_key}, 1),
        (LedgerEntry, {"q": "a b'c%"}, 0),
        (LedgerAllocation, {"q": "7"}, 0),
        (TopUp, {"q": "pi_7"}, 1),
        (TopUp, {"q": str(bought.pk)}, 1),
        (TopUp, {"q": "a b'c%"}, 0),
        (AutoTopUp, {"q": "owner-1"}, 0),
        (UsageReset, {"q": "owner-1"}, 0),
        (PlanChange, {"q": "nobody"}, 0),
        (MonthlyUsage, {"q": "nobody"}, 0),
        (StripeEvent, {"q": "evt_1"}, 1),
        (StripeEvent, {"type": "customer.deleted"}, 1),
        (StripeEvent, {"type": "other"}, 1),
        (StripeEvent, {}, 3),
        (UsageRecord, {"cost_source": "REPORTED"}, 1),
    ]:
        answer = staff.get(address(model, "changelist"), query)
        assert (answer.status_code, answer.context["cl"].result_count) == (200, found), (model, query)


def test_a_row_is_found_by_its_whole_id_and_by_its_user(staff):
    fill(1)
    fill(2)
    row = Message.objects.get(session__owner__username="owner-1")
    for model, text in [
        (Message, row.pk),
        (Message, row.session_id),
        (Turn, row.turn_id),
        (ModelCall, row.turn_id),
        (UsageRecord, ModelCall.objects.get(turn=row.turn_id).pk),
        (UsageRecord, "owner-1"),
        (Session, "OWNER-1"),
    ]:
        answer = staff.get(address(model, "changelist"), {"q": str(text)})
        assert answer.context["cl"].result_count == 1, (model, text)


@pytest.mark.parametrize("model", VIEWED, ids=lambda model: model.__name__)
def test_b18_4_not_even_a_superuser_adds_changes_or_deletes_what_code_writes(model, staff):
    fill(1)
    row = model.objects.first()
    assert staff.post(address(model, "add"), {}).status_code == 403
    assert staff.post(address(model, "change", row.pk), {}).status_code == 403
    assert staff.post(address(model, "delete", row.pk), {"post": "yes"}).status_code == 403


def test_b6_3_a_policy_saved_by_staff_acts_at_once(staff, django_capture_on_commit_callbacks):
    """B18.c1: and not without a reason, which its history keeps."""
    ada = factories.ada()
    policy = LimitPolicy.objects.get()
    assert usage_status.get_usage(ada.pk).daily is not None
    form = {
        field.name: getattr(policy, field.name)
        for field in LimitPolicy._meta.fields
        if field.editable and getattr(policy, field.name) is not False
    }
    form["daily_base_microdollars"] = 0
    assert staff.post(address(LimitPolicy, "change", 1), form).status_code == 200  # the form again
    with django_capture_on_commit_callbacks(execute=True):
        answer = staff.post(address(LimitPolicy, "change", 1), form | {"reason": "A holiday"})
    assert answer.status_code == 302
    assert usage_status.get_usage(ada.pk).daily is None
    assert LogEntry.objects.get().change_message == "Changed daily_base_microdollars. A holiday"


def test_b18_1_staff_set_and_clear_overrides_and_nothing_else(staff):
    account = accounts.get_or_create_account(factories.ada().pk)
    form = {
        "daily_limit_override_microdollars": "10",
        "weekly_limit_override_microdollars": "",
        "tier": "PRO",
        "reason": "asked for it",
        **{f"{name}-{count}_FORMS": 0 for name in INLINES for count in ("TOTAL", "INITIAL")},
    }
    assert staff.post(address(Account, "change", account.pk), form).status_code == 302
    account.refresh_from_db()
    assert (account.daily_limit_override_microdollars, account.weekly_limit_override_microdollars) == (
        10,
        None,
    )
    assert account.tier == "FREE"
    staff.post(address(Account, "change", account.pk), form | {"daily_limit_override_microdollars": ""})
    account.refresh_from_db()
    assert account.daily_limit_override_microdollars is None


def test_b18_2_a_price_in_use_cannot_be_edited_but_superseded(staff):
    price = ModelPrice.objects.create(
        provider="acme", model="glow-1", effective_from=datetime(2026, 1, 1, tzinfo=UTC)
    )
    change = address(ModelPrice, "change", price.pk)
    assert b"Save" in staff.get(change).content
    policies.clear_policy_cache()
    usage_records.record_usage(
        usage_records.UsageCall(
            call_id=uuid.uuid4(), user_id=None, occurred_at=NOON, provider="acme", model="glow-1",
            tokens=pricing.TokenCounts(input=5),
        )
    )  # fmt: skip
    assert staff.post(change, {"provider": "acme"}).status_code == 403
    assert staff.get(address(ModelPrice, "add")).status_code == 200


def test_a20_6_staff_may_revoke_a_key(staff):
    fill(1)
    key = ApiKey.objects.get()
    form = {"action": "revoke", "_selected_action": [str(key.pk)]}
    assert staff.post(address(ApiKey, "changelist"), form).status_code == 302
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_b18_4_people_without_staff_status_see_no_staff_page(client):
    client.force_login(factories.bob())
    for model in ALL:
        assert client.get(address(model, "changelist")).status_code == 302


@pytest.mark.parametrize("term", ["{user.email}", "{user.pk}"])
def test_a_user_without_usage_is_found_and_can_be_granted_credits(staff, term):
    """B18.1, B2.5: by e-mail or user id, whole; others are no nearer to an account"""
    user, other = factories.user("never-here"), factories.user("nor-here")
    found = staff.get("/admin/billing/account/", {"q": term.format(user=user)})
    assert found.status_code == 200
    assert list(Account.objects.filter(user__in=[user, other]).values_list("user", flat=True)) == [user.pk]
    assert [row.user_id for row in found.context["cl"].result_list] == [user.pk]
