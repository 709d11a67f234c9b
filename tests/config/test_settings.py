"""The settings as every environment gets them, and what a release must keep true."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from config import variables
from copilot.models import Session
from copilot.tools.base import MIN_RESULT_CHARACTERS
from copilot.tools.builtin import ask_user, sub_session_tools
from tests.support import factories
from tests.support.paths import ROOT
from tests.support.programs import run_manage_command


@pytest.mark.django_db
def test_people_and_sessions_can_be_made():
    ada, bob = factories.ada(), factories.bob()
    mine = factories.session(ada)
    factories.message(mine, content="hello")
    factories.turn(mine, "succeeded")
    assert Session.objects.get() == mine
    assert bob != ada


@pytest.mark.django_db
def test_every_model_change_has_its_migration():
    out = StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=out)
    assert "No changes detected" in out.getvalue()


def test_production_does_not_start_without_a_secret_key():
    done = run_manage_command("check", SECRET_KEY="")
    assert done.returncode != 0
    assert "SECRET_KEY must be set" in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"SECRET_KEY": "k" * 49}, "SECRET_KEY is too short for production"),
        ({"SECRET_KEY": "insecure-development-key-only"}, "SECRET_KEY is too short for production"),
        ({"SECRET_KEY": "x" * 60, "DEBUG": "true"}, "set DEBUG=false in production"),
        ({"SECRET_KEY": "x" * 60, "DEMO_LOGIN": "true"}, "DEMO_LOGIN is for development only"),
    ],
)
def test_production_does_not_start_with_what_only_a_laptop_may_have(given: dict[str, str], told: str):
    done = run_manage_command("check", **given)
    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("THINKING_TOKENS", "128001", "a whole number from 0 to 128,000"),
        ("MODEL_FIRST_TOKEN_SECONDS", "nan", "a number of seconds from 10 to 590"),
        ("TURN_MAX_SECONDS", "7200", "a number of seconds from 1 to 7,100"),
        ("TURN_MAX_ROUNDS", "-1", "a whole number of at least 1"),
        ("SIGNUP", "everybody", "one of open, invite, domains, approval, closed"),
        ("BODIES_MAX", "lots", "a size such as 50 MB, of at least 1 bytes"),
    ],
)
def test_a_bad_value_stops_the_start_in_one_line(name: str, value: str, allowed: str):
    """A0.7"""
    done = run_manage_command("check", SECRET_KEY="x" * 60, **{name: value})
    assert done.returncode == 1
    assert done.stderr == f"Wrong settings: {name} must be {allowed}, not {value!r}\n"


def test_every_variable_has_the_name_under_which_it_is_read():
    declared = [variable.name for group in variables.groups for variable in group.variables]
    assert len(declared) == len(set(declared)) > 130
    read_elsewhere = {"HOST", "PORT", "PILOTHOUSE_VAR", "PROMETHEUS_MULTIPROC_DIR", "TURN_PROCESSES"}
    derived = {"OWN_PREFIXES", "MAIL_WORKS", "UNREAD_VARIABLES"}
    assert {name for name in vars(variables) if name.isupper() and not name.startswith("_")} == (
        set(declared) - read_elsewhere
    ) | derived


def test_nothing_reads_a_variable_that_is_not_declared():
    read = {
        match
        for package in ("config", "billing", "copilot", "linking", "diagnostics")
        for path in (ROOT / package).rglob("*.py")
        for match in re.findall(r"os\.environ(?:\.get\(|\[)\"([A-Z_]+)\"", path.read_text())
    }
    for_developers = {"AUDIT_FEED"}
    assert read
    assert read - variables.names == for_developers


def test_constants_agree(settings):
    """A0.7, D2, D21"""
    assert settings.LOOP_WARN_AT <= settings.LOOP_REPEATS < settings.LOOP_WINDOW_ROUNDS
    assert settings.TOOL_OUTPUT_CHARACTERS <= settings.TOOL_GROUP_CHARACTERS
    assert settings.TOOL_CALLS_PER_REPLY * MIN_RESULT_CHARACTERS <= settings.TOOL_GROUP_CHARACTERS
    assert settings.FOLLOW_UP_CHARACTERS <= settings.FOLLOW_UPS_CHARACTERS
    assert settings.FORCED_COMPACTIONS_PER_TURN <= settings.COMPACTIONS_PER_TURN
    assert ask_user.DEFAULT_TIMEOUT_SECONDS <= settings.MAX_TOOL_WAIT_SECONDS
    assert sub_session_tools.DEFAULT_WAIT_SECONDS <= settings.MAX_TOOL_WAIT_SECONDS
    assert settings.HEARTBEAT_SECONDS < settings.STREAM_IDLE_SECONDS
    assert settings.WORKER_BEAT_LIFE_SECONDS >= 3 * settings.WORKER_BEAT_SECONDS
    # A dead turn must continue within 15 seconds, and 5 of them are left for its first token.
    assert settings.WORKER_BEAT_LIFE_SECONDS + 2 * settings.DIAG_SWEEP_SECONDS <= 10
    assert settings.DIAG_STUCK_QUEUED_SECONDS <= settings.DIAG_ORPHAN_AGE_SECONDS
    assert settings.DIAG_BULK_MAX <= settings.DIAG_ALL_MAX
    # The bounds that variables have because of them.
    assert settings.BROKER_VISIBILITY_SECONDS > 7_100  # TURN_MAX_SECONDS
    assert settings.MODEL_CONNECT_SECONDS <= 10  # MODEL_FIRST_TOKEN_SECONDS
    assert settings.STREAM_IDLE_SECONDS > 590


def test_production_refuses_to_log_what_people_write_d19():
    done = run_manage_command("check", SECRET_KEY="x" * 60, LOG_LEVEL="DEBUG")
    assert done.returncode != 0
    assert "LOG_LEVEL" in done.stderr


def test_static_files_can_be_gathered_with_hashed_modules_for_production(tmp_path: Path):
    packages = ("admin", "drf_spectacular_sidecar", "rest_framework", "account")
    ignored = [
        part for package in packages for part in ("--ignore", package)
    ]  # large, and not ours to rewrite
    done = run_manage_command(
        "collectstatic", "--no-input", "-v", "0", *ignored, SECRET_KEY="x" * 60, STATIC_ROOT=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names = json.loads((tmp_path / "staticfiles.json").read_text())["paths"]
    hashed = (tmp_path / names["js/chat/chat_page.js"]).read_text()
    assert names["js/chat/socket.js"].removeprefix("js/chat/") in hashed
