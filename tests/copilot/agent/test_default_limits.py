"""The numbers of A0.7: what they are, and that each of them bites."""

from __future__ import annotations

import pytest

from config.core.errors import InvalidRequest
from copilot.agent import queued_messages
from copilot.agent.guards import LoopGuards, TurnLimits
from copilot.agent.outputs import LoopAnswered
from copilot.agent.retry_policy import RetryPolicy
from copilot.chat import commands
from copilot.providers import catalogue, clients, http_stream
from copilot.providers.base import CatalogueEntry, ProviderFailure, ToolCall
from copilot.tools import registry, results
from copilot.tools.builtin import ask_user, read_file, run_sub_session, web_fetch
from tests.support.agent_doubles import InMemoryCompactor, ManualClock
from tests.support.agent_loop import Reciter, loop_of, outcome, play, say

NUMBERS = {
    "TURN_MAX_ROUNDS": 50,
    "TURN_MAX_SECONDS": 3_600,
    "TURN_BUDGET_MICRODOLLARS": 1_000_000,
    "HEARTBEAT_SECONDS": 15,
    "MAX_TOOL_WAIT_SECONDS": 300,
    "STREAM_IDLE_SECONDS": 600,
    "MODEL_FIRST_TOKEN_SECONDS": 120,
    "MODEL_CONNECT_SECONDS": 10,
    "TOOL_CALLS_PER_REPLY": 16,
    "TOOL_OUTPUT_CHARACTERS": 70_000,
    "TOOL_GROUP_CHARACTERS": 200_000,
    "LOOP_WINDOW_ROUNDS": 10,
    "LOOP_REPEATS": 5,
    "LOOP_WARN_AT": 3,
    "UNUSABLE_CALLS_IN_A_ROW": 5,
    "THINKING_TOKENS": 8_192,
    "FOLLOW_UP_CHARACTERS": 2_000,
    "FOLLOW_UPS_CHARACTERS": 6_000,
    "MESSAGE_CHARACTERS": 64_000,
    "RETRY_TRANSIENT_SECONDS": [2, 8, 20],
    "RETRY_RATE_SECONDS": [15, 45],
    "RETRY_BROKEN_SECONDS": [2],
    "COMPACTIONS_PER_TURN": 3,
    "FORCED_COMPACTIONS_PER_TURN": 2,
    "OUTPUT_CONTINUATIONS_PER_TURN": 2,
    "GOAL_CONTINUATIONS": 10,
    "TITLE_REFRESH_EXCHANGES": 0,
}


def test_the_numbers_are_those_of_the_rule(settings):
    """A0.7"""
    assert {name: getattr(settings, name) for name in NUMBERS} == NUMBERS


# --- each bites --------------------------------------------------------------------------------------


def test_a_turn_is_bound_by_the_settings(settings):
    """A0.7"""
    assert TurnLimits.from_settings(settings) == TurnLimits()
    settings.TOOL_CALLS_PER_REPLY, settings.UNUSABLE_CALLS_IN_A_ROW = 3, 4
    settings.LOOP_WINDOW_ROUNDS, settings.LOOP_REPEATS, settings.LOOP_WARN_AT = 7, 6, 2
    settings.COMPACTIONS_PER_TURN, settings.FORCED_COMPACTIONS_PER_TURN = 1, 0
    settings.OUTPUT_CONTINUATIONS_PER_TURN = 5
    settings.TURN_MAX_ROUNDS, settings.TURN_MAX_SECONDS = 9, 60.0
    assert TurnLimits.from_settings(settings) == TurnLimits(
        max_rounds=9,
        max_seconds=60.0,
        calls_per_reply=3,
        loop_window=7,
        loop_repeats=6,
        loop_warn_at=2,
        unusable_in_a_row=4,
        compactions=1,
        forced_compactions=0,
        continuations=5,
    )


async def test_a_model_is_asked_again_when_it_is_set(settings):
    """A0.7, A7.1: the schedules are lists of waits, one for each retry"""
    assert RetryPolicy.from_settings(settings) == RetryPolicy()
    settings.RETRY_TRANSIENT_SECONDS, settings.RETRY_BROKEN_SECONDS = [4, 40], [8, 16]
    clock, reciter = ManualClock(), Reciter(*[[ProviderFailure("overloaded")]] * 9)
    await play(loop_of(reciter, clock=clock, retry_policy=RetryPolicy.from_settings(settings)))
    assert len(reciter.requests) == 3
    assert [3 <= clock.slept[0] <= 5, 30 <= clock.slept[1] <= 50] == [True, True]
    assert RetryPolicy.from_settings(settings).schedule("no_response") == (8, 16)


def test_circles_are_warned_of_and_ended_as_often_as_is_set():
    """A0.7, A10.2: and the note says how often"""
    guards = LoopGuards(TurnLimits(loop_window=4, loop_repeats=2, loop_warn_at=2))
    call = ToolCall(call_id="c", tool="look", arguments={})
    same = {"c": outcome(call, "same")}
    rounds = [guards.record_tool_group([call], same, {}) for _ in range(2)]
    assert rounds[0] == ()
    assert "2 times" in rounds[1][0]
    assert guards.find_limit(next_round=3, seconds=0) is None
    guards.record_tool_group([call], same, {})
    assert guards.find_limit(next_round=4, seconds=0) == "loop_detected"


def test_unusable_calls_end_a_turn_as_soon_as_is_set():
    """A0.7, A10.3"""
    guards = LoopGuards(TurnLimits(unusable_in_a_row=2))
    for number in range(2):
        assert guards.find_limit(next_round=number + 1, seconds=0) is None
        call = ToolCall(call_id=f"c{number}", tool="look", arguments=None)
        guards.record_tool_group([call], {call.call_id: outcome(call, str(number))}, {})
    assert guards.find_limit(next_round=3, seconds=0) == "tool_calls_broken"


async def test_a_turn_is_shortened_as_often_as_is_set():
    """A0.7, A7.5: an overflow that may force nothing ends the turn at once"""
    compactor = InMemoryCompactor()
    reciter = Reciter([ProviderFailure("context_overflow")], say("Done."))
    parts = await play(loop_of(reciter, compactor=compactor, limits=TurnLimits(forced_compactions=0)))
    assert (compactor.tasks, parts[-1] == LoopAnswered()) == ([], False)


def test_follow_ups_have_the_room_that_is_set():
    """A0.7, A13.3"""
    room = queued_messages.FollowUpLimits(message=100, boundary=250)
    queued = [queued_messages.FollowUp(id=f"m{n}", text="x" * 100) for n in range(5)]
    assert len(queued_messages.select_follow_ups(queued, room)) == 2
    long = queued_messages.FollowUp(id="m", text="x" * 101)
    assert queued_messages.is_truncated(long, room)
    assert "the first 100 of 101 characters" in queued_messages.render_follow_ups([long], room)


def test_a_call_and_a_group_give_the_model_what_is_set(settings):
    """A0.7, A9.6: more than by default too"""
    settings.TOOL_OUTPUT_CHARACTERS, settings.TOOL_GROUP_CHARACTERS = 140_000, 200_000
    room = results.OutputBudget(2)
    first, cut = room.fit_output("x" * 300_000, "c1")
    assert cut
    assert 129_000 < len(first) <= 140_000
    second, cut = room.fit_output("x" * 300_000, "c2")
    assert len(first) + len(second) <= 200_000


def test_a_message_may_be_as_long_as_is_set(settings):
    """A0.7: bound at boot, for entry points without a framework"""
    settings.MESSAGE_CHARACTERS = 100
    commands.configure_message_limits(settings)
    try:
        assert commands.validate_text("x" * 100)
        with pytest.raises(InvalidRequest, match=r"up to 100 characters \(yours has 101\)"):
            commands.validate_text("x" * 101)
    finally:
        settings.MESSAGE_CHARACTERS = 64_000
        commands.configure_message_limits(settings)


async def test_models_are_waited_for_as_long_as_is_set(settings, monkeypatch: pytest.MonkeyPatch):
    """A0.7, A5.2"""
    settings.OPENAI_API_KEY, settings.ANTHROPIC_API_KEY = "k", "k"
    settings.MODEL_CONNECT_SECONDS, settings.MODEL_FIRST_TOKEN_SECONDS = 3.0, 45.0
    made = catalogue.build_from_settings(settings)
    assert [entry.first_token_timeout_seconds for entry in made.entries] == [45.0, 45.0]
    asked: list[float] = []
    real = http_stream.build_timeout

    def noted(idle_seconds: float, connect_seconds: float):
        asked.append(connect_seconds)
        return real(idle_seconds, connect_seconds)

    monkeypatch.setattr(http_stream, "build_timeout", noted)
    monkeypatch.setitem(catalogue._current, "catalogue", made)
    responses = CatalogueEntry(name="r", provider="openai_responses", model="r", credential="k")
    for entry in (*made.entries, responses):
        clients.get_provider(entry)
    await clients.close_all_clients()
    assert asked == [3.0, 3.0, 3.0]


def test_tools_say_the_numbers_that_are_set():
    """A0.7, A32.1"""
    asked = ask_user.AskUser(question="?", timeout_seconds=999)
    assert [ask_user.AskUser(question="?").timeout_seconds, asked.timeout_seconds] == [120, 300]
    told = run_sub_session.RunSubSession(prompt="p", wait_seconds=999)
    assert [run_sub_session.RunSubSession(prompt="p").wait_seconds, told.wait_seconds] == [60, 300]
    assert [read_file.MAX_CHARACTERS, web_fetch.MAX_CHARACTERS] == [50_000, 70_000]
    names = (
        "ask_user",
        "run_sub_session",
        "get_sub_session_result",
        "run_agent",
        "read_file",
        "web_fetch",
        "bash_exec",
    )
    said = {name: registry.find_tool(name).description for name in names}
    assert "120 s" in said["ask_user"]
    assert "(10 to 300)" in said["ask_user"]
    assert "at most 5 at a time" in said["run_sub_session"]
    for name in ("run_sub_session", "get_sub_session_result", "run_agent"):
        assert "0 to 300" in said[name]
    assert "50,000 characters" in said["read_file"]
    assert "at most 70,000" in said["web_fetch"]
    assert "unless you ask for up to 300" in said["bash_exec"]
