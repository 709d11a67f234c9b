"""B16: billing over REST: every response has its documented shape and shows nothing private."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from billing import accounts, ledger, notices, policies, redis_counters
from billing.errors import LimitReached
from billing.models import Account, LedgerEntry, LimitPolicy, UsageWindow
from billing.selectors import credit_statements
from config.core.api.errors import render_refusal
from copilot.api.base import to_refusal
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.redis_outages import make_connection_pool
from tests.support.rest_clients import JSON, V1, code_of, person, program
from tests.support.usage import NOON, record_past_usage

pytestmark = pytest.mark.django_db
API = f"{V1}/billing"
PATHS = [
    ("get", "usage"), ("post", "usage/reset"), ("get", "plans"), ("get", "credits"),
    ("get", "credits/statement"), ("get", "credits/statement.csv"), ("get", "notices"),
    ("get", "subscription"), ("post", "subscription"), ("post", "subscription/preview"), ("post", "portal"),
    ("post", "top-ups"), ("get", "top-ups/6b1f0f0e-0000-4000-8000-000000000000"), ("get", "auto-top-up"),
    ("put", "auto-top-up"), ("post", "notices/1/dismiss"), ("get", "admin/limits?user=1"), ("post", "admin/limits/reset"),
]  # fmt: skip
RAW = ("1234567", "1,234,567", "1.234567")


@pytest.fixture(autouse=True)
def _at_noon():
    policies.clear_policy_cache()
    with time_machine.travel(NOON, tick=False):
        yield
    policies.clear_policy_cache()


@pytest.fixture
def ada():
    """Has used 1,234,567 of her day, and has credit."""
    user = factories.ada()
    ledger.grant_credits(user.pk, 1_000, key="grant:1", reason="welcome", expires_at=NOON + timedelta(days=5))
    record_past_usage(user, 1_234_567)
    return user


def post(client, path, body=None, **headers):
    return client.post(f"{API}/{path}", body or {}, content_type=JSON, headers=headers)


def usage_now(percent=100.0, left=5):
    return {
        "daily": {"percent_used": percent, "resets_at": "2026-11-19T00:00:00Z"},
        "weekly": {"percent_used": 24.7 if percent else 4.7, "resets_at": "2026-11-23T00:00:00Z"},
        "tier": "FREE",
        "reset_cost_cents": 500,
        "resets_left_today": left,
    }


def test_usage_plans_and_credits_have_their_shapes(ada):
    """B16.c1, B16.2, B16.c3: exactly these keys, never cached."""
    client = person(ada)
    used = client.get(f"{API}/usage")
    assert (used.status_code, used["Cache-Control"], used.json()) == (200, "no-store", usage_now())
    assert client.get(f"{API}/plans").json()[:2] == [
        {"tier": "FREE", "name": "Free", "monthly_cost_cents": 0, "trial_days": 0, "selectable": True, "blurb": ""},
        {"tier": "PRO", "name": "Pro", "monthly_cost_cents": 0, "trial_days": 0, "selectable": True, "blurb": ""},
    ]  # fmt: skip
    assert client.get(f"{API}/credits").json() == {
        "balance_cents": 1_000,
        "debt_cents": 0,
        "currency": "usd",
        "expiring": [{"amount_cents": 1_000, "expires_at": "2026-11-23T12:00:00Z"}],
    }


def test_a_reset_has_its_shape(ada):
    """B16.c1: Reset, and the same again for the same key."""
    client = person(ada)
    bought = {
        "success": True,
        "credits_charged_cents": 500,
        "balance_cents": 500,
        "usage": usage_now(percent=0.0, left=4),
    }
    for _ in range(2):
        answered = post(client, "usage/reset", **{"Idempotency-Key": "k-1"})
        assert (answered.status_code, answered.json()) == (200, bought)


def test_every_refusal_of_a_reset_has_its_status_and_code(ada, monkeypatch):
    """B16.c1: 400, 402, 409, 429, 503 by code."""
    client = person(ada)

    def refused():
        policies.clear_policy_cache()
        answered = post(client, "usage/reset")
        return answered.status_code, code_of(answered)

    LimitPolicy.objects.update(reset_cost_cents=0)
    assert refused() == (400, "reset_not_available")
    LimitPolicy.objects.update(reset_cost_cents=5_000)
    assert refused() == (402, "insufficient_credits")
    LimitPolicy.objects.update(max_paid_resets_per_day=0)
    assert refused() == (429, "too_many_resets")
    UsageWindow.objects.filter(kind="WEEK").update(used_microdollars=9_000_000)
    assert refused() == (409, "weekly_limit_reached")
    UsageWindow.objects.filter(kind="DAY").update(used_microdollars=1)
    assert refused() == (400, "not_over_limit")
    token = redis_counters.acquire_reset_lock(ada.pk)
    assert refused() == (409, "reset_in_progress")
    redis_counters.release_reset_lock(ada.pk, token)
    Account.objects.update(daily_limit_override_microdollars=0)
    assert refused() == (400, "no_daily_limit")
    Account.objects.update(daily_limit_override_microdollars=None)
    monkeypatch.setattr(
        redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
    )
    answered = post(client, "usage/reset")
    assert (answered.status_code, answered.json()["error"]) == (
        503,
        {
            "code": "reset_unavailable",
            "message": "The reset failed. Nothing was charged.",
            "refunded": False,
        },
    )


def test_the_statement_has_its_shape_and_pages(ada):
    """B16.c1, B9.9: newest first, an opaque cursor, filters."""
    client = person(ada)
    ledger.spend(ada.pk, 40, key="tool:1", reason="search", reference="call")
    first = client.get(f"{API}/credits/statement", {"limit": 1}).json()
    spent = LedgerEntry.objects.get(kind="SPEND")
    assert first["results"] == [
        {
            "id": spent.pk,
            "kind": "SPEND",
            "amount_cents": -40,
            "balance_after_cents": 960,
            "reason": "search",
            "reference": "call",
            "created_at": f"{spent.created_at.isoformat().removesuffix('+00:00')}Z",
            "expires_at": None,
        }
    ]
    second = client.get(f"{API}/credits/statement", {"limit": 1, "cursor": first["next"]}).json()
    assert ([one["kind"] for one in second["results"]], second["next"]) == (["GRANT"], None)
    assert [
        one["kind"] for one in client.get(f"{API}/credits/statement", {"kind": "GRANT"}).json()["results"]
    ] == ["GRANT"]
    tomorrow = (datetime.now(UTC) + timedelta(days=3650)).date().isoformat()
    assert client.get(f"{API}/credits/statement", {"since": tomorrow}).json()["results"] == []


@pytest.mark.parametrize(
    "query",
    [{"limit": 201}, {"limit": 0}, {"kind": "GIFT"}, {"since": "soon"}, {"cursor": "x"}, {"colour": "red"}],
)
def test_what_is_asked_wrongly_is_named(ada, query):
    """B16.3: 400 with the field; unknown keys too."""
    answered = person(ada).get(f"{API}/credits/statement", query)
    assert (answered.status_code, code_of(answered)) == (400, "invalid_request")
    assert list(answered.json()["error"]["errors"]) == list(query)


def test_bodies_know_no_unknown_keys(ada):
    """B16.3"""
    answered = post(person(ada), "usage/reset", {"free": True})
    assert (answered.status_code, list(answered.json()["error"]["errors"])) == (400, ["free"])
    assert post(person(ada), "usage/reset", **{"Idempotency-Key": "a b"}).status_code == 400


def test_the_file_is_the_statement_and_runs_nothing(ada):
    """B9.9: the same order, and no cell that a spreadsheet would run."""
    for number, reason in enumerate(["=1+1", "+1", "-1", "@x", "\tx", "\rx", 'plain, "quoted"']):
        ledger.grant_credits(ada.pk, 1, key=f"g{number}", reason=reason)
    answered = person(ada).get(f"{API}/credits/statement.csv")
    text = b"".join(answered.streaming_content).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert text.splitlines()[0] == "date_utc,kind,reason,reference,amount_cents,balance_after_cents,entry_id"
    page = person(ada).get(f"{API}/credits/statement").json()["results"]
    assert [int(row["entry_id"]) for row in rows] == [one["id"] for one in page]
    assert all(row["reason"].startswith("'") for row in rows[1:7])
    assert rows[0]["reason"] == 'plain, "quoted"'


@rounds(2_000, 10_000)
def test_a_long_statement_is_quick_and_streams(ada, django_assert_max_num_queries, rounds):
    """B9.c6: 10,000 entries; the page takes few statements, the file the page's order."""
    account = accounts.get_or_create_account(ada.pk)
    LedgerEntry.objects.bulk_create(
        (
            LedgerEntry(
                account=account, kind="GRANT", amount_cents=1, balance_after_cents=1, idempotency_key=f"b{n}"
            )
            for n in range(rounds)
        ),
        batch_size=5_000,
    )
    with CaptureQueriesContext(connection) as statements:
        page = credit_statements.get_statement(ada.pk)
    assert len(statements) == 2
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE billing_ledgerentry")
        cursor.execute("EXPLAIN (ANALYZE, TIMING OFF) " + statements[1]["sql"])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert max(int(rows) for rows in re.findall(r"actual rows=(\d+)", plan)) < 100, plan
    with django_assert_max_num_queries(14):
        ids = [
            entry.id
            for chunk in credit_statements.iterate_statement(ada.pk, credit_statements.StatementFilters())
            for entry in chunk
        ]
    assert len(ids) == rounds + 1
    assert ids[:50] == [one.id for one in page.results]
    assert ids == sorted(ids, reverse=True)


def test_notices_are_shown_until_dismissed(ada):
    """B16.1: once per dedupe key; somebody else's is no notice."""
    data = {"window": "daily", "queued": 2}
    assert notices.post_notice(ada.pk, "limit_reached", dedupe_key="limit:daily:1", data=data)
    assert not notices.post_notice(
        ada.pk, "limit_reached", dedupe_key="limit:daily:1", data=data | {"queued": 3}
    )
    client = person(ada)
    [shown] = client.get(f"{API}/notices").json()["results"]
    assert (shown["kind"], shown["data"], set(shown)) == (
        "limit_reached",
        data | {"queued": 3},
        {"id", "kind", "data", "created_at"},
    )
    assert post(person(factories.bob()), f"notices/{shown['id']}/dismiss").status_code == 404
    for _ in range(2):
        assert post(client, f"notices/{shown['id']}/dismiss").status_code == 204
    assert client.get(f"{API}/notices").json() == {"results": []}


def test_staff_see_amounts_and_reset(ada):
    """B16.c3, B8.c7: raw figures, by id or e-mail; an unknown one is 404."""
    staff = person(factories.grace())
    limits = {
        "user": ada.pk,
        "email": "ada@example.com",
        "tier": "FREE",
        "granted_tier": None,
        "daily_limit_microdollars": 1_000_000,
        "daily_used_microdollars": 1_234_567,
        "weekly_limit_microdollars": 5_000_000,
        "weekly_used_microdollars": 1_234_567,
        "daily_override_microdollars": None,
        "weekly_override_microdollars": None,
    }
    assert staff.get(f"{API}/admin/limits", {"email": "Ada@example.com"}).json() == limits
    assert staff.get(f"{API}/admin/limits", {"user": ada.pk}).json() == limits
    assert code_of(staff.get(f"{API}/admin/limits", {"email": "nobody@example.com"})) == "unknown_user"
    assert staff.get(f"{API}/admin/limits").status_code == 400
    body = {"user": ada.pk, "weekly": True, "reason": "an outage"}
    after = limits | {"daily_used_microdollars": 0, "weekly_used_microdollars": 0}
    assert post(staff, "admin/limits/reset", body).json() == after
    assert post(staff, "admin/limits/reset", {"user": 2**30, "reason": "x"}).status_code == 404
    assert post(staff, "admin/limits/reset", {"user": ada.pk}).status_code == 400


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_requests_without_credentials_are_refused(method, path):
    """B16.c2: 401 without a login; 403 on staff's paths, and for keys without the scope."""
    assert getattr(Client(), method)(f"{API}/{path}").status_code == 401
    if path.startswith("admin/"):
        assert getattr(person(factories.bob()), method)(f"{API}/{path}").status_code == 403
        assert getattr(program(factories.grace(), "read"), method)(f"{API}/{path}").status_code == 403
    if method == "post":
        refusal = "session_required" if path.startswith("admin/") else "insufficient_scope"
        assert code_of(program(factories.grace(), "read", "chat").post(f"{API}/{path}")) == refusal


def test_a_limit_refusal_has_one_form():
    """B16.4, B16.c1: as the endpoints answer it."""
    limit = LimitReached(
        window="daily", resets_at=NOON + timedelta(seconds=1.5), reset_cost_cents=500, can_reset=True
    )
    answered = render_refusal(to_refusal(limit))
    assert (answered.status_code, answered["Retry-After"]) == (429, "2")
    assert msgspec.json.decode(answered.content)["error"] == {
        "code": "limit_reached",
        "message": "You've reached your daily limit. It resets on Wednesday, 18 November 2026, 12:00 UTC.",
        "retry_after_seconds": 2,
        "window": "daily",
        "resets_at": "2026-11-18T12:00:01Z",
        "reason": "used",
        "reset_cost_cents": 500,
        "can_reset": True,
    }


def _keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


@pytest.mark.parametrize("path", [path for method, path in PATHS if method == "get" and "admin" not in path])
def test_nobody_but_staff_sees_amounts(ada, path):
    """B8.c2, B1.5: no raw key, no raw amount, in any public answer."""
    answered = person(ada).get(f"{API}/{path}")
    text = (b"".join(answered.streaming_content) if answered.streaming else answered.content).decode()
    assert not [raw for raw in RAW if raw in text]
    if answered["Content-Type"] == JSON:
        names = set(_keys(answered.json()))
        assert not [name for name in names if "microdollars" in name]
        assert not names & {"used", "limit", "spent", "cap", "multiplier"}


@pytest.mark.parametrize("page", ["usage", "plan", "history"])
def test_pages_show_no_amounts_and_cost_the_same_for_much(ada, page, monkeypatch):
    """B8.c2, P12: percentages and times; as many statements for many entries as for one."""
    monkeypatch.setattr(policies, "CACHE_SECONDS", 600.0)
    client = person(ada)
    client.get(f"/billing/{page}")
    policies.get_rules()
    with CaptureQueriesContext(connection) as few:
        shown = client.get(f"/billing/{page}").content.decode()
    assert not [raw for raw in RAW if raw in shown]
    assert not re.search("microdollars|multiplier", shown)
    for number in range(20):
        ledger.grant_credits(ada.pk, 1, key=f"g{number}")
        record_past_usage(ada, 10)
    policies.get_rules()
    with CaptureQueriesContext(connection) as many:
        assert client.get(f"/billing/{page}").status_code == 200
    assert len(many) == len(few)


def test_the_usage_page_sells_a_reset_when_there_is_one(ada):
    """B17.1: the button, its price and what stays; without credit the reason."""
    client = person(ada)
    page = client.get("/billing/usage").content.decode()
    assert "Limit reached" in page
    assert ">25% used<" in page
    assert "This uses $5.00 in credits. You'll have $5.00 left." in page
    key = re.search(r'name="key" value="([^"]+)"', page).group(1)
    for _ in range(2):  # pressed twice
        assert client.post("/billing/usage/reset", {"key": key}).status_code == 302
    assert LedgerEntry.objects.filter(kind="SPEND").count() == 1
    assert ">0% used<" in client.get("/billing/usage").content.decode()
    record_past_usage(ada, 1_000_000)
    ledger.spend(ada.pk, 400, key="s")
    page = client.get("/billing/usage").content.decode()
    assert "You don&#x27;t have enough credits" in page
    assert "Reset for" not in page


def test_without_payments_plans_are_shown_and_nothing_is_sold(ada):
    """B17.4, B1.6: no dead buttons; balance and statement are there."""
    client = person(ada)
    page = client.get("/billing/plan").content.decode()
    assert "Payments aren't set up here" in page
    assert "<button" not in page.split("<main")[1].split("</main>")[0]
    assert "$10.00" in page
    assert "welcome" in client.get("/billing/history").content.decode()


@pytest.mark.parametrize("path", ["usage", "plan", "history"])
def test_pages_need_a_login(path):
    """B17: they are somebody's."""
    assert Client().get(f"/billing/{path}").status_code == 302
