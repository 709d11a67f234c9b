"""Every list of the staff's pages costs the same for many rows as for one, can be searched, and shows no secret (D13)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from typing import get_args

import pytest
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialApp, SocialToken
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection, models
from django.db.models.fields import NOT_PROVIDED
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from billing import accounts, policies, pricing
from config.core.admin import ReadOnlyAdmin
from copilot.admin.conversations import COST_SOURCES
from copilot.models import Message, ModelCall, Session, Share, Turn
from linking.links import tokens
from linking.models import (
    CapReservation,
    Delivery,
    IdempotencyKey,
    LinkToken,
    OutboundMessage,
    PlatformConversation,
    PlatformUpdate,
)
from tests.support import factories, link_factories

pytestmark = pytest.mark.django_db
OURS = ("copilot", "billing", "linking", "diagnostics")
LED_BY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s::regclass AND i.indpred IS NULL AND i.indisvalid
"""  # the first columns of indexes of all rows
FIXED = {"LimitPolicy", "TierPolicy"}  # rows that are always there
SECRET = "the-secret-of-a-row"
HIDDEN = ("secret", "token", "hash", "storage_key", "replay", "sealed")
LEADS = (
    "account",
    "actor",
    "turn",
    "owner",
    "credential",
    "agent",
)  # looked at by lists, and not always there
GIVEN: dict[str, object] = {  # what the database's own rules ask for
    "UsageRecord.cost_source": "UNKNOWN",
    "UsageReset.kind": "STAFF",
    "Button.answer": "approve",
    "DeliveryEndpoint.url": "https://example.com/",
    "DeliveryEndpoint.disabled_reason": "",
}
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policies, "CACHE_SECONDS", 600)
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


@pytest.fixture
def staff(client: Client) -> Client:
    grace = factories.grace()
    grace.is_superuser = True
    grace.save()
    client.force_login(grace)
    return client


def shown() -> list[type[models.Model]]:
    admin.autodiscover()
    return [model for model in apps.get_models() if model in admin.site._registry and is_ours(model)]


def is_ours(model: type[models.Model]) -> bool:
    return model._meta.app_label in OURS or model is User


# --- a row of anything -------------------------------------------------------------------------------


def value(field: models.Field, number: int) -> object:
    """Something that the column takes, and that no other row has."""
    named = f"{field.model.__name__}.{field.name}"
    if named in GIVEN:
        return GIVEN[named]
    if field.is_relation:
        return row(field.related_model)
    if field.choices:
        return field.choices[0][0]
    if isinstance(field, models.UUIDField):
        return uuid.uuid4()
    if isinstance(field, models.DateTimeField):
        return timezone.now()
    if isinstance(field, models.DateField):
        return timezone.now().date()
    if isinstance(field, models.BooleanField):
        return False
    if isinstance(field, models.JSONField):
        return {}
    if isinstance(field, models.CharField | models.TextField):
        text = (
            f"{SECRET}-{number}"
            if any(word in field.name for word in HIDDEN)
            else f"{field.name[:6]}-{number}"
        )
        return text[: field.max_length or 100]
    return number


def row(model: type[models.Model]) -> models.Model:
    number = next(_numbers)
    if (made := MADE.get(model.__name__)) is not None:
        return made()
    needed = [
        field
        for field in model._meta.concrete_fields
        if (field.null and field.name in LEADS) or (field.default is NOT_PROVIDED and field.db_default is NOT_PROVIDED and not field.null
        and not (field.primary_key and isinstance(field, models.AutoField)) and not getattr(field, "auto_now_add", False))
    ]  # fmt: skip
    return model._default_manager.create(**{field.name: value(field, number) for field in needed})


def person() -> User:
    return User.objects.create(username=f"owner-{next(_numbers)}", email=f"o{next(_numbers)}@example.com")


def turn() -> Turn:
    made = factories.turn(factories.session(person()))
    Turn.objects.filter(pk=made.pk).update(worker="worker-1")
    return made


def share(session: Session) -> Share:
    return Share.objects.create(
        owner=session.owner, kind="conversation", session=session, token=uuid.uuid4(), through_sequence=1
    )


def link_token() -> LinkToken:
    made = link_factories.server_token(f"server-{next(_numbers)}")
    return LinkToken.objects.get(digest=tokens.hash_token(made.token))


def platform_conversation() -> PlatformConversation:
    number = next(_numbers)
    return link_factories.conversation(
        link_factories.server_link(person(), server_id=f"server-{number}"), container=f"channel-{number}"
    )


MADE: dict[str, Callable[[], models.Model]] = {
    "User": person,
    "Session": lambda: factories.session(person()),
    "Turn": turn,
    "Message": lambda: factories.message(
        Session.objects.order_by("?").first() or factories.session(person())
    ),
    "Share": lambda: share(factories.session(person())),
    "LinkToken": link_token,
    "PlatformConversation": platform_conversation,
    "Account": lambda: accounts.get_or_create_account(person().pk),
}


# --- what holds of all of them -----------------------------------------------------------------------


def address(model: type[models.Model], page: str, *arguments: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=arguments)


def statements(client: Client, model: type[models.Model], *opened: object) -> int:
    """Of a list, or of one row's page."""
    with CaptureQueriesContext(connection) as made:
        answer = client.get(address(model, "change" if opened else "changelist", *opened))
    assert answer.status_code == 200, model
    assert SECRET not in answer.content.decode(), model
    return len(made)


@pytest.mark.timeout(600)  # some fifty pages, twice
@pytest.mark.parametrize("times", [3, pytest.param(49, marks=pytest.mark.slow)])
def test_every_list_costs_the_same_for_many_rows_as_for_one(staff: Client, times: int):
    """D13, P12: no list asks once more for every row, and none shows a secret"""
    lists = [model for model in shown() if model.__name__ not in FIXED]
    for model in lists:
        row(model)
    for model in lists:
        staff.get(address(model, "changelist"))  # content types and policies are read once
    for_one = {model.__name__: statements(staff, model) for model in lists}
    for model in lists * times:
        row(model)
    for_many = {model.__name__: statements(staff, model) for model in lists}
    assert for_many == for_one


def test_every_row_opens_every_list_can_be_searched_and_no_page_shows_a_secret(staff: Client):
    """D13"""
    for model in shown():
        one = model._default_manager.first() or row(model)
        opened = staff.get(address(model, "change", one.pk), follow=True)
        assert opened.status_code == 200, model
        assert SECRET not in opened.content.decode(), model
        for text in ("owner-1", str(uuid.uuid4()), "a b'c%"):
            assert staff.get(address(model, "changelist"), {"q": text}).status_code == 200, model


def test_a_page_costs_the_same_however_much_belongs_to_its_row(staff: Client):
    """D13, P12: a user with many sessions, a session with many turns, a turn with many rows"""
    turn = factories.turn(factories.session(person()))
    pages = [(User, turn.session.owner_id), (Session, turn.session_id), (Turn, turn.pk)]
    for _ in range(2):  # content types and policies are read once
        before = {model: statements(staff, model, key) for model, key in pages}
    for _ in range(10):
        another = factories.session(turn.session.owner)
        factories.turn(another, "succeeded")
        factories.message(turn.session, turn=turn)
    assert {model: statements(staff, model, key) for model, key in pages} == before


def test_a_large_table_is_neither_counted_nor_searched_for_its_values(
    staff: Client, monkeypatch: pytest.MonkeyPatch
):
    """D13: the lists of what grows count as far as anybody leafs, and filter by closed sets"""
    monkeypatch.setattr("config.core.admin.CappedPaginator.max_count", 2)
    owned = factories.session(factories.ada())
    for code in ("worker_lost", "worker_lost", "unknown"):
        factories.turn(owned, "failed", failure_code=code)
    growing = (
        PlatformConversation,
        PlatformUpdate,
        IdempotencyKey,
        OutboundMessage,
        CapReservation,
        Delivery,
    )
    for model in (Turn, ModelCall, Message, *growing):
        with CaptureQueriesContext(connection) as made:
            page = staff.get(address(model, "changelist"))
        texts = [query["sql"] for query in made.captured_queries if model._meta.db_table in query["sql"]]
        assert not [text for text in texts if "DISTINCT" in text], model
        assert all("LIMIT" in text for text in texts if "COUNT(" in text), model
    assert staff.get(address(Turn, "changelist")).context["cl"].result_count == 2
    few = staff.get(address(Turn, "changelist"), {"failure_code": "unknown"})
    assert [turn.failure_code for turn in few.context["cl"].result_list] == ["unknown"]
    odd = staff.get(address(Turn, "changelist"), {"failure_code": "\x00"})
    assert odd.context["cl"].result_count == 2
    assert set(get_args(pricing.CostSource)) == set(COST_SOURCES)
    assert page.status_code == 200


@pytest.mark.parametrize("model", [OutboundMessage, CapReservation, Delivery])
def test_a_list_that_grows_is_ordered_and_found_by_its_indexes(model: type[models.Model]):
    """D13: a whole id, and the newest first"""
    page = admin.site.get_model_admin(model)
    assert isinstance(page, ReadOnlyAdmin)
    own = [field.removesuffix("__exact") for field in page.search_fields if field.count("__") == 1]
    ordering = [column.lstrip("-") for column in page.ordering]
    with connection.cursor() as cursor:
        cursor.execute(LED_BY, [model._meta.db_table])
        leading = {column for (column,) in cursor.fetchall()}
    assert {*page.found_by_id, *own, *ordering} - leading == set()


def test_no_page_shows_how_somebody_signs_in(staff: Client):
    """D13: neither the seed of a second factor nor a provider's key or token"""
    factor = Authenticator.objects.create(user=person(), type="totp", data={"secret": SECRET})
    page = staff.get(reverse("admin:mfa_authenticator_change", args=[factor.pk]))
    assert page.status_code == 200
    assert SECRET not in page.content.decode()
    assert not admin.site.is_registered(SocialApp)
    assert not admin.site.is_registered(SocialToken)
    assert staff.post(reverse("admin:mfa_authenticator_add"), {}).status_code == 403


def test_user_session_turn_use_and_money_lead_to_each_other(staff: Client):
    """D13"""
    turn = factories.turn(factories.session(person()))
    account = accounts.get_or_create_account(turn.session.owner_id)
    account.stripe_customer_id = "cus_of_ada"
    account.save()
    user = reverse("admin:auth_user_change", args=[turn.session.owner_id])
    session = reverse("admin:copilot_session_change", args=[turn.session_id])
    leads = {
        user: ["/admin/copilot/session/?q=", "/admin/billing/account/?q=", "/admin/billing/usagerecord/?q="],
        session: [user, f"/admin/copilot/turn/?q={turn.session_id}"],
        reverse("admin:copilot_turn_change", args=[turn.pk]): [user, session, f"modelcall/?q={turn.pk}"],
        reverse("admin:billing_account_change", args=[account.pk]): [user, "customers/cus_of_ada"],
    }
    staff.post(session, {"reason": "ticket 4711"})
    for page, expected in leads.items():
        text = staff.get(page).content.decode()
        assert [link for link in expected if link not in text] == [], page
