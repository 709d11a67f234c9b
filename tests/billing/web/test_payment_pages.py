"""What people and staff see of payments: the part of the plan page that sells credit, and staff's view of Stripe."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client, override_settings

from billing import accounts
from billing.models import Account, LedgerEntry, StripeEvent, TopUp
from billing.stripe import api_client, event_handlers, webhook_events
from billing.top_ups import auto_top_ups, purchases
from billing.web.forms import AmountField
from tests.stripe_fake import Fake
from tests.support import factories
from tests.support.html_forms import check_error
from tests.support.rest_clients import person
from tests.support.stripe_webhooks import settle

pytestmark = pytest.mark.django_db
PLAN = "/billing/plan"


def bought(stripe: Fake) -> TopUp:
    purchase = purchases.TopUpPurchase(amount_cents=1_000, success_url="https://x", cancel_url="https://x")
    top_up = purchases.start_top_up(factories.ada().pk, purchase, key=None)
    stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    top_up.refresh_from_db()
    return top_up


@pytest.mark.parametrize(
    ("text", "cents"),
    [
        ("12.50", 1250),
        ("12,5", 1250),
        ("7", 700),
        (" 5 ", 500),
        ("", 0),
    ],
)
def test_amounts_as_people_write_them(text: str, cents: int) -> None:
    """B1.2: no float on the way."""
    assert AmountField(required=False).clean(text) == cents


@pytest.mark.parametrize(
    "text", ["0.001", "-5", "NaN", "Infinity", "1e3", "1e99999", "1e999999", "0000000000010.50", "x"]
)
def test_what_is_no_amount_is_refused_at_its_field(stripe: Fake, text: str) -> None:
    """B1.2: what is too long is refused, not cut."""
    page = person(factories.ada()).post("/billing/top-up", {"amount": "10", "other": text})
    assert page.status_code == 400
    check_error(page, "other", "Enter an amount such as 12.50.", kept=text)
    assert not TopUp.objects.exists()


def test_the_plan_page_sells_credit(stripe: Fake) -> None:
    """B17.2: amounts, automatic top-ups, and what became of a purchase; two clicks are one."""
    client = person(factories.ada())
    page = client.get(PLAN).content.decode()
    assert "Buy credits" in page
    assert "I agree that my saved card is charged" in page
    sent = [client.post("/billing/top-up", {"amount": "10", "key": "one"}) for _ in range(2)]
    top_up = TopUp.objects.get()
    assert [top_up.checkout_url in answer.content.decode() for answer in sent] == [True, True]
    back = f"{PLAN}?top_up={top_up.pk}"
    assert "waiting for the payment to be confirmed" in client.get(back).content.decode()
    assert "waiting for" not in person(factories.bob()).get(back).content.decode()
    stripe.pay(top_up.checkout_session_id)
    settle(stripe)
    assert "added to your credits" in client.get(back).content.decode()
    refused = client.post("/billing/top-up", {"amount": "20", "other": "1", "save_card": "on"})
    assert refused.status_code == 400
    check_error(refused, "other", "Choose an amount between 5.00 USD and 500.00 USD.", kept="1")
    assert 'value="20" id="id_amount_2" checked' in refused.content.decode()
    assert TopUp.objects.count() == 1


def test_automatic_top_ups_are_switched_on_the_page(stripe: Fake) -> None:
    """B17.2: with consent and a card; switched off again by one button."""
    client = person(factories.ada())
    account = accounts.get_or_create_account(factories.ada().pk)
    stripe.save_card(accounts.ensure_stripe_customer(account, api_client.start_task_deadline()))
    wanted = {"enabled": "yes", "threshold": "5", "amount": "20"}
    refused = client.post("/billing/auto-top-up", wanted)
    assert refused.status_code == 400
    check_error(refused, "consent", "Agree to automatic charges to turn this on.")
    assert '<details class="automatic" open>' in refused.content.decode()
    for name, value, message in (
        ("threshold", "0", "Enter an amount such as 12.50."),
        ("threshold", "501", "This is more than the largest possible top-up."),
        ("amount", "1", "Choose an amount between"),
    ):
        refused = client.post("/billing/auto-top-up", wanted | {"consent": "on", name: value})
        assert refused.status_code == 400
        check_error(refused, name, message, kept=value)
    assert auto_top_ups.get_auto_top_up(factories.ada().pk).enabled is False
    on = client.post("/billing/auto-top-up", wanted | {"consent": "on"}, follow=True).content.decode()
    assert "We buy $20.00 in credits whenever your balance drops below $5.00." in on
    client.post("/billing/auto-top-up", {"threshold": "5", "amount": "20"})
    assert auto_top_ups.get_auto_top_up(factories.ada().pk).enabled is False


def test_where_only_plans_have_no_price_the_page_says_that_and_sells_credit(stripe: Fake) -> None:
    """B17.4: payments that work are not said to be missing."""
    page = person(factories.ada()).get(PLAN).content.decode()
    assert "Plans aren't for sale here yet." in page
    assert "Payments aren" not in page
    assert "Buy credits" in page


def test_without_payments_the_page_sells_nothing() -> None:
    """B17.4: no dead buttons; a purchase asked for all the same is refused in words."""
    with override_settings(STRIPE_SECRET_KEY=""):
        client = person(factories.ada())
        assert "Buy credits" not in client.get(PLAN).content.decode()
        refused = client.post("/billing/top-up", {"amount": "10"}, follow=True).content.decode()
    assert "Payments aren&#x27;t set up here." in refused


def admin(*permissions: str) -> Client:
    staff = factories.user("staff")
    staff.is_staff = True
    staff.save()
    staff.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return person(staff)


def act(client: Client, model: str, name: str, pk: object) -> int:
    data = {"action": name, "_selected_action": [str(pk)], "apply": "yes", "reason": "Asked for by mail"}
    return client.post(f"/admin/billing/{model}/", data).status_code


def test_staff_replay_events_and_see_what_failed(stripe: Fake) -> None:
    """B18.c1, B18.5: events are looked at and applied again with the right to it, and by nobody else; who did it and why is kept."""
    bought(stripe)
    row = StripeEvent.objects.get(type="checkout.session.completed")
    looker = admin("view_stripeevent")
    assert row.event_id in looker.get(f"/admin/billing/stripeevent/{row.pk}/change/").content.decode()
    act(looker, "stripeevent", "replay", row.pk)
    row.refresh_from_db()
    assert row.state == StripeEvent.State.DONE
    StripeEvent.objects.filter(pk=row.pk).update(state=StripeEvent.State.FAILED)
    assert "1 event of Stripe could not be applied" in looker.get("/admin/").content.decode()
    staff = admin("view_stripeevent", "change_stripeevent")
    unsaid = {"action": "replay", "_selected_action": [str(row.pk)], "apply": "yes", "reason": ""}
    assert "required" in staff.post("/admin/billing/stripeevent/", unsaid).content.decode()
    act(staff, "stripeevent", "replay", row.pk)
    row.refresh_from_db()
    assert row.state == StripeEvent.State.RECEIVED
    assert LogEntry.objects.get().change_message == "Applied again. Asked for by mail"
    event_handlers.apply_stripe_event(row.pk)
    assert LedgerEntry.objects.count() == 1
    post = admin("change_stripeevent").post(f"/admin/billing/stripeevent/{row.pk}/change/", {"state": "DONE"})
    assert post.status_code == 403


def test_staff_refund_a_top_up_at_stripe(stripe: Fake) -> None:
    """B10.7: the refund is made at Stripe, once; the ledger follows through the webhook."""
    top_up = bought(stripe)
    act(admin("view_topup"), "topup", "refund", top_up.pk)
    assert stripe.all("refund") == []
    staff = admin("view_topup", "change_topup")
    act(staff, "topup", "refund", top_up.pk)
    act(staff, "topup", "refund", top_up.pk)
    assert [one["amount"] for one in stripe.all("refund")] == [1_000]
    assert LogEntry.objects.get().change_message == "Refund requested. Asked for by mail"
    assert Account.objects.get(user=factories.ada()).credit_balance_cents == 1_000
    settle(stripe)
    assert Account.objects.get(user=factories.ada()).credit_balance_cents == 0
    assert webhook_events.list_overdue_event_ids() == []
