"""B9: credits only ever move by entries that add up, whatever happens at the same time."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Sum
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from billing import accounts, ledger
from billing.errors import BillingRequestRefused, IdempotencyConflict, InsufficientCredits, RefundTooLarge
from billing.models import Account, LedgerAllocation, LedgerEntry
from billing.selectors import credit_statements
from billing.tasks import expire_credits
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.turn_engine import together

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def key():
    return str(uuid.uuid4())


def kinds(user):
    rows = LedgerEntry.objects.filter(account__user=user).order_by("pk")
    return [(row.kind, row.amount_cents) for row in rows]


def standing(user):
    have = credit_statements.get_balance(user.pk)
    return have.balance_cents, have.debt_cents


def add_up(account):
    """B9.3"""
    entries = LedgerEntry.objects.filter(account=account)
    sums = entries.aggregate(amount=Sum("amount_cents", default=0), debt=Sum("debt_delta_cents", default=0))
    account.refresh_from_db()
    assert (sums["amount"], sums["debt"]) == (account.credit_balance_cents, account.debt_cents)
    last = entries.order_by("-pk").first()
    assert last is None or last.balance_after_cents == account.credit_balance_cents
    for lot in entries.filter(amount_cents__gt=0):
        assert (lot.uses.aggregate(cents=Sum("cents", default=0))["cents"]) <= lot.amount_cents
    for debit in entries.filter(amount_cents__lt=0):
        assert debit.allocations.aggregate(cents=Sum("cents", default=0))["cents"] == -debit.amount_cents


@pytest.mark.django_db
def test_the_soonest_to_expire_is_used_first():
    """B9.c3, B9.4: a 500 lot that ends tomorrow and a 500 top-up, 600 spent: nothing is left to expire."""
    ada = factories.ada()
    with time_machine.travel(NOON, tick=False) as clock:
        ledger.post_top_up(ada.pk, 500, key=key())
        ledger.grant_credits(ada.pk, 500, key=key(), expires_at=NOON + DAY)
        ledger.spend(ada.pk, 600, key=key())
        clock.shift(DAY)
        expire_credits()
    assert standing(ada) == (400, 0)
    assert "EXPIRY" not in dict(kinds(ada))


@pytest.mark.django_db
def test_what_is_not_used_in_time_expires_once():
    """B9.5: by the task, or by the next write."""
    ada = factories.ada()
    with time_machine.travel(NOON, tick=False) as clock:
        first = ledger.grant_credits(ada.pk, 300, key=key(), expires_at=NOON + DAY)
        ledger.grant_credits(ada.pk, 200, key=key(), expires_at=NOON + 2 * DAY)
        ledger.spend(ada.pk, 100, key=key())
        clock.shift(DAY)
        expire_credits()
        expire_credits()
        clock.shift(DAY)
        ledger.grant_credits(ada.pk, 50, key=key())
    assert kinds(ada) == [
        ("GRANT", 300), ("GRANT", 200), ("SPEND", -100), ("EXPIRY", -200), ("EXPIRY", -200), ("GRANT", 50)
    ]  # fmt: skip
    assert LedgerEntry.objects.filter(idempotency_key=f"expiry:{first.pk}").count() == 1
    add_up(ada.billing_account)


@pytest.mark.django_db
def test_a_payment_taken_back_after_it_was_spent_is_owed():
    """B9.c4: 700 of 1,000 spent, then refunded: 700 owed; the next 1,000 pay it first."""
    ada = factories.ada()
    ledger.post_top_up(ada.pk, 1_000, key="topup:1")
    ledger.spend(ada.pk, 700, key=key())
    ledger.reverse_payment(ada.pk, 1_000, key="refund:re_1")
    assert standing(ada) == (0, 700)
    ledger.grant_credits(ada.pk, 10, key=key())
    assert standing(ada) == (10, 700)  # gifts pay no debt
    ledger.spend(ada.pk, 10, key=key())
    ledger.post_top_up(ada.pk, 1_000, key="topup:2")
    assert standing(ada) == (300, 0)
    assert LedgerEntry.objects.get(idempotency_key="topup:2:debt").amount_cents == -700
    add_up(ada.billing_account)


@pytest.mark.django_db
def test_a_reversal_undone_leaves_everything_as_before():
    """B9.7: debt first, then credit."""
    ada = factories.ada()
    ledger.post_top_up(ada.pk, 1_000, key=key())
    ledger.spend(ada.pk, 400, key=key())
    ledger.reverse_payment(ada.pk, 1_000, key=key())
    assert standing(ada) == (0, 400)
    ledger.reinstate_payment(ada.pk, 1_000, key=key())
    assert standing(ada) == (600, 0)
    add_up(ada.billing_account)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("ends", "expected"),
    [((DAY, 2 * DAY), timedelta(days=30)), ((60 * DAY, 2 * DAY), 60 * DAY), ((DAY, None), None)],
)
def test_a_refund_lives_as_long_as_what_it_gives_back(ends, expected):
    """B9.6: the latest end, at least 30 days, none if any lot had none; and never more than was spent."""
    ada = factories.ada()
    with time_machine.travel(NOON, tick=False):
        for end in ends:
            ledger.grant_credits(ada.pk, 100, key=key(), expires_at=end and NOON + end)
        spent = ledger.spend(ada.pk, 200, key=key())
        given = ledger.refund_spend(spent, 150, key="r")
        assert given.expires_at == (expected and NOON + expected)
        assert ledger.refund_spend(spent, 150, key="r") == given
        with pytest.raises(RefundTooLarge):
            ledger.refund_spend(spent, 51, key=key())
        ledger.refund_spend(spent, 50, key=key())
    assert standing(ada) == (200, 0)
    add_up(ada.billing_account)


@pytest.mark.django_db
def test_a_key_means_one_thing():
    """B9.1: the same again is the first entry; anything else is a conflict that writes nothing."""
    ada, bob = factories.ada(), factories.bob()
    first = ledger.grant_credits(ada.pk, 100, key="k", reason="welcome")
    assert ledger.grant_credits(ada.pk, 100, key="k", reason="welcome") == first
    for clash in (
        lambda: ledger.grant_credits(ada.pk, 101, key="k", reason="welcome"),
        lambda: ledger.grant_credits(ada.pk, 100, key="k", reason="other"),
        lambda: ledger.grant_credits(bob.pk, 100, key="k", reason="welcome"),
        lambda: ledger.spend(ada.pk, 100, key="k", reason="welcome"),
    ):
        with pytest.raises(IdempotencyConflict):
            clash()
    assert LedgerEntry.objects.count() == 1


@rounds(1, 50)
@pytest.mark.timeout(600)
@pytest.mark.django_db(transaction=True)
def test_parallel_spends_never_take_more_than_there_is(rounds):
    """B9.c2, B20.7: of 20 spends of 30 from 100, three succeed."""
    for _ in range(rounds):
        user = factories.user(f"spender-{key()}")
        ledger.grant_credits(user.pk, 100, key=key())
        answers = together(*[lambda pk=user.pk: ledger.spend(pk, 30, key=key())] * 20)
        assert len([one for one in answers if isinstance(one, LedgerEntry)]) == 3
        assert len([one for one in answers if isinstance(one, InsufficientCredits)]) == 17
        assert standing(user) == (10, 0)
        add_up(user.billing_account)


@rounds(10, 50)
@pytest.mark.django_db(transaction=True)
def test_a_lot_is_spent_or_expires_never_both(rounds):
    """B20.7: expiry against spend, both at the lot's last moment."""
    ada = factories.ada()
    for number in range(rounds):
        ledger.grant_credits(ada.pk, 10, key=f"grant-{number}", expires_at=datetime.now(UTC) - DAY)
        _, spent = together(expire_credits, lambda number=number: ledger.spend(ada.pk, 10, key=f"s-{number}"))
        assert isinstance(spent, InsufficientCredits)
        add_up(ada.billing_account)
        assert standing(ada) == (0, 0)


class Credits(RuleBasedStateMachine):
    """Two accounts, every operation, keys that repeat and clash, and time that passes."""

    keys = st.sampled_from([f"key-{number}" for number in range(25)])
    cents = st.integers(1, 300)
    who = st.integers(0, 1)

    def __init__(self):
        super().__init__()
        self.clock = time_machine.travel(NOON, tick=False)
        self.now = self.clock.start()
        self.users = [User.objects.create(username=key()) for _ in range(2)]
        self.prefix = key()
        self.accounts = [accounts.get_or_create_account(user.pk) for user in self.users]

    def teardown(self):
        self.clock.stop()

    def attempt(self, act, **fields):
        """What is refused changes nothing."""
        before = self._everything()
        try:
            with transaction.atomic():
                act(**fields)
        except (BillingRequestRefused, IdempotencyConflict):
            assert self._everything() == before

    def _everything(self):
        balances = Account.objects.filter(pk__in=[one.pk for one in self.accounts]).order_by("pk")
        return (
            list(balances.values_list("credit_balance_cents", "debt_cents")),
            LedgerEntry.objects.count(),
            LedgerAllocation.objects.count(),
        )

    @rule(who=who, cents=cents, name=keys, days=st.sampled_from([None, 1, 10]))
    def grant(self, who, cents, name, days):
        ends = days and datetime.now(UTC) + days * DAY
        self.attempt(
            ledger.grant_credits,
            user_id=self.users[who].pk,
            cents=cents,
            key=self.prefix + name,
            expires_at=ends,
        )

    @rule(
        who=who,
        cents=cents,
        name=keys,
        act=st.sampled_from(["post_top_up", "spend", "reverse_payment", "reinstate_payment"]),
    )
    def move(self, who, cents, name, act):
        self.attempt(getattr(ledger, act), user_id=self.users[who].pk, cents=cents, key=self.prefix + name)

    @rule(who=who, cents=cents, name=keys)
    def refund(self, who, cents, name):
        spent = LedgerEntry.objects.filter(account=self.accounts[who], kind="SPEND").last()
        if spent is not None:
            self.attempt(ledger.refund_spend, spent=spent, cents=cents, key=self.prefix + name)

    @rule(hours=st.sampled_from([1, 25, 300]))
    def wait(self, hours):
        self.now.shift(timedelta(hours=hours))

    @rule()
    def expire(self):
        ledger.expire_due_credits()

    @invariant()
    def everything_adds_up(self):
        for account in self.accounts:
            add_up(account)


@rounds(6, 60)
@pytest.mark.django_db
def test_any_sequence_of_operations_adds_up(rounds):
    """B9.c1, B9.3: invariants hold after every step, and a rejected operation changes nothing."""
    run_state_machine_as_test(
        Credits,
        settings=settings(
            max_examples=rounds,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
