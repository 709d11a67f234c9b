"""Settings of diagnostics that contradict each other stop the boot and are named (D2, D21)."""

from __future__ import annotations

import pytest

from diagnostics import checks

DEFAULTS = {
    "WORKER_BEAT_SECONDS": 2, "WORKER_BEAT_LIFE_SECONDS": 6, "DIAG_SWEEP_SECONDS": 2, "TURN_MAX_ATTEMPTS": 3,
    "DIAG_STUCK_QUEUED_SECONDS": 3600, "DIAG_ORPHAN_AGE_SECONDS": 86_400, "DIAG_LONG_RUNNING_SECONDS": 86_400,
    "DIAG_BULK_MAX": 100, "DIAG_ALL_MAX": 500, "DIAG_STOP_WAIT_SECONDS": 15, "DIAG_REFRESH_SECONDS": 30,
    "DIAG_SAMPLE_DAYS": 7, "DIAG_AUDIT_DAYS": 400,
}  # fmt: skip


def found():
    return [*checks.check_heartbeat_settings(None), *checks.check_threshold_settings(None)]


def test_what_an_installation_has_that_sets_nothing_agrees(settings):
    """D21"""
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS
    assert found() == []


@pytest.mark.parametrize(
    ("changed", "identifier"),
    [
        ({"WORKER_BEAT_SECONDS": 2.1}, "diagnostics.E001"),
        ({"DIAG_SWEEP_SECONDS": 2.1}, "diagnostics.E001"),
        ({"WORKER_BEAT_LIFE_SECONDS": 6.1}, "diagnostics.E001"),
        ({"DIAG_STUCK_QUEUED_SECONDS": 86_401}, "diagnostics.E002"),
        ({"DIAG_BULK_MAX": 501}, "diagnostics.E003"),
        ({"TURN_MAX_SECONDS": 90_000}, "diagnostics.E004"),
    ],
)
def test_a_contradiction_names_both_of_its_sides(settings, changed, identifier):
    """D2, D21"""
    for name, value in changed.items():
        setattr(settings, name, value)
    [problem] = found()
    assert problem.id == identifier
    assert next(iter(changed)) in problem.msg
