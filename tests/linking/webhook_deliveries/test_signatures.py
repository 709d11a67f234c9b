"""Signatures that receivers can check, and patience that ends (L17)."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime

import pytest

from linking.webhook_deliveries import endpoints, sender


def test_a_receiver_can_check_either_secret_while_they_change():
    """A-L17.1: v1=<hex HMAC-SHA256(secret, timestamp + "." + raw body)>, two of them during a rotation"""
    new, old = endpoints.generate_secret(), endpoints.generate_secret()
    header = endpoints.build_signature_header([new, old], 1_700_000_000, b'{"a":1}')
    for secret in (new, old):
        expected = hmac.new(secret.encode(), b'1700000000.{"a":1}', hashlib.sha256).hexdigest()
        assert f"v1={expected}" in header.split(",")
    assert new != old
    assert endpoints.compute_signature(new, 1_700_000_001, b'{"a":1}') not in header


@pytest.mark.parametrize(
    ("attempts", "delay"),
    [(1, 10), (2, 30), (3, 120), (4, 600), (5, 1800), (6, 7200), (7, 21_600)],
)
def test_each_try_waits_longer_within_a_fifth(attempts, delay):
    """A-L17.1: 10 s, 30 s, 2 min, 10 min, 30 min, 2 h, 6 h, ±20 %"""
    assert sender.compute_delay_seconds(attempts, chance=0.5) == delay
    assert sender.compute_delay_seconds(attempts, chance=0.0) == pytest.approx(0.8 * delay)
    assert sender.compute_delay_seconds(attempts, chance=1.0) == pytest.approx(1.2 * delay)


def test_the_eighth_failure_is_the_last():
    """A-L17.1: after seven delays there is no further try"""
    assert sender.compute_delay_seconds(8) is None


@pytest.mark.parametrize(
    ("asked", "waits"),
    [
        ("3600", 3600),
        ("999999", 21_600),
        ("Mon, 16 Nov 2026 11:00:40 GMT", 40),
        ("soon", 10),
        ("Mon, 16 Nov 2026 11:00:40 +99999999999999999999", 10),
        ("1 Jan 99999999999999999999 00:00:00", 10),
        ("-5", 10),
        ("", 10),
    ],
)
def test_what_a_receiver_asks_for_is_honoured_up_to_six_hours(asked, waits):
    """A-L17.1: Retry-After as seconds or as a date; nonsense is no request"""
    now = datetime(2026, 11, 16, 11, 0, 0, tzinfo=UTC)
    assert sender.compute_delay_seconds(1, retry_after=asked, now=now, chance=0.5) == waits


@pytest.mark.parametrize("status", [None, 408, 425, 429, 500, 502, 503, 599])
def test_what_may_pass_is_tried_again(status):
    """A-L17.1: network errors, 408, 425, 429 and 5xx"""
    assert sender.is_retryable(status)


@pytest.mark.parametrize("status", [301, 302, 400, 401, 403, 404, 409, 410, 422])
def test_what_is_meant_is_final(status):
    """A-L17.1: other answers are not asked for twice, and no redirect is followed"""
    assert not sender.is_retryable(status)
