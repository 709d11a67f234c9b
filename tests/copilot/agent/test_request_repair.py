"""A request that was refused as it is goes out again, changed (A7.4, A4.4, A14.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from copilot.agent.guards import PriorRuns, SentRequest
from copilot.agent.outputs import LoopAnswered, LoopFailed, ModelCallStarted, NoticeAdded
from copilot.providers.base import (
    AssistantMessage,
    ImagePart,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    UserMessage,
)
from copilot.providers.learned_limits import LearnedLimits, LearnedLimitsCache
from copilot.realtime.events import ModelHealed, ModelRetrying, StepRetracted, TextStarted
from tests.support.agent_doubles import ManualClock
from tests.support.agent_loop import (
    ENTRY,
    Reciter,
    assert_well_ordered,
    call,
    calls,
    kept,
    loop_of,
    of,
    play,
    say,
)

THINKER = replace(ENTRY, can_reason=True, reasoning_style="effort", supports_images=True, credential="old")
CLAUDE = replace(THINKER, name="Claude", provider="anthropic", reasoning_style="budget")
SIGNED = [
    ReasoningDelta("hm"),
    ReasoningReplay('{"type": "thinking"}'),
    call("a", "look"),
    ReplyFinished("tool_calls"),
]
PICTURE = ImagePart(mime="image/png", data=b"x" * 2048, name="cat.png")


def refused(code, details=""):
    return [ProviderFailure(code, details=details, refused_before_work=True)]


def loop(reciter, entry=THINKER, **changes):
    return loop_of(reciter, **{"chain": (entry,), "thinking_tokens": 8192} | changes)


def efforts(reciter):
    return [(request.thinking_tokens > 0, request.effort) for request in reciter.requests]


def healings(parts):
    return [part.healing for part in of(parts, ModelHealed)]


async def test_an_effort_steps_down_until_it_is_accepted():
    """A7.4: 8,192 tokens mean medium"""
    reciter = Reciter(refused("effort_invalid"), refused("effort_invalid"), say("Hi."))
    clock = ManualClock()
    parts = await play(loop(reciter, clock=clock))
    assert efforts(reciter) == [(True, None), (True, "low"), (True, "minimal")]
    assert healings(parts) == ["effort", "effort"]
    assert (clock.slept, of(parts, ModelRetrying), of(parts, NoticeAdded)) == ([], [], [])
    assert parts[-1] == LoopAnswered()
    assert_well_ordered(parts)


async def test_effort_steps_down_three_times_at_most_the_last_time_to_none():
    """A7.4"""
    reciter = Reciter(*[refused("effort_invalid")] * 5)
    parts = await play(loop(reciter))
    assert efforts(reciter) == [(True, None), (True, "low"), (True, "minimal"), (False, None)]
    assert parts[-1] == LoopFailed(code="effort_invalid")


async def test_a_model_with_a_budget_has_no_levels_to_step_down():
    reciter = Reciter(refused("effort_invalid"), say("Hi."))
    await play(loop(reciter, CLAUDE))
    assert efforts(reciter) == [(True, None), (False, None)]


async def test_a_model_that_cannot_think_is_asked_without_thinking_and_only_once():
    """A7.4"""
    reciter = Reciter(refused("thinking_unsupported"), calls(call("a", "look")), say("Done."))
    parts = await play(loop(reciter))
    assert [request.thinking_tokens for request in reciter.requests] == [8192, 0, 0]
    assert healings(parts) == ["thinking"]
    parts = await play(loop(Reciter(*[refused("thinking_unsupported")] * 2)))
    assert parts[-1] == LoopFailed(code="thinking_unsupported")


@pytest.mark.parametrize("times", [1, 2])
async def test_a_bad_signature_is_healed_once_by_forgetting_what_was_thought(times):
    """A7.c3, A14.4"""
    reciter = Reciter(SIGNED, *[refused("thinking_signature_invalid")] * times, say("Done."))
    parts = await play(loop(reciter, CLAUDE))
    assert healings(parts) == ["signature"]
    assert len(reciter.requests) == 3  # the first of them was the round before
    before, after = reciter.requests[1:]
    assert [message.replay for message in before.messages if message.role == "assistant"] != [()]
    assert [message.replay for message in after.messages if message.role == "assistant"] == [()]
    assert (before.thinking_tokens, after.thinking_tokens) == (8192, 0)
    assert parts[-1] == (LoopAnswered() if times == 1 else LoopFailed(code="thinking_signature_invalid"))
    assert_well_ordered(parts)


async def test_once_its_thoughts_are_lost_anthropic_goes_without_thinking_until_the_turn_ends():
    """A14.4: a word of the user in between changes nothing"""
    reciter = Reciter(SIGNED, refused("thinking_signature_invalid"), say("One."), say("Two."))
    playing = loop(reciter, CLAUDE)
    await play(playing)
    playing.add_follow_ups([UserMessage(text="And now?")])
    await play(playing)
    assert [request.thinking_tokens for request in reciter.requests] == [8192, 8192, 0, 0]


def signed_before(*replay):
    """A conversation whose last reply asked for tools, which have answered."""
    made = ToolCall(call_id="a", tool="look", arguments={})
    group = ToolResultsMessage(results=(ToolResult(call_id="a", tool="look", content="seen"),))
    return [UserMessage(text="Look."), AssistantMessage(text="", calls=(made,), replay=replay), group]


async def test_thoughts_that_an_earlier_run_lost_stay_lost():
    """A7.4, A14.4, A3.9: what was stripped is not sent again, and healed no second time"""
    sent = SentRequest(model=CLAUDE.name, failure="thinking_signature_invalid")
    prior_runs = PriorRuns(calls=2, requests=(sent,), ran_tools=True)
    reciter = Reciter(refused("thinking_signature_invalid"))
    parts = await play(loop(reciter, CLAUDE, messages=signed_before("thought"), prior_runs=prior_runs))
    [request] = reciter.requests
    assert (request.thinking_tokens, request.messages[1].replay) == (0, ())
    assert parts[-1] == LoopFailed(code="thinking_signature_invalid")


@pytest.mark.parametrize(("replay", "thinks"), [(('{"type": "thinking"}',), 8192), ((), 0)])
async def test_a_tool_loop_whose_thoughts_are_missing_continues_without_thinking_in_a_later_run(
    replay, thinks
):
    """A14.4: Anthropic refuses a tool loop whose last reply lacks its thinking block"""
    reciter = Reciter(say("Seen."))
    prior_runs = PriorRuns(calls=1, ran_tools=True)
    await play(loop(reciter, CLAUDE, messages=signed_before(*replay), prior_runs=prior_runs))
    assert reciter.requests[0].thinking_tokens == thinks


async def test_a_level_that_an_earlier_run_had_to_lower_stays_low_and_counts():
    """A7.4: three steps in all; one that was accepted is known by the lesson and not taken twice"""
    tried = SentRequest(model=THINKER.name, failure="effort_invalid")
    reciter = Reciter(*[refused("effort_invalid")] * 2)
    parts = await play(loop(reciter, prior_runs=PriorRuns(calls=2, requests=(tried, tried))))
    assert efforts(reciter)[0] == (True, "minimal")
    assert (healings(parts), parts[-1]) == (["effort"], LoopFailed(code="effort_invalid"))
    lessons = LearnedLimitsCache()
    lessons.learn(THINKER, LearnedLimits(effort="low"))
    reciter = Reciter(say("Done."))
    await play(loop(reciter, prior_runs=PriorRuns(calls=2, requests=(tried,)), learned=lessons))
    assert efforts(reciter) == [(True, "low")]


async def test_rejected_images_become_words_that_name_file_type_and_size():
    """A7.4"""
    reciter = Reciter(refused("media_unsupported"), say("I cannot see it."))
    parts = await play(loop(reciter, messages=[UserMessage(text="Look", images=(PICTURE,))]))
    assert [request.messages[0].images for request in reciter.requests] == [(PICTURE,), ()]
    assert reciter.requests[1].messages[0].text == "Look\n\n[image not shown: cat.png, image/png, 2.0 KB]"
    assert healings(parts) == ["images"]


async def test_a_key_rotated_in_the_store_is_used_at_once_without_a_notice():
    """A7.c3"""

    async def store(entry):
        return "new"

    reciter = Reciter(refused("auth_failed"), say("Hi."))
    parts = await play(loop(reciter, credential=store))
    assert [request.entry.credential for request in reciter.requests] == ["old", "new"]
    assert healings(parts) == ["credentials"]
    assert of(parts, NoticeAdded) == []
    assert parts[-1] == LoopAnswered()


async def test_a_key_that_is_still_the_same_or_refused_again_fails_the_turn():
    """A7.4"""
    keys = iter(["new", "newer"])

    async def store(entry):
        return next(keys)

    same, renewed = Reciter(refused("auth_failed")), Reciter(*[refused("auth_failed")] * 3)
    assert (await play(loop(same)))[-1] == LoopFailed(code="auth_failed")
    assert (await play(loop(renewed, credential=store)))[-1] == LoopFailed(code="auth_failed")
    assert (len(same.requests), len(renewed.requests)) == (1, 2)


# --- learning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "lesson"),
    [
        ("effort_invalid", LearnedLimits(effort="low")),
        ("thinking_unsupported", LearnedLimits(thinks=False)),
        ("media_unsupported", LearnedLimits(sees=False)),
        ("thinking_signature_invalid", LearnedLimits()),
    ],
)
async def test_what_helped_is_learnt_and_the_next_turn_does_not_repeat_the_failing_request(code, lesson):
    """A4.4"""
    lessons = LearnedLimitsCache()
    first, second = Reciter(refused(code), say("Hi.")), Reciter(say("Hi again."))
    asked = {"messages": [UserMessage(text="Look", images=(PICTURE,))], "learned": lessons}
    await play(loop(first, **asked))
    assert lessons.recall(THINKER) == lesson
    parts = await play(loop(second, **asked | {"messages": [UserMessage(text="Look", images=(PICTURE,))]}))
    assert healings(parts) == []
    if lesson != LearnedLimits():
        assert second.requests[0] == first.requests[1]


async def test_what_did_not_help_is_not_learnt():
    lessons = LearnedLimitsCache()
    await play(loop(Reciter(refused("thinking_unsupported"), refused("bad_request")), learned=lessons))
    assert lessons.recall(THINKER) == LearnedLimits()


async def test_one_image_that_is_too_large_does_not_blind_the_next_turn():
    lessons = LearnedLimitsCache()
    large = refused("media_unsupported", "image exceeds 5 MB maximum")
    parts = await play(loop(Reciter(large, say("Too large.")), learned=lessons))
    assert healings(parts) == ["images"]
    assert lessons.recall(THINKER) == LearnedLimits()


async def test_a_learnt_effort_never_raises_the_one_asked_for():
    lessons = LearnedLimitsCache()
    lessons.learn(THINKER, LearnedLimits(effort="medium"))
    reciter = Reciter(say("Hi."))
    await play(loop(reciter, learned=lessons, thinking_tokens=1024))
    assert efforts(reciter) == [(True, "low")]


# --- bounds ------------------------------------------------------------------------------------------


async def test_healing_counts_among_the_requests_of_a_model_and_round():
    """A7.2: six for one model"""
    busy = [ProviderFailure("overloaded", refused_before_work=True)]
    heals = [refused("effort_invalid")] * 3 + [refused("media_unsupported")]
    reciter = Reciter(*heals, busy, busy, busy)
    parts = await play(loop(reciter))
    assert len(reciter.requests) == len(of(parts, ModelCallStarted)) == 6
    assert parts[-1] == LoopFailed(code="overloaded")


async def test_healing_counts_among_the_requests_of_a_turn():
    """A7.2: rounds + 20, those of earlier runs included; the twentieth is spent here"""
    reciter = Reciter(refused("thinking_unsupported"), refused("media_unsupported"))
    parts = await play(loop(reciter, prior_runs=PriorRuns(calls=19)))
    assert healings(parts) == ["thinking"]
    assert parts[-1] == LoopFailed(code="media_unsupported")


async def test_what_was_shown_before_a_healing_is_taken_back():
    """A7.3"""
    broken = [TextDelta("Half"), ProviderFailure("thinking_unsupported")]
    parts = await play(loop(Reciter(broken, say("Whole."))))
    assert of(parts, StepRetracted)[0].row_ids == [of(parts, TextStarted)[0].row_id]
    assert [row.content for row in kept(parts) if row.kind == "assistant" and not row.hidden] == ["Whole."]
    assert_well_ordered(parts)


async def test_a_healing_that_took_text_back_leaves_no_second_retraction():
    """A7.3"""
    broken = [[TextDelta("Half"), ProviderFailure(code)] for code in ("thinking_unsupported", "overloaded")]
    parts = await play(loop(Reciter(*broken)))
    assert len(of(parts, StepRetracted)) == 1
    assert parts[-1] == LoopFailed(code="overloaded")
