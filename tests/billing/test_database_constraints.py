"""B1, B3: what the database itself refuses, and how money is written down."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import uuid
from datetime import UTC, datetime
from typing import get_type_hints

import pytest
from django.apps import apps
from django.db import DatabaseError, IntegrityError, connection, models, transaction

import billing
from billing.models import (
    Account,
    AutoTopUp,
    BillingNotice,
    LedgerAllocation,
    LedgerEntry,
    PlanChange,
    StripeEvent,
    TopUp,
    UsageReset,
)
from tests.support import factories

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
UNITS = ("_cents", "_microdollars")
MONEY = (
    "cost",
    "price",
    "amount",
    "balance",
    "debt",
    "limit",
    "used",
    "spent",
    "forgiven",
    "cents",
    "dollars",
)
WHOLE = ("<class 'int'>", "int | None", "typing.Optional[int]", "dict[str, int]")
NO_MONEY = {"StatementPageQuery.limit"}  # how many rows


@pytest.fixture
def account(db):
    return Account.objects.create(user=factories.ada())


def entry(account, kind="GRANT", amount_cents=100, **fields):
    plain = {"balance_after_cents": max(amount_cents, 0), "idempotency_key": str(uuid.uuid4())}
    return LedgerEntry.objects.create(account=account, kind=kind, amount_cents=amount_cents, **plain | fields)


def refused(make_row):
    with pytest.raises(DatabaseError), transaction.atomic():
        make_row()
    return True


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_ledgerentry SET reason = 'other'",
        "DELETE FROM billing_ledgerentry",
        "UPDATE billing_ledgerallocation SET cents = 1",
        "DELETE FROM billing_ledgerallocation",
    ],
)
def test_ledger_rows_are_neither_updated_nor_deleted(account, statement):
    """B3.c1, B3.1: by no statement."""
    lot, debit = entry(account), entry(account, "SPEND", -40, balance_after_cents=60)
    LedgerAllocation.objects.create(entry=debit, lot=lot, cents=40)
    with pytest.raises(DatabaseError, match="only ever grows"), transaction.atomic():
        connection.cursor().execute(statement)


def test_a_balance_never_falls_below_zero(account):
    """B3.c2: whatever SQL says."""
    Account.objects.update(credit_balance_cents=100)
    with pytest.raises(IntegrityError, match="a_balance_is_never_negative"), transaction.atomic():
        Account.objects.update(credit_balance_cents=models.F("credit_balance_cents") - 101)


@pytest.mark.parametrize(
    ("kind", "amount_cents", "fields"),
    [
        ("GRANT", -1, {}),
        ("TOP_UP", 0, {}),
        ("SPEND", 1, {}),
        ("EXPIRY", 1, {}),
        ("REFUND", -1, {}),
        ("REVERSAL", 1, {}),
        ("REVERSAL", 0, {}),
        ("REINSTATEMENT", -1, {}),
        ("REINSTATEMENT", 1, {"debt_delta_cents": 1}),
        ("GRANT", 1, {"debt_delta_cents": 1}),
        ("TOP_UP", 1, {"expires_at": NOON}),
        ("GRANT", 1, {"balance_after_cents": -1}),
        ("GIFT", 1, {}),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(account, kind, amount_cents, fields):
    """B3: the sign matches the kind, something moves, and no balance is negative."""
    assert refused(lambda: entry(account, kind, amount_cents, **fields))


def test_what_may_be_there_once_is_there_once(account):
    """B3: keys and what is open."""
    held = entry(account, idempotency_key="grant:1")
    assert refused(lambda: entry(account, idempotency_key="grant:1"))
    day = {"day": NOON, "week": NOON, "daily_forgiven_microdollars": 1, "weekly_forgiven_microdollars": 1}
    paid = {"kind": "PAID", "ledger_entry": held, "idempotency_key": "k", **day}
    UsageReset.objects.create(account=account, **paid)
    assert refused(lambda: UsageReset.objects.create(account=account, **paid))
    assert refused(lambda: UsageReset.objects.create(account=account, kind="PAID", **day))
    TopUp.objects.create(account=account, kind="AUTO", amount_cents=1)
    assert refused(lambda: TopUp.objects.create(account=account, kind="AUTO", amount_cents=1, state="OPEN"))
    assert refused(lambda: TopUp.objects.create(account=account, amount_cents=0))
    change = {"kind": "CHECKOUT", "from_tier": "FREE", "to_tier": "PRO"}
    PlanChange.objects.create(account=account, **change)
    assert refused(lambda: PlanChange.objects.create(account=account, **change))
    BillingNotice.objects.create(account=account, kind="limit", dedupe_key="d")
    assert refused(lambda: BillingNotice.objects.create(account=account, kind="limit", dedupe_key="d"))
    event = {"event_id": "evt_1", "type": "invoice.paid", "livemode": False, "created": NOON}
    StripeEvent.objects.create(**event)
    assert refused(lambda: StripeEvent.objects.create(**event))
    assert refused(lambda: StripeEvent.objects.create(**event | {"event_id": "evt_2", "state": "PROCESSING"}))
    assert refused(lambda: AutoTopUp.objects.create(account=account, enabled=True))
    assert refused(lambda: LedgerAllocation.objects.create(entry=held, lot=held, cents=0))


def test_money_is_whole_and_names_its_unit():
    """B1.c1: every money field is an integer that ends in its unit; the only float is `percent_used`."""
    for model in apps.get_app_config("billing").get_models():
        for field in model._meta.get_fields():
            assert not isinstance(field, models.FloatField | models.DecimalField), field
            if field.name.endswith(UNITS):
                assert isinstance(field, models.BigIntegerField), field
    walked = list(_fields_of_values())
    assert len(walked) > 300  # none of them was overlooked
    for place, name, annotation in walked:
        assert "float" not in annotation or name == "percent_used", place
        if name.endswith(UNITS):
            assert annotation in WHOLE, place
        if any(word in name for word in MONEY) and "int" in annotation and place not in NO_MONEY:
            assert name.endswith((*UNITS, "_id", "cents", "microdollars")) or "resets" in name, place


def _fields_of_values():
    """Of every dataclass and every body of REST in billing, wherever it stands."""
    for info in pkgutil.walk_packages(billing.__path__, "billing."):
        if ".migrations" in info.name or ".management" in info.name:
            continue
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__ and _has_fields(value):
                for name, annotation in get_type_hints(value).items():
                    yield f"{value.__name__}.{name}", name, str(annotation)


def _has_fields(value):
    return (
        dataclasses.is_dataclass(value)
        or hasattr(value, "__struct_fields__")
        or hasattr(value, "model_fields")
    )
