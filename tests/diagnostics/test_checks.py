"""What diagnostics checks at start (D2, D21)."""

from __future__ import annotations

import runpy

import pytest

from config import variables
from diagnostics import checks

DEFAULTS = {
    "WORKER_BEAT_SECONDS": 2, "WORKER_BEAT_LIFE_SECONDS": 6, "DIAG_SWEEP_SECONDS": 2, "TURN_MAX_ATTEMPTS": 3,
    "DIAG_STUCK_QUEUED_SECONDS": 3600, "DIAG_ORPHAN_AGE_SECONDS": 86_400, "DIAG_LONG_RUNNING_SECONDS": 86_400,
    "DIAG_BULK_MAX": 100, "DIAG_ALL_MAX": 500, "DIAG_STOP_WAIT_SECONDS": 15,
    "DIAG_AUDIT_DAYS": 400,
}  # fmt: skip


def test_the_numbers_are_those_of_the_rule(settings):
    """D21"""
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS


def test_a_network_that_is_none_is_named(settings):
    settings.METRICS_ALLOWED_CIDRS = ["10.0.0.0/8", "monitoring"]
    [problem] = checks.check_metrics_networks(None)
    assert problem.id == "diagnostics.E005"
    assert "'monitoring' is not a network" in problem.msg


@pytest.mark.parametrize(
    ("unread", "told"),
    [
        ({"ALLOWED_HOST": "ALLOWED_HOSTS"}, "nothing reads ALLOWED_HOST (did you mean ALLOWED_HOSTS?)"),
        ({"LINK_NOTICE_SECONDS": "", "TURN_TIME": ""}, "nothing reads LINK_NOTICE_SECONDS, TURN_TIME"),
    ],
)
def test_a_variable_that_nothing_reads_is_named(settings, unread: dict[str, str], told: str):
    settings.UNREAD_VARIABLES = {}
    assert checks.check_production_values(None) == []
    settings.UNREAD_VARIABLES = unread
    [warning] = checks.check_production_values(None)
    assert warning.msg.startswith(f"{told}. Correct or remove")


def test_variables_of_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    others = (
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "AWS_REGION",
        "HOSTNAME",
        "POSTGRES_PASSWORD",
        "WEB_CONCURRENCY",
    )
    for name in (*others, "REDIS_URI", "PILOTHOUSE_SERVER"):
        monkeypatch.setenv(name, "x")
    found = runpy.run_path(variables.__file__)["UNREAD_VARIABLES"]
    assert found == {"REDIS_URI": "REDIS_URL", "PILOTHOUSE_SERVER": ""}
