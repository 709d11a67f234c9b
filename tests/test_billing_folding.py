"""B3.2, B9.5: what is done about old records and about credit that ends soon; and that a million records slow nobody."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import time_machine
from django.db import connection
from django.utils import timezone

from billing import accounts, expiring, ledger, mails, notices, queries, tasks, usage
from billing.models import MonthlyUsage, UsageRecord
from tests import make
from tests.engine import together
from tests.rest import person
from tests.test_billing_usage import NOON, call

OLD = NOON - timedelta(days=401)


@pytest.mark.django_db
def test_old_records_become_sums_of_their_month():
    """B3.2: after 400 days, per account, month and model; a second night adds to them, and nothing is lost."""
    ada = make.ada()
    with time_machine.travel(NOON, tick=False):
        for at, model in ((OLD, "glow-1"), (OLD, "glow-1"), (OLD, "glow-2"), (NOON, "glow-1")):
            usage.record(call(ada, at=at, model=model, reported="0.5"))
        usage.record(call(None, at=OLD, model="glow-1", reported="0.25"))
        tasks.fold_usage()
        assert UsageRecord.objects.count() == 1
        usage.record(call(ada, at=OLD + timedelta(hours=1), model="glow-1", reported="0.5"))
        assert usage.fold_old() == 1
        assert usage.fold_old() == 0
        month = OLD.date().replace(day=1)
        sums = MonthlyUsage.objects.order_by("model", "cost_microdollars")
        assert list(sums.values_list("account__user", "month", "model", "calls", "cost_microdollars")) == [
            (None, month, "glow-1", 1, 250_000),
            (ada.pk, month, "glow-1", 3, 1_500_000),
            (ada.pk, month, "glow-2", 1, 500_000),
        ]
        assert list(usage.broken()) == []  # windows whose records went are judged no more


@pytest.mark.django_db(transaction=True)
def test_two_nights_at_once_fold_each_record_once():
    """B3.2: whoever else folds at the same moment."""
    ada = make.ada()
    for _ in range(40):
        usage.record(call(ada, at=OLD, reported="0.1"))
    with time_machine.travel(NOON, tick=False):
        assert sum(together(usage.fold_old, usage.fold_old)) == 40
    assert MonthlyUsage.objects.get().calls == 40


@pytest.mark.django_db
def test_credit_that_ends_within_a_week_is_told_once(mailoutbox):
    """B9.5: seven days ahead, by notice and by mail, with what is left of it; spent and everlasting credit is not mentioned."""
    ada = make.ada()
    ledger.grant(ada.pk, 300, key="a", expires_at=timezone.now() + timedelta(days=6))
    ledger.grant(ada.pk, 500, key="b", expires_at=timezone.now() + timedelta(days=30))
    ledger.grant(ada.pk, 900, key="c")
    ledger.spend(ada.pk, 100, key="s")
    assert [expiring.tell_ahead() for _ in range(2)] == [1, 0]
    [told] = notices.open_ones(ada.pk)
    assert (told.kind, told.data["amount_cents"]) == ("credits_expire", 200)
    assert [mails.send(told.id) for _ in range(2)] == [True, False]
    [mail] = mailoutbox
    assert "2.00 USD of your credits end on" in mail.body
    tasks.expire_credits()
    assert len(notices.open_ones(ada.pk)) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.django_db
def test_a_million_records_slow_no_page():
    """B19.6: with 1,000,000 records no query of the usage page reads the table, and no list of staff reads it to its end."""
    ada, now = make.ada(), datetime.now(UTC)
    usage.record(call(ada, at=now, reported="0.5"))
    account = accounts.get_or_create(ada.pk).pk
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO billing_usagerecord (call_id, account_id, occurred_at, provider, model, purpose, session_ref,
                turn_ref, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens,
                cache_write_1h_tokens, cost_microdollars, cost_source, estimated, aborted)
            SELECT gen_random_uuid(), %s, now() - number * interval '30 seconds', 'acme', 'glow-1', 'turn', '', '',
                   1, 1, 0, 0, 0, 10, 'REPORTED', false, false
            FROM generate_series(1, 1000000) AS number
            """,
            [account],
        )
        cursor.execute("ANALYZE billing_usagerecord")
        plans = [_plan(cursor, text, given) for text, given in _queries_of_usage(ada)]
        assert plans
        for plan in plans:
            assert "billing_usagerecord" not in json.dumps(plan), plan
        _lists_find_their_page_by_an_index(cursor)


PAGES = (
    "/billing/usage",
    "/admin/billing/usagerecord/",
    "/admin/billing/usagewindow/",
    "/admin/billing/account/",
)


def _lists_find_their_page_by_an_index(cursor):
    """No statement of theirs reads the table from end to end; how long they took is printed (-s) for whoever measures."""
    staff = person(make.grace())
    for page in PAGES:
        staff.get(page)  # what a process learns once
        seen: list[tuple[str, object]] = []
        began = time.perf_counter()
        with connection.execute_wrapper(partial(_note, seen)):
            assert staff.get(page).status_code == 200
        took = (time.perf_counter() - began) * 1000
        records = [(text, given) for text, given in seen if "billing_usagerecord" in text]
        for plan in (_plan(cursor, text, given) for text, given in records):
            assert not _scans(plan[0]["Plan"]), plan
            print(_outline(plan[0]["Plan"]))
        print(f"{page}: {took:.1f} ms, {len(seen)} statements")


def _scans(node, bounded=False):
    """Whether the records are read one after the other, and not only the first few of them, anywhere below."""
    here = node["Node Type"] == "Seq Scan" and node["Relation Name"] == "billing_usagerecord"
    stops = node["Node Type"] == "Limit"
    return (here and not bounded) or any(_scans(child, stops) for child in node.get("Plans", []))


def _outline(node):
    inner = [_outline(child) for child in node.get("Plans", [])]
    name = node.get("Index Name") or node.get("Relation Name") or ""
    return f"{node['Node Type']} {name} ({', '.join(inner)})" if inner else f"{node['Node Type']} {name}"


def _note(seen, execute, sql, params, many, context):
    if sql.startswith("SELECT"):
        seen.append((sql, params))
    return execute(sql, params, many, context)


def _queries_of_usage(user):
    seen = []

    def note(execute, sql, params, many, context):
        seen.append((sql, params))
        return execute(sql, params, many, context)

    queries.forget_policy()
    with connection.execute_wrapper(note):
        queries.usage(user.pk)
    return seen


def _plan(cursor, text, given):
    cursor.execute(f"EXPLAIN (FORMAT JSON) {text}", given)
    return cursor.fetchone()[0]
