"""Critical findings reach people once an hour, by mail and webhook, and they hear when one is over (D12)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from django.core import mail
from django.db import OperationalError
from django.utils import timezone
from django_celery_beat.schedulers import DatabaseScheduler

from config.beat_scheduler import Scheduler
from config.dev.servers import find_free_port
from diagnostics import alerts
from diagnostics.findings.figures import Snapshot, Summary
from diagnostics.models import Alert
from linking.management.commands import run_bot

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 16, 3, tzinfo=UTC)
WELL = Snapshot(summary=Summary(taken_at=NOW))
ORPHANS = Snapshot(summary=Summary(taken_at=NOW, orphaned_running=2))
REDIS_DOWN = Snapshot(summary=Summary(taken_at=NOW, degraded=("redis",)), dependencies_down=("redis",))
BLIND = Snapshot(summary=Summary(taken_at=NOW, degraded=("postgres",)))


@pytest.fixture(autouse=True)
def _ada_is_told(settings):
    settings.ADMINS = [("ada@example.com", "ada@example.com")]
    alerts._alerted_in_memory.clear()


def subjects() -> list[str]:
    return [message.subject.partition("] ")[2] for message in mail.outbox]


def test_a_finding_is_announced_once_an_hour_and_when_it_is_over():
    """D12: with why, and what to do"""
    for _ in range(3):
        alerts.send_alerts(ORPHANS)
    assert subjects() == ["Act now: Orphaned executions"]
    assert "Their worker died" in mail.outbox[0].body
    assert "/admin/diagnostics/" in mail.outbox[0].body
    Alert.objects.update(notified_at=timezone.now() - timedelta(minutes=61))
    alerts.send_alerts(ORPHANS)
    assert len(subjects()) == 2
    for _ in range(2):
        alerts.send_alerts(WELL)
    assert subjects()[2:] == ["Resolved: Orphaned executions"]
    alerts.send_alerts(ORPHANS)  # back within the hour
    assert len(subjects()) == 3


def test_what_could_not_be_looked_for_is_not_over():
    """D12: a server that is back is, even while another is away"""
    alerts.send_alerts(ORPHANS)
    alerts.send_alerts(REDIS_DOWN)
    alerts.send_alerts(BLIND)
    assert subjects()[1:] == ["Act now: Redis does not answer", "Resolved: Redis does not answer"]
    alerts.send_alerts(WELL)
    assert subjects()[3:] == ["Resolved: Orphaned executions"]


def test_who_cannot_be_reached_is_tried_again(settings):
    """D12: neither the mail server nor the webhook answers"""
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", find_free_port()
    settings.DIAG_ALERT_WEBHOOK_URL = f"http://127.0.0.1:{find_free_port()}/secret"
    alerts.send_alerts(ORPHANS)
    assert not Alert.objects.exists()
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    alerts.send_alerts(ORPHANS)
    assert len(subjects()) == 1


def test_without_a_database_this_process_remembers(monkeypatch: pytest.MonkeyPatch):
    """D12: Postgres itself may be what is down"""

    def gone(*args: object, **how: object) -> None:
        raise OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(alerts, "connection", type("Closed", (), {"close": staticmethod(lambda: None)}))
        patch.setattr(Alert.objects, "filter", gone)
        for _ in range(2):
            alerts.send_alerts(Snapshot(summary=BLIND.summary, dependencies_down=("postgres",)))
    assert subjects() == ["Act now: Postgres does not answer"]
    alerts.send_alerts(WELL)
    assert subjects()[1:] == ["Resolved: dependency_down:postgres"]


@pytest.fixture
def hook(settings) -> Iterator[list[dict[str, str]]]:
    heard: list[dict[str, str]] = []

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    settings.DIAG_ALERT_WEBHOOK_URL = f"http://127.0.0.1:{server.server_port}/"
    yield heard
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_webhook_hears_the_same(hook: list[dict[str, str]], settings):
    """D12: with nobody to mail"""
    settings.ADMINS = []
    assert alerts.has_recipients()
    alerts.send_alerts(ORPHANS)
    alerts.send_alerts(WELL)
    assert [(one["code"], one["status"]) for one in hook] == [("orphans", "firing"), ("orphans", "resolved")]
    assert hook[0]["text"].startswith("Act now: Orphaned executions")
    assert not mail.outbox


def test_beat_shows_that_it_lives(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """D15: by the same file as workers"""
    settings.HEARTBEAT_FILE = str(tmp_path / "heartbeat")
    monkeypatch.setattr(DatabaseScheduler, "tick", lambda self: 1.0)
    assert Scheduler.tick(object.__new__(Scheduler)) == 1.0
    assert Path(settings.HEARTBEAT_FILE).exists()


def test_a_bot_shows_that_it_lives(settings, tmp_path: Path):
    """D15: for as long as its loop turns; where no file is wanted, none is touched"""

    async def a_turn_of_the_loop() -> None:
        beating = asyncio.create_task(run_bot._beat())
        await asyncio.sleep(0)
        beating.cancel()

    settings.HEARTBEAT_FILE = ""
    asyncio.run(a_turn_of_the_loop())
    settings.HEARTBEAT_FILE = str(tmp_path / "heartbeat")
    asyncio.run(a_turn_of_the_loop())
    assert Path(settings.HEARTBEAT_FILE).exists()
