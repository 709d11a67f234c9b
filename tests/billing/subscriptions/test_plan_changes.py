"""B11 against the fake Stripe: from every state, every wish; what is asked of Stripe, and what is told to the user."""

from __future__ import annotations

import pytest

from billing import policies
from billing.models import LimitPolicy, PlanChange, TierPolicy
from billing.selectors import plan_status
from billing.subscriptions import account_tiers, current_plan, grace_period, stripe_sync
from tests.support.plan_shop import API, Shop, schedule_downgrade_to_pro, start_unpaid_upgrade
from tests.support.rest_clients import JSON, code_of, person

pytestmark = pytest.mark.django_db


def granted(shop: Shop, tier: str) -> None:
    account_tiers.grant_tier(shop.account.pk, tier, actor_id=None, reason="a friend")


def granted_over_pro(shop: Shop, tier: str) -> None:
    shop.subscribe("PRO")
    granted(shop, tier)


def pro_ending(shop: Shop) -> None:
    shop.subscribe("PRO")
    assert shop.ask("FREE").status_code == 200


def past_due(shop: Shop) -> None:
    shop.subscribe("PRO")
    shop.fail_renewal()


def lapsed(shop: Shop) -> None:
    past_due(shop)
    shop.pass_time(days=8)
    grace_period.lapse_overdue_subscriptions()
    assert shop.tier == "FREE"


def unpaid(shop: Shop) -> None:
    shop.fake.world.dunning_end = "unpaid"
    past_due(shop)
    shop.pass_time(days=16)
    shop.sync()


STATES = {
    "free": lambda shop: None,
    "free, once a customer": lambda shop: shop.customer(),
    "free, not told yet": lambda shop: shop.fake.subscribe(shop.customer(), shop.prices["PRO"]),
    "trial": lambda shop: shop.subscribe("PRO", trial_days=14),
    "pro": lambda shop: shop.subscribe("PRO"),
    "business": lambda shop: shop.subscribe("BUSINESS"),
    "business, pro to come": schedule_downgrade_to_pro,
    "pro, free to come": pro_ending,
    "pro, upgrade unpaid": start_unpaid_upgrade,
    "past due": past_due,
    "lapsed": lapsed,
    "unpaid": unpaid,
    "granted pro": lambda shop: granted(shop, "PRO"),
    "granted business over pro": lambda shop: granted_over_pro(shop, "BUSINESS"),
    "enterprise": lambda shop: granted_over_pro(shop, "ENTERPRISE"),
}
# The first `get` or `list` looks, the last `list` follows Stripe, and the last `get` tells the user what is to come.
# state → asked → (what is asked of Stripe, status code or action, tier afterwards, pending tier)
TABLE = {
    "free": {
        "FREE": ("", 200, "FREE", None),
        "PRO": ("customer checkout", "checkout", "FREE", None),
        "BUSINESS": ("customer checkout", "checkout", "FREE", None),
    },
    "free, once a customer": {
        "FREE": ("list", 200, "FREE", None),
        "PRO": ("list checkout", "checkout", "FREE", None),
        "BUSINESS": ("list checkout", "checkout", "FREE", None),
    },
    "free, not told yet": {
        "FREE": ("list list, cancel later, list get", 200, "PRO", "FREE"),
        "PRO": ("list list, list get", 200, "PRO", None),
        "BUSINESS": ("list list, price, list get", 200, "BUSINESS", None),
    },
    "trial": {
        "FREE": ("get, cancel later, list get", 200, "PRO", "FREE"),
        "PRO": ("get, list get", 200, "PRO", None),
        "BUSINESS": ("get, price, list get", 200, "BUSINESS", None),
    },
    "pro": {
        "FREE": ("get, cancel later, list get", 200, "PRO", "FREE"),
        "PRO": ("get, list get", 200, "PRO", None),
        "BUSINESS": ("get, price, list get", 200, "BUSINESS", None),
    },
    "business": {
        "FREE": ("get, cancel later, list get", 200, "BUSINESS", "FREE"),
        "PRO": ("get, schedule phases, list get", 200, "BUSINESS", "PRO"),
        "BUSINESS": ("get, list get", 200, "BUSINESS", None),
    },
    "business, pro to come": {
        "FREE": ("get, release, cancel later, list get", 200, "BUSINESS", "FREE"),
        "PRO": ("get, release, schedule phases, list get", 200, "BUSINESS", "PRO"),
        "BUSINESS": ("get, release, list get", 200, "BUSINESS", None),
    },
    "pro, free to come": {
        "FREE": ("get, list get", 200, "PRO", "FREE"),
        "PRO": ("get, uncancel, list get", 200, "PRO", None),
        "BUSINESS": ("get, uncancel, price, list get", 200, "BUSINESS", None),
    },
    "pro, upgrade unpaid": {
        "FREE": ("get, void, cancel later, list get", 200, "PRO", "FREE"),
        "PRO": ("get, void, list get", 200, "PRO", None),
        "BUSINESS": ("get, list get", "pay_invoice", "PRO", None),
    },
    "past due": {
        "FREE": ("get, cancel now, list", 200, "FREE", None),
        "PRO": ("get, list get", 200, "PRO", None),
        "BUSINESS": ("get, portal", 402, "PRO", None),
    },
    "lapsed": {
        "FREE": ("list list, cancel now, list", 200, "FREE", None),
        "PRO": ("list list, portal", 402, "FREE", None),
        "BUSINESS": ("list list, portal", 402, "FREE", None),
    },
    "unpaid": {
        "FREE": ("list list, cancel now, list", 200, "FREE", None),
        "PRO": ("list list, portal", 402, "FREE", None),
        "BUSINESS": ("list list, portal", 402, "FREE", None),
    },
    "granted pro": {
        "FREE": ("", 200, "FREE", None),
        "PRO": ("", 200, "PRO", None),
        "BUSINESS": ("customer checkout", "checkout", "PRO", None),
    },
    "granted business over pro": {
        "FREE": ("get, cancel later, list get", 200, "PRO", "FREE"),
        "PRO": ("get, list get", 200, "PRO", None),
        "BUSINESS": ("get, list get", 200, "PRO", None),
    },
    "enterprise": dict.fromkeys(("FREE", "PRO", "BUSINESS"), ("", 403, "ENTERPRISE", None)),
}
REFUSED = {402: "payment_overdue", 403: "managed_by_admin"}


@pytest.mark.parametrize("asked", ["FREE", "PRO", "BUSINESS"])
@pytest.mark.parametrize("state", STATES)
def test_every_wish_in_every_state_b11_c1(shop, state, asked):
    """B11.c1, B11.11: the calls made to Stripe, their order, the stored tier and the answer."""
    STATES[state](shop)
    calls, outcome, tier, pending = TABLE[state][asked]
    before = PlanChange.objects.count()
    answered, made = shop.calls(lambda: shop.ask(asked))
    assert " ".join(made) == calls.replace(",", "")
    assert shop.tier == tier
    if outcome in REFUSED:
        assert (answered.status_code, code_of(answered)) == (outcome, REFUSED[outcome])
        assert outcome != 402 or answered.json()["error"]["url"].startswith(shop.fake.address)
    else:
        said = answered.json()
        action = outcome if isinstance(outcome, str) else "none"
        assert (answered.status_code, said["action"], bool(said["url"])) == (200, action, action != "none")
        assert (said["tier"], said["pending_tier"], said["pending_unknown"]) == (tier, pending, False)
    assert PlanChange.objects.count() - before == (0 if outcome == 403 else 1)
    assert not any(call.status >= 400 for call in shop.fake.calls)
    shop.sync()
    assert shop.tier == tier  # what was answered is what Stripe says, too


def test_what_was_to_come_gives_way_b11_c2(shop):
    """B11.c2: keep releases, FREE releases and cancels, an upgrade takes a cancellation back."""
    schedule_downgrade_to_pro(shop)
    assert (shop.ask("BUSINESS").json()["pending_tier"], shop.live()[0]["schedule"]) == (None, None)
    shop.ask("PRO")
    said = shop.ask("FREE").json()
    assert (said["pending_tier"], shop.live()[0]["schedule"]) == ("FREE", None)
    assert shop.live()[0]["cancel_at_period_end"]
    shop.ask("BUSINESS")
    shop.ask("PRO")
    shop.pass_time(days=31)
    shop.sync()
    assert (shop.tier, shop.status()["pending_tier"]) == ("PRO", None)
    shop.ask("FREE")
    assert shop.ask("BUSINESS").json()["tier"] == "BUSINESS"
    assert not shop.live()[0]["cancel_at_period_end"]


def test_keeping_never_reads_the_switch_b11_c3(shop, monkeypatch):
    """B11.c3: payments off, the current tier asked for: 200, no page to pay on, the switch not read."""
    shop.subscribe("PRO")
    shop.ask("FREE")
    LimitPolicy.objects.update(payments_enabled=False)
    policies.clear_policy_cache()
    monkeypatch.setattr(current_plan, "get_tier_offer", None)  # reading it would fail
    answered, made = shop.calls(lambda: shop.ask("PRO"))
    assert (answered.status_code, answered.json()["pending_tier"]) == (200, None)
    assert (answered.json()["payments_enabled"], "checkout" in made) == (False, False)


def test_while_stripe_is_down_the_error_names_the_support_contact_b11_c3(shop):
    """B11.c3: 502 whose message mentions support; completed steps are in the log of attempts, a retry converges."""
    schedule_downgrade_to_pro(shop)
    shop.fake.faults.add("error", "GET", "/v1/subscriptions/", times=9)
    refused = shop.ask("BUSINESS")
    assert (refused.status_code, code_of(refused)) == (502, "stripe_unavailable")
    assert "support" in refused.json()["error"]["message"]
    shop.fake.faults.clear()
    shop.ask("FREE")  # released and cancelled
    shop.ask("PRO")
    shop.fake.faults.add("error", "POST", "/v1/subscriptions/", times=9)
    assert shop.ask("FREE").status_code == 502
    last = PlanChange.objects.order_by("-created_at").first()
    assert (last.state, last.error) == ("FAILED", "stripe_unavailable after release")
    shop.fake.faults.clear()
    assert shop.ask("FREE").json()["pending_tier"] == "FREE"


def test_payments_off_sells_nothing_and_keeps_nobody_b11_c3(shop, settings):
    """B11.4, B11.7, B19.1: what costs is refused, FREE is not; without keys nobody is shown FREE while Stripe charges."""
    LimitPolicy.objects.update(payments_enabled=False)
    policies.clear_policy_cache()
    assert code_of(shop.ask("PRO")) == "payments_off"
    shop.subscribe("PRO")
    assert shop.ask("FREE").json()["pending_tier"] == "FREE"
    settings.STRIPE_SECRET_KEY = ""
    refused, made = shop.calls(lambda: shop.ask("FREE"))
    assert (refused.status_code, code_of(refused), made) == (409, "payments_off", [])
    assert code_of(shop.ask("PRO")) == "payments_off"  # an end is to come that only Stripe takes back
    assert shop.status()["pending_unknown"] is True


def test_a_grant_never_buys_and_never_charges_b11_c5(shop):
    """B11.c5: granted PRO: FREE and PRO are the database's business, also with payments off; BUSINESS is bought."""
    granted(shop, "PRO")
    for on in (True, False):
        LimitPolicy.objects.update(payments_enabled=on)
        policies.clear_policy_cache()
        for tier in ("FREE", "PRO"):
            answered, made = shop.calls(lambda tier=tier: shop.ask(tier))
            assert (answered.status_code, answered.json()["tier"], made) == (200, tier, [])
            stripe_sync.reconcile_subscriptions()
            assert shop.tier == tier
    assert shop.status()["status"] == "granted"
    LimitPolicy.objects.update(payments_enabled=True)
    policies.clear_policy_cache()
    assert shop.ask("BUSINESS").json()["action"] == "checkout"
    shop.ask("FREE")
    shop.sync()
    assert shop.tier == "FREE"


DOWNGRADE = [
    ("GET", "/v1/subscriptions/"),
    ("POST", "/v1/subscription_schedules/"),  # the release, when one is attached; else the phases
    ("POST", "/v1/subscription_schedules"),
    ("GET", "/v1/subscriptions"),
]


@pytest.mark.parametrize("fault", ["error", "limit", "reset", "reset_after"])
@pytest.mark.parametrize("call", range(len(DOWNGRADE)))
def test_a_fault_anywhere_in_a_downgrade_leaves_nothing_half_made_b11_c6(shop, call, fault):
    """B11.c6: 502, no half-made schedule stays attached, and the same request again succeeds."""
    shop.subscribe("BUSINESS")
    times = 1 if fault == "limit" else 2  # of all but that, the SDK tries once more
    shop.fake.faults.add(fault, *DOWNGRADE[call], times=times)
    assert shop.ask("PRO").status_code == 502
    shop.fake.faults.clear()
    attached = shop.live()[0]["schedule"]
    phases = (
        shop.fake.world.get(attached, "subscription_schedule")["phases"] if attached else ["whole", "or none"]
    )
    assert len(phases) == 2
    said = shop.ask("PRO")
    assert (said.status_code, said.json()["pending_tier"]) == (200, "PRO")
    assert len([one for one in shop.fake.all("subscription_schedule") if one["status"] == "active"]) == 1


def test_an_upgrade_that_is_declined_b11_c7(shop):
    """B11.c7: tier and price stay, the invoice is to be paid; paid, the tier rises; left alone, nothing is pending."""
    start_unpaid_upgrade(shop)
    said = shop.status()
    assert (said["tier"], said["pending_tier"], said["action"]) == ("PRO", None, "none")
    assert shop.live()[0]["items"]["data"][0]["price"]["id"] == shop.prices["PRO"]
    attempt = PlanChange.objects.get(kind="UPGRADE")
    shop.fake.card("ok")
    assert shop.fake.pay_invoice(shop.live()[0]["latest_invoice"])
    shop.sync()
    attempt.refresh_from_db()
    assert (shop.tier, attempt.state) == ("BUSINESS", "DONE")


def test_an_upgrade_that_nobody_pays_lapses_b11_c7(shop):
    """B11.c7: after 23 hours nothing is pending; asking again meanwhile makes no second invoice."""
    start_unpaid_upgrade(shop)
    first = shop.fake.all("invoice")
    assert shop.ask("BUSINESS").json()["action"] == "pay_invoice"
    assert len(shop.fake.all("invoice")) == len(first)
    shop.pass_time(hours=24)
    shop.sync()
    assert plan_status.get_plan_state(shop.user.pk).unpaid_upgrade_url == ""
    assert [one.state for one in PlanChange.objects.filter(kind="UPGRADE")] == ["FAILED", "FAILED"]
    assert shop.tier == "PRO"


def test_keeping_voids_an_unpaid_upgrade(shop):
    """B11.8, B11.5: a pending downgrade is gone even if the upgrade stays unpaid; keep takes the rest back."""
    shop.subscribe("PRO")
    shop.ask("FREE")
    shop.fake.card("decline")
    assert shop.ask("BUSINESS").json()["pending_tier"] is None
    shop.ask("PRO")
    assert plan_status.get_plan_state(shop.user.pk).unpaid_upgrade_url == ""
    assert shop.fake.all("invoice")[0]["status"] == "void"


def test_every_write_has_a_key_of_its_attempt(shop):
    """B11.10: plan:<PlanChange id>:<step>, and a new attempt is a new key."""
    schedule_downgrade_to_pro(shop)
    shop.ask("FREE")
    writes = [one for one in shop.fake.calls if one.method == "POST" and "/v1/subscription" in one.path]
    ids = {str(pk) for pk in PlanChange.objects.values_list("pk", flat=True)}
    keys = [one.key.split(":") for one in writes]
    assert all(key[0] == "plan" and key[1] in ids for key in keys)
    assert [key[2] for key in keys] == ["schedule", "phases", "release", "cancel"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"tier": "ENTERPRISE"}, "tier"),
        ({"tier": "pro"}, "tier"),
        ({}, "tier"),
        ({"tier": "PRO", "more": 1}, "more"),
        ({"tier": "PRO", "success_url": "https://evil.test/"}, "success_url"),
        ({"tier": "PRO", "cancel_url": "https://evil.test/"}, "cancel_url"),
    ],
)
def test_a_bad_request_is_refused_before_anything_else(shop, body, field):
    """B11.4, B11.1: step 1; not even an account of ENTERPRISE is told of it."""
    granted(shop, "ENTERPRISE")
    before = PlanChange.objects.count()
    answered = person(shop.user).post(f"{API}/subscription", body, content_type=JSON)
    assert (answered.status_code, code_of(answered)) == (400, "invalid_request")
    assert field in answered.json()["error"]["errors"]
    assert PlanChange.objects.count() == before


def test_what_is_not_sold_cannot_be_bought(shop):
    """B11.4: step 8."""
    TierPolicy.objects.filter(tier="PRO").update(selectable=False)
    TierPolicy.objects.filter(tier="BUSINESS").update(stripe_price_id=None)
    for tier in ("PRO", "BUSINESS"):
        refused = shop.ask(tier)
        assert (refused.status_code, code_of(refused)) == (400, "tier_not_available")


def test_a_bank_that_refuses_at_once_changes_nothing(shop):
    """B16.c1, B11.5: Stripe itself answers 402, which is told as it is; the next try may go through"""
    shop.subscribe("PRO")
    shop.fake.faults.add("declined", "POST", "/v1/subscriptions/")
    refused = shop.ask("BUSINESS")
    assert refused.status_code == 402
    assert refused.json()["error"]["code"] == "card_declined"
    assert refused.json()["error"]["message"] == "Your card was declined."
    assert (shop.tier, shop.status()["pending_tier"]) == ("PRO", None)
    assert shop.ask("BUSINESS").status_code == 200
    assert shop.tier == "BUSINESS"
