"""What no page of ours sends: keys and amounts made by hand are refused or ignored, never an error of ours (B17, B18)."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from billing import accounts
from billing.models import Account, LedgerEntry
from tests.stripe_fake import Fake
from tests.support import factories
from tests.support.rest_clients import person

pytestmark = pytest.mark.django_db


def test_a_key_that_cannot_be_kept_is_no_error_of_ours(stripe: Fake) -> None:
    """B17.1, B17.2: the page's own keys are plain; anything else is a form made by hand."""
    ada = person(factories.ada())
    for key in ("\x00", "a\x00b", "é" * 200):
        assert ada.post("/billing/usage/reset", {"key": key}).status_code == 302
        assert ada.post("/billing/top-up", {"amount": "10", "key": key}).status_code == 200


def act(client: Client, action: str, **fields: object) -> str:
    account = accounts.get_or_create_account(factories.ada().pk)
    form = {"action": action, "_selected_action": account.pk, "apply": "yes", "reason": "tried", **fields}
    answer = client.post(reverse("admin:billing_account_changelist"), form, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def test_staff_see_an_error_for_an_amount_that_no_row_can_hold(client: Client) -> None:
    """B18.1: a limit of more digits than a number has."""
    client.force_login(factories.grace())
    said = act(client, "set_overrides", daily_limit_microdollars=10**20)
    assert "less than or equal to" in said
    assert Account.objects.get().daily_limit_override_microdollars is None


def test_staff_see_an_error_for_a_form_that_granted_something_else_before(client: Client) -> None:
    """B18.1, B9.1: sent again with another amount, it grants nothing more, and says so."""
    client.force_login(factories.grace())
    key = str(uuid4())
    act(client, "grant_credits", cents=500, key=key)
    said = act(client, "grant_credits", cents=700, key=key)
    assert "was used for something else" in said
    assert list(LedgerEntry.objects.values_list("amount_cents", flat=True)) == [500]
