"""The doctor tells a key that is wrong, too weak or revoked from a service that is away (D17)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from diagnostics.probes import external_services

SECRET = "sk_test_extremely-secret"


class Outside:
    """Somebody else's service, which answers every question the same."""

    def __init__(self) -> None:
        self.status, self.body = 200, {"ok": True}
        outside = self

        class Door(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = json.dumps(outside.body).encode()
                self.send_response(outside.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *args: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Door)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()


@pytest.fixture
def outside(settings) -> Iterator[Outside]:
    made = Outside()
    url = f"http://127.0.0.1:{made.server.server_port}"
    settings.STRIPE_SECRET_KEY = settings.SLACK_BOT_TOKEN = settings.DISCORD_BOT_TOKEN = SECRET
    settings.TELEGRAM_BOT_TOKEN = f"1:{SECRET}"
    settings.OPENAI_API_KEY = settings.ANTHROPIC_API_KEY = SECRET
    settings.STRIPE_API_BASE = settings.TELEGRAM_API_URL = url
    settings.SLACK_API_URL = settings.DISCORD_API_URL = url
    settings.OPENAI_BASE_URL = settings.ANTHROPIC_BASE_URL = url
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


KEYS = [
    (external_services.probe_stripe, "STRIPE_SECRET_KEY"),
    (external_services.probe_discord, "DISCORD_BOT_TOKEN"),
    (external_services.probe_telegram, "TELEGRAM_BOT_TOKEN"),
    (external_services.probe_slack, "SLACK_BOT_TOKEN"),
    (external_services.probe_openai, "OPENAI_API_KEY"),
    (external_services.probe_anthropic, "ANTHROPIC_API_KEY"),
]


@pytest.mark.parametrize(("probe", "variable"), KEYS, ids=[variable for _, variable in KEYS])
def test_a_wrong_key_is_distinguished_from_a_weak_one_and_from_an_outage(outside: Outside, probe, variable):
    """A-D17.1, A-D17.3"""
    assert probe().status == "ok"
    for status, state, words in (
        (401, "fail", "the key was refused"),
        (403, "fail", "lacks permissions"),
        (500, "warn", "answered 500"),
    ):
        outside.status = status
        found = probe()
        assert (found.status, words in found.detail) == (state, True), found
        assert state == "warn" or variable in found.next_step
        assert SECRET not in f"{found}"


@pytest.mark.parametrize(
    ("error", "words"),
    [("token_revoked", "revoked"), ("account_inactive", "revoked"), ("invalid_auth", "refused")],
)
def test_slack_says_inside_what_it_thinks_of_a_token(outside: Outside, error: str, words: str):
    """A-D17.1: it answers 200 to everybody"""
    outside.body = {"ok": False, "error": error}
    found = external_services.probe_slack()
    assert found.status == "fail"
    assert words in found.detail


def test_what_is_no_token_is_not_found_at_telegram(outside: Outside):
    """A-D17.1: its word for a token that was revoked or never was one"""
    outside.status = 404
    assert external_services.probe_telegram().detail == "the key was refused"


def test_a_webhook_that_stripe_does_not_know_is_reported(outside: Outside, settings):
    """A-D17.1: or has switched off"""
    ours = f"{settings.SITE_URL}{external_services.STRIPE_WEBHOOK_PATH}"
    for endpoints, status in (
        ([], "warn"),
        ([{"url": ours, "status": "disabled"}], "warn"),
        ([{"url": ours, "status": "enabled"}], "ok"),
    ):
        outside.body = {"data": endpoints}
        assert external_services.probe_stripe_webhook().status == status
