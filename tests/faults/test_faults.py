"""The fault run in a minute, for CI (T9.6); `make faults` is the long one."""

from __future__ import annotations

import pytest

from tests.support.programs import run_module


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("redis", ["durable", "volatile"])
def test_a_minute_of_faults_loses_nothing(redis: str) -> None:
    """T9.6, A33.c2"""
    run_module("tests.faults", "--minutes", "1", "--people", "6", "--redis", redis)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_condition_is_shown_explained_and_mended_on_the_page() -> None:
    """A-D3.1, D10, D13: produced by killing and freezing processes; listed, counted, found, repaired, and in the audit"""
    run_module("tests.faults.conditions")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_repairs_race_against_those_who_wake_and_those_who_act() -> None:
    """A-D9.4, A-D8.2, A-D2.2: real workers and web processes; nobody who lives is touched"""
    run_module("tests.faults.races", "3")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_turns_survive_workers_that_are_killed_every_two_seconds() -> None:
    """A-D22.1: one ending each, nothing written twice, nothing charged without a turn, nobody alive touched"""
    run_module("tests.faults.killing")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("outage", ["freeze", "start", "maintenance", "soak"])
def test_every_outage_heals_within_fifteen_seconds_and_nothing_piles_up(outage: str) -> None:
    """Servers frozen for 5, 45 and 120 s; workers that start meanwhile; maintenance away; killed again and again"""
    run_module("tests.faults.freezing", "--only", outage)
