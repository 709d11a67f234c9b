"""Cron lines on the clocks of time zones, change days among them (A26.1, A26.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from config.core.errors import InvalidRequest
from copilot.schedules import cron


def coming(line: str, zone: str, after: str, count: int) -> list[str]:
    moments = cron.parse_cron(line, zone).iter_after(datetime.fromisoformat(after).astimezone(UTC))
    return [moment.isoformat(timespec="minutes") for moment in islice(moments, count)]


def test_a_skipped_time_runs_at_the_next_minute_there_is():
    """A26.c1: in Berlin 02:30 does not exist on 2026-03-29"""
    assert coming("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00+00:00", 3) == [
        "2026-03-28T01:30+00:00",
        "2026-03-29T01:00+00:00",
        "2026-03-30T00:30+00:00",
    ]


def test_a_repeated_time_runs_once():
    """A26.c1: in Berlin 02:30 comes twice on 2026-10-25"""
    assert coming("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+00:00", 2) == [
        "2026-10-25T00:30+00:00",
        "2026-10-26T01:30+00:00",
    ]


def test_asked_within_the_repeated_hour_the_first_time_is_over():
    """A26.3: between 02:30 the first and 02:30 the second time, the next run is tomorrow's"""
    assert coming("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10+00:00", 1) == ["2026-10-26T01:30+00:00"]


def test_skipped_times_that_meet_are_one_run():
    """A26.3"""
    assert coming("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+00:00", 2) == [
        "2026-03-29T01:00+00:00",
        "2026-03-30T00:00+00:00",
    ]


def test_intervals_follow_the_time_that_passes():
    assert coming("0 * * * *", "Europe/Berlin", "2026-03-29T00:30+00:00", 2) == [
        "2026-03-29T01:00+00:00",
        "2026-03-29T02:00+00:00",
    ]


@pytest.mark.parametrize("line", ["*/15 * * * *", "0,15 8 * * *", "50,5 23,0 * * *", "0 8 * * MON-FRI"])
def test_lines_that_run(line: str) -> None:
    assert cron.parse_cron(line, "Europe/Berlin").next_after(datetime.now(UTC)) is not None


@pytest.mark.parametrize(
    ("line", "zone", "code"),
    [
        ("* * * * *", "UTC", "interval_too_small"),
        ("*/14 * * * *", "UTC", "interval_too_small"),
        ("0,10 8 * * *", "UTC", "interval_too_small"),
        ("5,50 * * * *", "UTC", ""),
        ("0,50 * * * *", "UTC", "interval_too_small"),
        ("0 0 0 * * *", "UTC", "invalid_cron"),
        ("61 * * * *", "UTC", "invalid_cron"),
        ("every day", "UTC", "invalid_cron"),
        ("0 0 31 2 *", "UTC", "invalid_cron"),
        ("", "UTC", "invalid_cron"),
        ("0 8 * * *", "Europe/Atlantis", "invalid_timezone"),
        ("0 8 * * *", "../etc/passwd", "invalid_timezone"),
        ("0 8 * * *", "Europe", "invalid_timezone"),
        ("0 8 * * *", "", "invalid_timezone"),
    ],
)
def test_lines_that_are_refused(line: str, zone: str, code: str) -> None:
    """A26.1"""
    if not code:
        assert cron.parse_cron(line, zone).line == line
        return
    with pytest.raises(InvalidRequest) as refused:
        cron.parse_cron(line, zone)
    assert refused.value.code == code
