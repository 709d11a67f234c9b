"""The numbers of A0.7, as an installation has them that sets nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from copilot.agent import followups, shortening
from copilot.agent.guards import Limits
from copilot.commands import LIMITS
from copilot.providers import streaming
from copilot.providers.base import Entry
from copilot.tools import ask_user, execution, results, run_sub_session

SETTINGS = {
    "TURN_MAX_ROUNDS": 50,
    "TURN_MAX_SECONDS": 3_600,
    "TURN_BUDGET_MICRODOLLARS": 1_000_000,
    "HEARTBEAT_SECONDS": 15,
    "MAX_TOOL_WAIT_SECONDS": 300,
    "STREAM_IDLE_SECONDS": 600,
    "THINKING_TOKENS": 8_192,
    "GOAL_CONTINUATIONS": 10,
    "TITLE_REFRESH_EXCHANGES": 0,
    "SUB_SESSION_DEPTH": 3,
    "SUB_SESSIONS_AT_ONCE": 5,
}


def booted(**environment: str) -> subprocess.CompletedProcess[str]:
    code = f"from config import settings; print([getattr(settings, name) for name in {list(SETTINGS)}])"
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_nobody_set_has_its_default():
    """A0.7"""
    assert booted().stdout.strip() == str([*SETTINGS.values()])


def test_thinking_has_its_bounds_at_boot():
    """A0.7: 0 to 128,000; the refusal names the setting"""
    refused = booted(THINKING_TOKENS="128001")
    assert refused.returncode != 0
    assert "THINKING_TOKENS" in refused.stderr


def test_what_is_no_setting_has_its_number():
    """A0.7"""
    limits = Limits()
    assert (limits.calls_per_reply, execution.RUNNING_AT_ONCE) == (16, 8)
    assert (limits.loop_window, limits.loop_repeats, limits.loop_warn_at) == (10, 5, 3)
    assert limits.unusable_in_a_row == 5
    assert (results.CALL_CHARACTERS, results.GROUP_CHARACTERS) == (70_000, 200_000)
    assert (followups.MOST_PER_MESSAGE, followups.MOST_PER_BOUNDARY) == (2_000, 6_000)
    assert LIMITS.message_characters == 64_000
    assert (ask_user.DEFAULT_SECONDS, ask_user.SHORTEST_SECONDS) == (120, 10)
    assert (shortening.MOST_PER_TURN, shortening.MOST_FORCED) == (3, 2)
    assert streaming.CONNECT_SECONDS == 10
    assert Entry(name="m", provider="scripted", model="m").first_token_timeout_seconds == 120
    assert run_sub_session.RunSubSession.model_fields["wait_seconds"].default == 60
