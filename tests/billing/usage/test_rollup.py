"""B3.2, B9.5: what is done about old records and about credit that ends soon."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from billing import emails, ledger, notices, tasks
from billing.models import MonthlyUsage, UsageRecord
from billing.usage import usage_records, windows
from tests.support import factories
from tests.support.turn_engine import together
from tests.support.usage import NOON, make_usage_call

OLD = NOON - timedelta(days=401)


@pytest.mark.django_db
def test_old_records_become_sums_of_their_month():
    """B3.2: after 400 days, per account, month and model; a second night adds to them, and nothing is lost."""
    ada = factories.ada()
    with time_machine.travel(NOON, tick=False):
        for at, model in ((OLD, "glow-1"), (OLD, "glow-1"), (OLD, "glow-2"), (NOON, "glow-1")):
            usage_records.record_usage(make_usage_call(ada, at=at, model=model, reported="0.5"))
        usage_records.record_usage(make_usage_call(None, at=OLD, model="glow-1", reported="0.25"))
        tasks.fold_usage()
        assert UsageRecord.objects.count() == 1
        usage_records.record_usage(
            make_usage_call(ada, at=OLD + timedelta(hours=1), model="glow-1", reported="0.5")
        )
        assert usage_records.roll_up_old_records() == 1
        assert usage_records.roll_up_old_records() == 0
        month = OLD.date().replace(day=1)
        sums = MonthlyUsage.objects.order_by("model", "cost_microdollars")
        assert list(sums.values_list("account__user", "month", "model", "calls", "cost_microdollars")) == [
            (None, month, "glow-1", 1, 250_000),
            (ada.pk, month, "glow-1", 3, 1_500_000),
            (ada.pk, month, "glow-2", 1, 500_000),
        ]
        assert list(windows.find_window_mismatches()) == []  # windows whose records went are judged no more


@pytest.mark.django_db(transaction=True)
def test_two_nights_at_once_fold_each_record_once():
    """B3.2: also when another process rolls up at the same moment."""
    ada = factories.ada()
    for _ in range(40):
        usage_records.record_usage(make_usage_call(ada, at=OLD, reported="0.1"))
    with time_machine.travel(NOON, tick=False):
        assert sum(together(usage_records.roll_up_old_records, usage_records.roll_up_old_records)) == 40
    assert MonthlyUsage.objects.get().calls == 40


@pytest.mark.django_db
def test_credit_that_expires_within_a_week_is_announced_once(mailoutbox):
    """B9.5: seven days ahead, by notice and by mail, with what is left of it; spent and everlasting credit is not mentioned."""
    ada = factories.ada()
    ledger.grant_credits(ada.pk, 300, key="a", expires_at=timezone.now() + timedelta(days=6))
    ledger.grant_credits(ada.pk, 500, key="b", expires_at=timezone.now() + timedelta(days=30))
    ledger.grant_credits(ada.pk, 900, key="c")
    ledger.spend(ada.pk, 100, key="s")
    assert [notices.post_credit_expiry_notices() for _ in range(2)] == [1, 0]
    [told] = notices.list_open_notices(ada.pk)
    assert (told.kind, told.data["amount_cents"]) == ("credits_expire", 200)
    assert [emails.send_notice_email(told.id) for _ in range(2)] == [True, False]
    [mail] = mailoutbox
    assert "2.00 USD of your credits expire on" in mail.body
    tasks.expire_credits()
    assert len(notices.list_open_notices(ada.pk)) == 1
