"""Limits on sign-ins: shared by all processes, and nobody's way to keep somebody else out."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.cache import caches

from copilot.live.cache import RateLimitCache
from tests import make

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parent.parent


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
    with pytest.raises(json.JSONDecodeError):
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


@pytest.mark.attack
def test_guesses_at_one_account_are_counted(client):
    make.ada()
    for number in range(5):
        client.post("/accounts/login/", {"login": "ada@example.com", "password": f"guess-{number}"})
    client.post("/accounts/login/", {"login": "ada@example.com", "password": make.PASSWORD})
    assert "_auth_user_id" not in client.session
