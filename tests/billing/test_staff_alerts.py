"""Alerts to staff about money, rate limits for users, and the documentation of Stripe's webhook."""

from __future__ import annotations

import logging

import pytest
from celery import current_app
from django.core.mail.backends.base import BaseEmailBackend
from kombu.exceptions import OperationalError

from billing import emails, metrics, redis_counters, tasks
from billing.api.views import BillingApiView
from billing.models import LimitPolicy
from billing.policies import clear_policy_cache
from billing.usage import limit_checks
from tests.support import factories
from tests.support.rest_clients import JSON, V1, code_of, person

pytestmark = pytest.mark.django_db


class NoServer(BaseEmailBackend):
    def send_messages(self, email_messages):
        raise ConnectionRefusedError


def test_an_alert_is_mailed_once_an_hour_to_those_who_are_there(mailoutbox, settings):
    """B13.4, B14.3: staff alerts; to the addresses of the settings, else to staff; the same is not said twice"""
    factories.ada()
    grace = factories.grace()
    tasks.mail_staff("dispute", "A payment is disputed. dispute=dp_1")
    tasks.mail_staff("dispute", "A payment is disputed. dispute=dp_1")
    tasks.mail_staff("dispute", "A payment is disputed. dispute=dp_2")
    assert [mail.to for mail in mailoutbox] == [[grace.email]] * 2
    settings.ALERT_EMAILS = ["money@example.com"]
    tasks.mail_staff("dispute", "A payment is disputed. dispute=dp_3")
    assert mailoutbox[-1].to == ["money@example.com"]
    assert mailoutbox[-1].subject == "[Pilothouse] dispute"


def test_calling_staff_never_stops_anybody(settings, monkeypatch, caplog):
    """B1.4: without a broker and without a mail server the line in the log is all, and nothing fails"""

    def no_broker(*args, **kwargs):
        raise OperationalError

    monkeypatch.setattr(current_app, "send_task", no_broker)
    with caplog.at_level(logging.ERROR):
        metrics.alert_staff("unknown_price", "No tier has this price.", price="price_1")
    assert "'kind': 'unknown_price'" in caplog.text
    factories.grace()
    settings.EMAIL_BACKEND = f"{__name__}.NoServer"
    assert emails.send_staff_email("unknown_price", "No tier has this price.") is False


def test_a_call_for_staff_becomes_a_task(monkeypatch):
    """B10.2, B11.2: alerts are passed on to the mail sender"""
    sent = []
    monkeypatch.setattr(current_app, "send_task", lambda name, args, retry: sent.append((name, args)))
    metrics.alert_staff("top_up_review", "Look.", top_up="t")
    assert sent == [(tasks.mail_staff.name, ["top_up_review", "Look. top_up=t"])]


def test_reads_and_writes_of_a_user_are_bounded_apart(monkeypatch):
    """B16.4: 60 reads and 10 writes a minute; too many are told so, by another code than a limit"""
    assert (BillingApiView.reads_per_minute, BillingApiView.writes_per_minute) == (60, 10)
    monkeypatch.setattr(BillingApiView, "reads_per_minute", 3)
    monkeypatch.setattr(BillingApiView, "writes_per_minute", 2)
    ada, bob = person(factories.ada()), person(factories.bob())
    read = [ada.get(f"{V1}/billing/usage").status_code for _ in range(4)]
    assert read == [200, 200, 200, 429]
    written = [ada.post(f"{V1}/billing/usage/reset", {}, content_type=JSON) for _ in range(3)]
    assert [code_of(answer) for answer in written] == ["not_over_limit"] * 2 + ["too_many_requests"]
    assert int(written[-1]["Retry-After"]) >= 1
    assert bob.get(f"{V1}/billing/usage").status_code == 200


def test_stripes_webhook_is_in_the_openapi_document():
    """B16.1: the webhook is described like the rest, and needs no login"""
    document = person(factories.ada()).get("/api/schema", headers={"Accept": "application/json"}).json()
    door = document["paths"]["/api/v1/billing/stripe/webhook"]["post"]
    assert set(door["responses"]) == {"200", "400", "405", "413", "503"}
    assert door["security"] == [{}]


def test_open_holds_are_listed_with_their_remaining_time():
    """B6.7: as staff see them: whole seconds, those of other users not among them, and nothing is removed by looking"""
    LimitPolicy.objects.update(turn_hold_microdollars=200_000)
    clear_policy_cache()
    ada, bob = factories.ada(), factories.bob()
    limit_checks.check_limits_and_hold(ada.pk, "turn-1")
    limit_checks.check_limits_and_hold(ada.pk, "turn-2")
    limit_checks.check_limits_and_hold(bob.pk, "turn-3")
    held = sorted(redis_counters.read_open_holds(ada.pk), key=lambda one: one.hold_id)
    assert [(one.hold_id, one.microdollars) for one in held] == [("turn-1", 200_000), ("turn-2", 200_000)]
    assert all(
        type(one.seconds_left) is int and 0 < one.seconds_left <= redis_counters.HOLD_SECONDS for one in held
    )
    assert len(redis_counters.read_open_holds(ada.pk)) == 2
    redis_counters.get_redis_client().hset(
        redis_counters.build_holds_key(ada.pk), "turn-1", "200000 1"
    )  # it ran out long ago
    assert [one.hold_id for one in redis_counters.read_open_holds(ada.pk)] == ["turn-2"]
    limit_checks.release_turn_hold(ada.pk, "turn-2")
    assert redis_counters.read_open_holds(ada.pk) == []
    clear_policy_cache()
