"""When a model has failed for good, the next of the chain continues (A7.6, A7.c1, A7.c5)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copilot.agent.fallback import FALLBACK_SCOPES
from copilot.agent.outputs import LoopAnswered, LoopFailed, ModelCallEnded, ModelCallStarted
from copilot.providers.anthropic import build_request_body
from copilot.providers.base import (
    FailureCode,
    ImagePart,
    ProviderFailure,
    ReasoningReplay,
    ReplyFinished,
    TextDelta,
    UserMessage,
)
from copilot.providers.failures import MAX_DETAILS_CHARACTERS
from copilot.realtime.events import ModelRetrying, ModelSwitched, StepRetracted
from tests.support.agent_doubles import ManualClock
from tests.support.agent_loop import (
    ENTRY,
    Reciter,
    Silence,
    assert_well_ordered,
    call,
    calls,
    kept,
    loop_of,
    of,
    play,
    say,
)

FIRST = replace(ENTRY, name="First", model="first", credential="a")
SECOND = replace(ENTRY, name="Second", model="second", credential="b")
THIRD = replace(ENTRY, name="Third", model="third", credential="c")
CLAUDE = replace(
    SECOND, name="Claude", provider="anthropic", can_reason=True, reasoning_style="budget", model="claude"
)


def failing(code, *, retry_after=None, details=""):
    return [ProviderFailure(code, retry_after_seconds=retry_after, details=details, refused_before_work=True)]


GONE = failing("model_not_found")


def loop(reciter, *chain, **changes):
    return loop_of(reciter, chain=chain or (FIRST, SECOND), **changes)


def asked(reciter):
    return [request.entry.name for request in reciter.requests]


def switches(parts):
    return [(part.from_model, part.to_model, part.failure_class) for part in of(parts, ModelSwitched)]


async def test_a_long_retry_after_goes_to_the_fallback_at_once_and_a_short_one_is_waited():
    """A7.c1"""
    clock = ManualClock()
    reciter = Reciter(failing("rate_limited", retry_after=300), say("Second here."))
    parts = await play(loop(reciter, clock=clock))
    assert switches(parts) == [("First", "Second", "rate_limited")]
    assert (clock.slept, asked(reciter)) == ([], ["First", "Second"])
    assert parts[-1] == LoopAnswered()
    assert_well_ordered(parts)
    reciter = Reciter(failing("rate_limited", retry_after=20), say("First here."))
    parts = await play(loop(reciter, clock=clock))
    assert (clock.slept, asked(reciter)) == ([20], ["First", "First"])


async def test_retries_come_first_and_each_model_has_its_own():
    """A7.1, A7.6"""
    busy = failing("overloaded")
    reciter = Reciter(*[busy] * 4, busy, say("Second here."))
    parts = await play(loop(reciter))
    assert asked(reciter) == ["First"] * 4 + ["Second"] * 2
    assert [part.attempt for part in of(parts, ModelRetrying)] == [1, 2, 3, 1]
    assert [part.number for part in of(parts, ModelCallStarted)] == [1, 2, 3, 4, 5, 6]


async def test_the_switch_holds_for_the_rest_of_the_turn_and_the_next_turn_starts_with_the_primary():
    """A7.6"""
    reciter = Reciter(GONE, calls(call("a", "look")), say("Done."), say("More."))
    playing = loop(reciter)
    await play(playing)
    playing.add_follow_ups([UserMessage(text="And?")])
    await play(playing)
    assert asked(reciter) == ["First", "Second", "Second", "Second"]
    assert playing.client.entry == SECOND
    again = Reciter(say("Back."))
    await play(loop(again))
    assert asked(again) == ["First"]


async def test_a_failure_after_streamed_text_is_retracted_and_the_next_model_answers():
    """A7.c2, A7.3 across models"""
    broken = [TextDelta("x" * 200), ProviderFailure("unknown")]
    parts = await play(loop(Reciter(broken, say("The answer."))))
    assert len(of(parts, StepRetracted)) == len(of(parts, ModelSwitched)) == 1
    visible = [row.content for row in kept(parts) if row.kind == "assistant" and not row.hidden]
    assert visible == ["The answer."]
    assert [part.entry for part in of(parts, ModelCallEnded)] == [FIRST, SECOND]
    assert_well_ordered(parts)


async def test_a_second_retraction_in_a_round_is_not_made_for_a_switch_either():
    """A7.3"""
    broken = [TextDelta("partial"), ProviderFailure("overloaded")]
    parts = await play(loop(Reciter(broken, broken)))
    assert (len(of(parts, StepRetracted)), of(parts, ModelSwitched)) == (1, [])
    assert parts[-1] == LoopFailed(code="overloaded")


async def test_a_stop_during_a_wait_is_not_kept_waiting():
    """A7.c2: the sleep is given up, and nothing is left open"""

    class Stuck(ManualClock):
        async def sleep(self, seconds):
            reached.set()
            await asyncio.Event().wait()

    reached = asyncio.Event()
    playing = loop(Reciter(failing("overloaded"), [Silence()]), clock=Stuck())
    task = asyncio.ensure_future(play(playing))
    await reached.wait()
    assert playing.phase == "retry"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (playing.unrecorded_call(), playing.open_step) == (None, None)


# --- which classes, which entries --------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(set(get_args(FailureCode)) - set(FALLBACK_SCOPES)))
async def test_classes_that_another_model_would_not_help_end_the_turn(code):
    """A6.1"""
    reciter = Reciter(*[failing(code)] * 5)
    parts = await play(loop(reciter))
    assert of(parts, ModelSwitched) == []
    assert parts[-1] == LoopFailed(code=code)


@pytest.mark.parametrize("code", ["auth_failed", "quota_exhausted"])
async def test_entries_that_share_the_failed_credential_are_passed_over(code):
    """A7.6"""
    reciter = Reciter(failing(code), GONE, say("Third here."))
    chain = (FIRST, replace(SECOND, credential="a"), THIRD, replace(SECOND, name="4", credential="a"))
    parts = await play(loop(reciter, *chain, replace(THIRD, name="Fifth")))
    assert asked(reciter) == ["First", "Third", "Fifth"]
    assert parts[-1] == LoopAnswered()


async def test_other_classes_may_go_on_with_the_same_credential():
    reciter = Reciter(GONE, say("Hi."))
    await play(loop(reciter, FIRST, replace(SECOND, credential="a")))
    assert asked(reciter) == ["First", "Second"]


async def test_entries_without_tools_or_with_too_small_a_window_are_passed_over():
    """A7.6"""
    small = replace(SECOND, context_window=100)
    reciter = Reciter(GONE, say("Third here."))
    chain = (FIRST, replace(SECOND, supports_tools=False), small, replace(THIRD, context_window=1000))
    await play(loop(reciter, *chain, text="x" * 800))
    assert asked(reciter) == ["First", "Third"]


# --- what the next model is given --------------------------------------------------------------------


async def test_images_become_placeholders_for_a_model_that_sees_none():
    """A7.6"""
    picture = ImagePart(mime="image/png", data=b"x" * 1024, name="cat.png")
    reciter = Reciter(GONE, say("Hm."))
    seeing = replace(FIRST, supports_images=True)
    await play(loop(reciter, seeing, SECOND, messages=[UserMessage(text="", images=(picture,))]))
    first, second = (request.messages[0] for request in reciter.requests)
    assert first.images == (picture,)
    assert second == UserMessage(text="[image not shown: cat.png, image/png, 1.0 KB]")


async def test_replay_data_of_another_model_is_stripped():
    """A7.6, A14.4"""
    signed = [ReasoningReplay('{"type": "thinking"}'), call("a", "look"), ReplyFinished("tool_calls")]
    reciter = Reciter(signed, GONE, say("Done."))
    await play(loop(reciter))
    replays = [[m.replay for m in r.messages if m.role == "assistant"] for r in reciter.requests]
    assert replays == [[], [('{"type": "thinking"}',)], [()]]


async def test_a_fallback_to_anthropic_inside_a_tool_loop_goes_without_thinking():
    """A14.c1: in round 3, and until the turn ends"""
    looking = [calls(call(name, "look")) for name in "ab"]
    reciter = Reciter(*looking, GONE, calls(call("c", "look")), say("Done."))
    await play(loop(reciter, replace(FIRST, can_reason=True), CLAUDE, thinking_tokens=8192))
    assert [request.thinking_tokens for request in reciter.requests] == [8192, 8192, 8192, 0, 0]
    assert "thinking" not in build_request_body(reciter.requests[3])


async def test_a_fallback_to_anthropic_before_any_tool_thinks():
    reciter = Reciter(GONE, say("Done."))
    await play(loop(reciter, FIRST, CLAUDE, thinking_tokens=8192))
    assert [request.thinking_tokens for request in reciter.requests] == [0, 8192]


# --- when none is left -------------------------------------------------------------------------------


async def test_when_all_fail_the_first_class_is_reported_with_the_models_tried():
    """A7.c5"""
    first, second = failing("model_not_found", details="no such model"), failing("quota_exhausted")
    parts = await play(loop(Reciter(first, second, failing("bad_request")), FIRST, SECOND, THIRD))
    assert parts[-1] == LoopFailed(
        code="model_not_found",
        details="no such model Models tried: First (model_not_found), Second (quota_exhausted), Third (bad_request).",
    )
    assert_well_ordered(parts)


async def test_a_refusal_by_the_next_model_is_reported_as_one():
    parts = await play(loop(Reciter(GONE, say("", finish="refused"))))
    assert parts[-1].code == "refused"
    assert "First (model_not_found)" in parts[-1].details


async def test_the_list_of_models_fits_into_the_details():
    """A6.2"""
    reciter = Reciter(failing("unknown", details="x" * MAX_DETAILS_CHARACTERS), GONE)
    details = (await play(loop(reciter)))[-1].details
    assert len(details) == MAX_DETAILS_CHARACTERS
    assert details.endswith("… Models tried: First (unknown), Second (model_not_found).")


async def test_a_round_sends_ten_requests_at_most_and_then_fails_with_the_last_class():
    """A7.2"""
    busy, empty = failing("overloaded", retry_after=0), failing("rate_limited", retry_after=0)
    reciter = Reciter(*[busy] * 4, *[busy] * 4, *[empty] * 9)
    parts = await play(loop(reciter, FIRST, SECOND, THIRD, replace(THIRD, name="Fourth")))
    assert asked(reciter) == ["First"] * 4 + ["Second"] * 4 + ["Third"] * 2
    assert parts[-1].code == "rate_limited"


FAILURES = st.tuples(st.sampled_from(get_args(FailureCode)), st.booleans())


@given(st.lists(FAILURES, max_size=25))
def test_whatever_fails_the_events_are_in_order_and_the_bounds_hold(failures):
    """A33.c4, A2.7, A2.8, A7.2: one round, three models that can be healed in every way"""
    lines = [[*[TextDelta("Half")] * shown, ProviderFailure(code)] for code, shown in failures]
    reciter = Reciter(*lines, say("Done."))
    thinking = [replace(entry, can_reason=True, reasoning_style="effort") for entry in (FIRST, SECOND, THIRD)]
    parts = asyncio.run(play(loop(reciter, *thinking, thinking_tokens=8192)))
    assert_well_ordered(parts)
    assert len(reciter.requests) <= 10
    assert max(Counter(asked(reciter)).values()) <= 6
    assert len(of(parts, StepRetracted)) <= 1
