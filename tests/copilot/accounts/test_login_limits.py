"""Limits on sign-ins: shared by all processes, and no way to lock somebody else out."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.core.cache import caches
from django.test import Client
from django.utils import timezone

from config.core.cache import RateLimitCache
from copilot.accounts import login_limits
from copilot.models import KnownDevice
from tests.support import factories
from tests.support.paths import ROOT

pytestmark = pytest.mark.django_db


def test_processes_count_together():
    caches["default"].set("seen", [1.5, 2], 60)
    code = (
        "import django; django.setup()\n"
        "from django.core.cache import cache; print(cache.get('seen')); cache.set('seen', [3], 60)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines()[-1] == "[1.5, 2]"
    assert caches["default"].get("seen") == [3]


@pytest.mark.attack
def test_a_count_from_redis_is_read_as_data_alone(redis_clean, settings):
    """A pickle that somebody put there is refused, not run"""
    caches["default"].set("seen", [1], 60)
    [name] = [key for key in redis_clean.scan_iter() if b"seen" in key]
    redis_clean.set(name, pickle.dumps([2]))
    with pytest.raises(UnicodeDecodeError):
        caches["default"].get("seen")


@pytest.mark.attack
def test_guessing_stays_limited_while_redis_is_away():
    away = RateLimitCache("redis://127.0.0.1:1/0", {"OPTIONS": {"socket_connect_timeout": 0.2}})
    assert away.add("lock", True, 60)
    assert not away.add("lock", True, 60)
    away.set("seen", [1.0], 60)
    assert away.get("seen") == [1.0]
    assert away.delete("seen")
    assert away.get("seen", []) == []


# --- guesses at a password ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch):
    monkeypatch.setattr(login_limits, "UNKNOWN_DEVICES_RATES", "7/15m/key")


def guess(
    client: Client | None = None,
    *,
    login: str = "ada@example.com",
    address: str = "192.0.2.1",
    times: int = 1,
):
    client = client or Client()
    for number in range(times):
        told = client.post(
            "/accounts/login/", {"login": login, "password": f"guess-{number}"}, REMOTE_ADDR=address
        )
    return told


def sign_in(client: Client, *, login: str = "ada@example.com", address: str = "198.51.100.1") -> bool:
    client.post("/accounts/login/", {"login": login, "password": factories.PASSWORD}, REMOTE_ADDR=address)
    return "_auth_user_id" in client.session


@pytest.mark.attack
@pytest.mark.parametrize("second", ["ada@example.com", "ADA@example.com", "ada"])
def test_guesses_count_for_the_account_however_it_is_typed(second):
    factories.ada()
    guess(times=5)
    assert not sign_in(Client(), login=second, address="192.0.2.1")


@pytest.mark.attack
def test_one_address_that_guesses_does_not_keep_the_owner_out():
    factories.ada()
    guess(times=12)
    assert sign_in(Client())


@pytest.mark.attack
def test_guesses_from_many_addresses_are_bounded_for_the_account():
    factories.ada()
    for number in range(8):
        guess(address=f"192.0.2.{number}")
    assert not sign_in(Client())  # from a device that the account does not know


@pytest.mark.attack
def test_nobody_else_locks_the_owner_out_of_a_known_device():
    factories.ada()
    laptop = Client()
    assert sign_in(laptop)
    laptop.post("/accounts/logout/")
    for number in range(8):
        guess(address=f"192.0.2.{number}")
    guess(
        address="198.51.100.1", times=12
    )  # somebody behind the same router, until django-axes locks the pair
    assert not sign_in(Client(), address="203.0.113.9")
    assert sign_in(laptop)


@pytest.mark.attack
def test_a_known_device_is_limited_itself():
    factories.ada()
    laptop = Client()
    assert sign_in(laptop)
    laptop.post("/accounts/logout/")
    guess(laptop, times=5)
    assert not sign_in(laptop)


@pytest.mark.attack
def test_a_reset_by_mail_ends_the_lock(client, mailoutbox):
    factories.ada()
    for number in range(8):
        guess(address=f"192.0.2.{number}")
    client.post("/accounts/password/reset/", {"email": "ada@example.com"})
    [path] = re.findall(r"https?://[^/]+(/accounts/password/reset/key/\S+)", mailoutbox[0].body)
    form = client.get(path, follow=True)
    client.post(
        form.redirect_chain[-1][0], {"password1": factories.PASSWORD, "password2": factories.PASSWORD}
    )
    assert sign_in(client)


@pytest.mark.attack
def test_a_lock_ends_although_the_guesses_go_on(settings, monkeypatch):
    """django-axes would restart the lock's time with every guess"""
    settings.ACCOUNT_RATE_LIMITS = {"login": "1000/m/ip"}
    monkeypatch.setattr(login_limits, "ADDRESS_RATES", "1000/m/ip")
    monkeypatch.setattr(login_limits, "UNKNOWN_DEVICES_RATES", "1000/m/key")
    factories.ada()
    guess(times=10)
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=14, seconds=58))
    locked = guess()
    assert locked.status_code == 429
    assert AccessAttempt.objects.get().attempt_time < timezone.now() - timedelta(minutes=14)
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(minutes=16))
    assert sign_in(Client(), address="192.0.2.1")


@pytest.mark.attack
def test_one_ipv6_client_is_one_address():
    factories.ada()
    for number in range(5):
        guess(address=f"2001:db8::{number:x}")
    assert not sign_in(Client(), address="2001:db8::ffff")


@pytest.mark.attack
def test_what_names_no_account_is_kept_as_a_digest(settings):
    guess(login="my secret typed in the wrong field", times=2)
    kept = repr(list(AccessAttempt.objects.values()))
    assert "my secret" not in kept
    assert "guess-0" not in kept


@pytest.mark.attack
@pytest.mark.parametrize("login", ["a\x00b", "x" * 100_000, "é" * 300, "' or 1=1 --"])
def test_odd_names_are_refused_like_any_other(login):
    assert guess(login=login).status_code == 200


def test_success_takes_its_own_attempt_back():
    factories.ada()
    for _ in range(8):
        client = Client()
        assert sign_in(client)
        KnownDevice.objects.all().delete()
