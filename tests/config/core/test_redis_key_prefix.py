"""Every key in Redis begins with REDIS_KEY_PREFIX, so that several installations can share one server.

The work here is done by a Redis user who may touch no other key: one without the prefix is an error where it is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
import redis
from celery import current_app
from django.conf import settings as configured
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from billing import ledger, redis_counters
from config import env
from config.core import rate_limits
from config.core import redis as core_redis
from copilot.providers import breakers
from copilot.providers.scripted import ScriptedText
from copilot.realtime import authentication, session_keys, worker_signals
from copilot.worker import heartbeat
from diagnostics import broker_queues, reaper
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import cue, ended, queue, quiet, rigged, start, until

PREFIX = configured.REDIS_KEY_PREFIX
USER = f"only-{PREFIX}"


@dataclass(frozen=True)
class Confined:
    """A Redis user who may touch the keys of this installation alone."""

    admin: redis.Redis
    url: str

    def refusals(self) -> list[object]:
        return [entry["object"] for entry in self.admin.acl_log() if entry["username"] == USER]

    def kinds(self) -> set[str]:
        """The word after the prefix of every key; fails on a key without it."""
        names = [name.decode() for name in self.admin.keys("*")]
        assert [name for name in names if not name.startswith(f"{PREFIX}:")] == []
        return {name.split(":")[1].partition("{")[0] or name.rpartition(":")[2] for name in names}


@pytest.fixture
def confined(transactional_db, redis_clean, settings) -> Iterator[Confined]:
    server = urlsplit(os.environ["REDIS_URL"])
    url = f"redis://{USER}:secret@{server.hostname}:{server.port}{server.path}"
    redis_clean.execute_command("ACL", "SETUSER", USER, "on", ">secret", f"~{PREFIX}:*", "&*", "+@all")
    usual = settings.REDIS_URL
    settings.REDIS_URL = url
    settings.CACHES = {**settings.CACHES, "shared": {**settings.CACHES["shared"], "LOCATION": url}}
    _forget_connections()
    try:
        yield Confined(redis_clean, url)
    finally:
        settings.REDIS_URL = usual
        _forget_connections()
        redis_clean.execute_command("ACL", "DELUSER", USER)


def _forget_connections() -> None:
    core_redis.get_redis.cache_clear()
    core_redis.get_script.cache_clear()


def test_a_turn_and_its_billing_touch_no_key_without_the_prefix(confined: Confined, settings):
    settings.MODEL_BREAKER_FAILURES = 3
    with rigged() as rig:
        rig.start_worker()
        session = factories.session()
        ledger.grant_credits(session.owner_id, 1_000, key="grant:1")
        rig.model.will(ScriptedText("Talking"), cue(1))
        turn_id = start(session)
        rig.model.reaches(1)
        queue(session, "And then?")
        rig.model.give(1)
        ended(turn_id)
        quiet(session)
        redis_counters.claim_staff_alert("something")
        redis_counters.release_reset_lock(
            session.owner_id, redis_counters.acquire_reset_lock(session.owner_id) or ""
        )
        rate_limits.count_request("messages", str(session.owner_id), limit=5, seconds=60)
        breakers.count_model_failure("demo", "down", failures=1, seconds=60)
        authentication.redeem_ticket(authentication.issue_ticket(session.owner_id))
        worker_signals.push_wakeup(turn_id)
        caches["shared"].add("a", 1, 60)
        caches["shared"].incr("a")
        reaper.run_sweep_steps()
        session_keys.survey_session_keys(1.0)
    assert confined.refusals() == []
    kinds = {"billing", "cache", "count", "epoch", "reaper", "wakeups", "log", "fence", "open"}
    assert confined.kinds() >= kinds


def test_the_broker_and_a_real_worker_touch_no_key_without_the_prefix(
    confined: Confined, monkeypatch: pytest.MonkeyPatch
):
    for name in ("CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"):
        monkeypatch.setenv(name, confined.url)
    with current_app.connection_for_write() as sending:
        for _ in range(2):
            current_app.send_task("diagnostics.tasks.reap", connection=sending)
    assert broker_queues.read_queue_depths().by_queue["maintenance"] == 2
    command = [sys.executable, "-m", "celery", "-A", "config", "worker", "-Q", "maintenance", "-P", "solo"]
    worker = subprocess.Popen(
        [*command, "-n", f"{USER}@%h"],
        cwd=ROOT,
        env=os.environ | {"REDIS_URL": confined.url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: heartbeat.read_sweep_age_seconds() is not None, 4 * PATIENCE_SECONDS)
        until(lambda: broker_queues.read_queue_depths().by_queue["maintenance"] == 0)
        until(lambda: current_app.control.inspect(timeout=2, limit=1).active_queues())
    finally:
        worker.terminate()
        worker.wait(PATIENCE_SECONDS)
    assert confined.refusals() == []
    assert confined.kinds() >= {"celery", "epoch", "reaper"}


@pytest.mark.parametrize("prefix", ["a:b", "a*", "{a}", "a b", "[a]", "a" * 41])
def test_a_prefix_that_would_match_other_keys_is_refused(monkeypatch: pytest.MonkeyPatch, prefix: str):
    """`a:b` lies within `a`: the sweep of the one would remove the other's leases."""
    monkeypatch.setenv("REDIS_KEY_PREFIX", prefix)
    with pytest.raises(ImproperlyConfigured, match="REDIS_KEY_PREFIX must be"):
        env.read_variable("REDIS_KEY_PREFIX", env.label, "ph")
