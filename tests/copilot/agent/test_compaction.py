"""A17, A7.5: long conversations become short, and nothing that people see is lost."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from copilot.agent import compaction
from copilot.agent.compaction import (
    CompactionSource,
    build_compacted_messages,
    build_summary_request,
    find_summary_problem,
)
from copilot.agent.guards import PriorRuns
from copilot.agent.interfaces import CompactionTask
from copilot.agent.outputs import (
    CompactionFailed,
    CompactionSucceeded,
    LoopAnswered,
    LoopFailed,
    NoteAdded,
    NoticeAdded,
)
from copilot.agent.token_meters import ContextWindowMeter, is_window_full, restore_window_meter
from copilot.chat import compaction_requests, message_history, slash_commands, stop
from copilot.chat.message_rows import MessageRow
from copilot.models import Message, ModelCall, Session, Turn
from copilot.providers.base import (
    AssistantMessage,
    CatalogueEntry,
    ModelRequest,
    ProviderFailure,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    UsageReported,
    UserMessage,
)
from copilot.providers.request_validation import find_request_problems
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedFinish,
    ScriptedText,
    ScriptedUsage,
)
from copilot.realtime.events import ContextCompacted, ContextCompacting, ContextCompactionFailed, StepFinished
from copilot.realtime.payloads import ContextUsage, Todo, Tokens
from tests.support import factories
from tests.support.agent_doubles import InMemoryBudget, InMemoryCompactor
from tests.support.agent_loop import (
    Reciter,
    assert_well_ordered,
    call,
    calls,
    loop_of,
    of,
    play,
    say,
)
from tests.support.agent_loop import (
    kinds as kinds_of,
)
from tests.support.compaction import NEARLY_FULL, WINDOW, fill_context, request_compaction
from tests.support.turn_engine import (
    assert_same_page,
    command,
    cue,
    ended,
    folded,
    fresh,
    is_busy,
    kinds,
    notices,
    queue,
    quiet,
    start,
    told,
    until,
)

WINDOWED = CatalogueEntry(name="Recital", provider="scripted", model="recital", context_window=WINDOW)
SHORT = (UserMessage(text="<conversation_summary>\nall\n</conversation_summary>\n\nHello"),)


# --- when it is due ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "left"), [(128_000, 25_600), (200_000, 40_000), (1_000_000, 20_000), (200_001, 20_000)]
)
def test_it_is_due_exactly_when_this_much_is_left(window, left):
    """A17.c1"""
    assert is_window_full(window=window, used=window - left)
    assert not is_window_full(window=window, used=window - left - 1)


def test_a_window_of_unknown_size_is_never_too_full():
    """A17.c1, A4.c1"""
    assert not is_window_full(window=0, used=10**9)


def test_what_is_used_is_the_last_prompt_its_reply_and_an_estimate_of_what_came_since():
    """A17.1, A17.8"""
    fullness = ContextWindowMeter(10)
    fullness.record_reply(
        Tokens(input=100, cache_read=900, cache_write_5m=10, cache_write_1h=1, output=50, reasoning=20),
        estimated=False,
    )
    fullness.add_characters(400)
    assert (fullness.used, fullness.estimated) == (1_161, False)
    fullness.record_compaction(30)
    assert (fullness.used, fullness.estimated) == (30, True)


def rows(*places: int, content="x" * 40):
    return [MessageRow(id=str(place), kind="user", content=content, sequence=place) for place in places]


def test_the_last_turns_figure_holds_while_its_rows_are_read():
    """A17.1"""
    use = ContextUsage(tokens=500, window=1_000, through=7, estimated=False)
    assert restore_window_meter(use, rows(3, 7)).used == 500
    assert restore_window_meter(use, rows(3, 7, 18)).used == 510
    assert restore_window_meter(use, rows(3, 18)) is None
    assert restore_window_meter(ContextUsage(), rows(3)) is None


# --- the loop alone ----------------------------------------------------------------------------------


def full_round(call_id):
    return [UsageReported(NEARLY_FULL), *calls(call(call_id, "look"))]


def short(tokens=1_000):
    return CompactionSucceeded(messages=SHORT, tokens=tokens)


async def test_a_full_window_is_compacted_before_the_next_call_and_the_turn_continues():
    """A17.3, A17.c2"""
    compactor = InMemoryCompactor(short())
    reciter = Reciter(full_round("1"), say("Done."))
    parts = await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor))
    assert parts[-1] == LoopAnswered()
    [task] = compactor.tasks
    assert (task.tokens_before >= 85_100, task.forced, len(task.messages)) == (True, False, 3)
    [note] = of(parts, NoteAdded)
    assert reciter.requests[1].messages[0].text.startswith(SHORT[0].text)
    assert note.text in reciter.requests[1].messages[0].text
    assert_well_ordered(parts)


async def test_a_window_with_room_is_left_alone():
    compactor = InMemoryCompactor(short())
    reciter = Reciter([UsageReported(Tokens(input=70_000)), *calls(call("1", "look"))], say("Done."))
    await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor))
    assert compactor.tasks == []


async def test_a_failed_one_is_reported_once_and_the_turn_continues_uncompacted():
    """A17.5"""
    compactor = InMemoryCompactor(CompactionFailed(reason="the summary is empty"))
    reciter = Reciter(full_round("1"), full_round("2"), say("Done."))
    parts = await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor))
    assert parts[-1] == LoopAnswered()
    assert len(compactor.tasks) == len(of(parts, ContextCompactionFailed)) == 1
    assert [notice.code for notice in of(parts, NoticeAdded)] == ["compaction_failed"]


async def test_a_turn_is_shortened_three_times_at_most():
    """A17.7"""
    compactor = InMemoryCompactor(*[short() for _ in range(5)])
    reciter = Reciter(*(full_round(str(number)) for number in range(5)), say("Done."))
    parts = await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor))
    assert parts[-1] == LoopAnswered()
    assert len(compactor.tasks) == 3


async def test_what_earlier_runs_of_the_turn_shortened_counts():
    """A17.7, A7.5: a pause or a lost worker gives no further three"""
    compactor = InMemoryCompactor(*[short() for _ in range(5)])
    reciter = Reciter(*(full_round(str(number)) for number in range(5)), say("Done."))
    parts = await play(
        loop_of(reciter, chain=(WINDOWED,), compactor=compactor, prior_runs=PriorRuns(compactions=2))
    )
    assert parts[-1] == LoopAnswered()
    assert len(compactor.tasks) == 1


async def test_what_earlier_runs_of_the_turn_had_to_shorten_counts_among_the_forced():
    """A7.5, A3.9"""
    compactor = InMemoryCompactor(*[short() for _ in range(5)])
    reciter = Reciter(*[[ProviderFailure("context_overflow")] for _ in range(5)])
    prior_runs = PriorRuns(compactions=1, forced_compactions=1)
    parts = await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor, prior_runs=prior_runs))
    assert (parts[-1], len(compactor.tasks)) == (LoopFailed(code="context_full"), 1)


async def test_a_summary_that_failed_in_an_earlier_run_is_not_retried_automatically():
    """A17.5: reported once, and the turn continues"""
    compactor = InMemoryCompactor(short())
    reciter = Reciter(full_round("1"), say("Done."))
    prior_runs = PriorRuns(compactions=1, gave_up_compacting=True)
    parts = await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor, prior_runs=prior_runs))
    assert (parts[-1], compactor.tasks) == (LoopAnswered(), [])


async def test_an_overflow_is_shortened_and_sent_again_in_the_same_round():
    """A7.5"""
    compactor = InMemoryCompactor(short())
    reciter = Reciter([ProviderFailure("context_overflow")], say("Done."))
    loop = loop_of(reciter, chain=(WINDOWED,), compactor=compactor)
    parts = await play(loop)
    assert (parts[-1], loop.rounds, compactor.tasks[0].forced) == (LoopAnswered(), 1, True)
    assert [step.finish_reason for step in of(parts, StepFinished)] == ["failed", "stop"]
    assert_well_ordered(parts)


async def test_overflow_for_ever_ends_after_two_forced_ones():
    """A7.c4"""
    compactor = InMemoryCompactor(*[short() for _ in range(9)])
    reciter = Reciter(*[[ProviderFailure("context_overflow")] for _ in range(9)])
    parts = await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor))
    assert parts[-1] == LoopFailed(code="context_full")
    assert len(compactor.tasks) == 2
    assert len(reciter.requests) + len(compactor.tasks) <= 10
    assert_well_ordered(parts)


async def test_an_overflow_that_cannot_be_shortened_ends_the_turn():
    """A7.5"""
    compactor = InMemoryCompactor(CompactionFailed(reason="the summary saves too little space"))
    parts = await play(
        loop_of(Reciter([ProviderFailure("context_overflow")]), chain=(WINDOWED,), compactor=compactor)
    )
    assert parts[-1] == LoopFailed(code="context_full")
    assert kinds_of(parts).count("context.compaction_failed") == 1


async def test_a_context_that_cannot_be_compacted_moves_to_a_model_with_a_larger_window():
    """A6.1, A7.6: only with a larger window; without one the conversation is full"""
    failed = CompactionFailed(reason="the summary saves too little space")
    entries = [
        replace(WINDOWED, name=name, context_window=window)
        for name, window in (("Same", 100_000), ("Unknown", 0), ("Larger", 200_000))
    ]
    for chain, names, ending in (
        ((WINDOWED, *entries), [WINDOWED.name, "Larger"], LoopAnswered()),
        ((WINDOWED, *entries[:2]), [WINDOWED.name], LoopFailed(code="context_full")),
    ):
        reciter = Reciter([ProviderFailure("context_overflow")], say("Done."))
        parts = await play(loop_of(reciter, chain=chain, compactor=InMemoryCompactor(failed)))
        assert [request.entry.name for request in reciter.requests] == names
        assert type(parts[-1]) is type(ending)
        assert_well_ordered(parts)


async def test_a_budget_spent_on_the_summary_ends_the_turn():
    """A10.4"""
    budget = InMemoryBudget(10, 990, budget=1_000)
    reciter = Reciter(full_round("1"))
    parts = await play(
        loop_of(reciter, chain=(WINDOWED,), compactor=InMemoryCompactor(short()), budget=budget)
    )
    assert parts[-1] == LoopFailed(code="budget_reached")


async def test_a_limit_that_a_forced_summary_reaches_ends_the_turn_before_the_next_call():
    """B6.10, A10.6: asked before the call that is made again; what was said before makes it an answer"""
    overflow = [ProviderFailure("context_overflow")]
    for said, looks, ending in (
        ([], 1, LoopFailed(code="limit_reached", details="Reached.")),
        ([calls(call("1", "look"), text="Looking.")], 2, LoopAnswered(limit_code="limit_reached")),
    ):
        reciter = Reciter(*said, overflow, say("Too much."))
        budget = InMemoryBudget(limit_after=looks)
        compactor = InMemoryCompactor(short())
        parts = await play(loop_of(reciter, chain=(WINDOWED,), compactor=compactor, budget=budget))
        assert (len(reciter.requests), parts[-1]) == (len(said) + 1, ending)
        assert_well_ordered(parts)


# --- the request for a summary -----------------------------------------------------------------------

TALK = (
    UserMessage(text="Read it."),
    AssistantMessage(text="Reading.", calls=(ToolCall(call_id="1", tool="look", arguments={"at": "x"}),)),
    ToolResultsMessage(results=(ToolResult(call_id="1", tool="look", content="y" * 10_000),)),
)


def task(messages=TALK, *, window=WINDOW, forced=False, before=90_000, focus="", most=0):
    entry = CatalogueEntry(
        name="R", provider="scripted", model="r", context_window=window, max_output_tokens=most
    )
    return CompactionTask(
        entry=entry, messages=messages, fixed_tokens=500, tokens_before=before, forced=forced, focus=focus
    )


def text_of(request: ModelRequest) -> str:
    return "\n".join(
        message.text for message in request.messages if not isinstance(message, ToolResultsMessage)
    )


def test_the_request_holds_history_instruction_todos_and_focus_but_no_tools():
    """A17.2"""
    request = build_summary_request(
        task(focus="the colours", most=32_000), [Todo(text="Paint", status="in_progress")]
    )
    assert find_request_problems(request) == []
    assert (request.tools, request.thinking_tokens, request.entry.max_output_tokens) == ((), 0, 8_192)
    text = text_of(request)
    for part in ("Read it.", '[called look with {"at":"x"}]', "y" * 10_000, "Goals", "Preferences"):
        assert part in text
    assert "[in_progress] Paint" in text
    assert "todos_write" in text
    assert "the colours" in text


def test_a_server_that_takes_no_limit_of_its_output_is_given_none():
    """A4.1: some refuse the field, and the summary with it"""
    assert build_summary_request(task(), []).entry.max_output_tokens == 0


def test_an_empty_list_is_never_spoken_of():
    """A25.3: neither where the summary is asked for nor in what follows it"""
    request = build_summary_request(task(), [])
    kept = build_compacted_messages("All is said.", CompactionSource(anchor=1, requests=(), todos=()), {})
    assert "todos_write" not in text_of(request)
    assert "current to-do list" not in text_of(request)
    assert "todos_write" not in "".join(message.text for message in kept)


def test_what_does_not_fit_loses_tool_output_first_and_then_its_beginning():
    """A17.2"""
    whole = compaction.fit_conversation(TALK, tokens=10_000)
    cut = compaction.fit_conversation(TALK, tokens=800)
    least = compaction.fit_conversation((*TALK, UserMessage(text="And now this.")), tokens=10)
    assert "y" * 10_000 in whole[-1].text
    assert "y" * 2_000 + compaction.TRUNCATION_MARK in cut[-1].text
    assert "y" * 2_001 not in cut[-1].text
    assert least[0].text.startswith(compaction.LEFT_OUT_NOTE)
    assert least[-1].text.endswith("And now this.")


@pytest.mark.parametrize(
    ("text", "asked", "after", "reason"),
    [
        ("All of it.", task(), 60_000, ""),
        ("All of it.", task(), 60_001, "the compacted conversation still fills the context window"),
        ("", task(), 10, "the summary is empty"),
        ("All of it.", task(forced=True, before=60_000), 40_000, ""),
        ("All of it.", task(forced=True, before=60_000), 40_001, "the summary saves too little space"),
        ("All of it.", task(window=0), 10**9, ""),
        ("All of it.", task(window=0, forced=True, before=1_000), 900, "the summary saves too little space"),
    ],
)
def test_a_summary_counts_only_if_it_helps(text, asked, after, reason):
    """A17.4, A7.5"""
    assert find_summary_problem(text, asked, tokens_after=after) == reason


# --- the whole engine --------------------------------------------------------------------------------


def is_summary(request: ModelRequest) -> bool:
    return "You write the summary" in request.system


def test_compaction_in_the_middle_of_a_turn(rig, model, small_window, fetch):
    """A17.c2, A17.3, A17.4: one turn, one user row, summary + request + continuation, todos, rows unchanged"""
    session = factories.session()
    Session.objects.filter(pk=session.pk).update(todos=[{"text": "Paint it", "status": "pending"}])
    before = fresh(session)
    for number in range(3):
        model.will(ScriptedCall("fetch", {"note": str(number)}), ScriptedUsage(Tokens(input=10)))
    fill_context(model)
    model.will(
        ScriptedText("Everything so far. <conversation_summary>"),
        ScriptedUsage(Tokens(input=80_000, output=9)),
    )
    model.will(ScriptedText("Done."))
    turn = ended(start(session, "Paint the ship blue"))
    assert (turn.status, len(model.requests), fetch.runs) == ("succeeded", 6, 4)
    assert [is_summary(request) for request in model.requests] == [False] * 4 + [True, False]
    assert "[pending] Paint it" in model.said_to(4)
    after = model.requests[5].messages
    assert len(after) == 1
    text = after[0].text
    assert text.startswith("<conversation_summary>\nEverything so far.")
    assert text.count("<conversation_summary>") == text.count("Paint the ship blue") == 1
    assert text.index("</conversation_summary>") < text.index("Paint the ship blue") < text.index("Go on")
    assert "[pending] Paint it" in text
    assert kinds(session).count("user") == 1
    assert kinds(session).count("tool_result") == 4
    assert [call.purpose for call in ModelCall.objects.filter(turn=turn).order_by("number")] == [
        "reply"
    ] * 4 + ["compaction", "reply"]
    [compacting, compacted] = told(session.pk, "context.compacting", "context.compacted")
    assert isinstance(compacting, ContextCompacting)
    assert isinstance(compacted, ContextCompacted)
    assert compacted.tokens_after < compacted.tokens_before == compacting.tokens_before
    assert_same_page(folded(before, session), fresh(session))


def test_the_next_turn_reads_what_the_running_one_read(rig, model, small_window, fetch):
    """A17.3, A16.6: rows and memory give the same conversation, and wrappers never nest"""
    session = factories.session()
    fill_context(model)
    model.will(ScriptedText("First summary."), ScriptedUsage(Tokens(input=80_000)))
    model.will(ScriptedText("Half."), ScriptedCall("fetch"), ScriptedUsage(NEARLY_FULL))
    model.will(ScriptedText("Second summary."), ScriptedUsage(Tokens(input=80_000)))
    model.will(ScriptedText("Done."), ScriptedUsage(Tokens(input=500)))
    ended(start(session, "Paint it"))
    ended(start(session, "And now?"))
    last, then = model.requests[-2].messages, model.requests[-1].messages
    assert then[: len(last)] == last
    assert [type(message).__name__ for message in then] == ["UserMessage", "AssistantMessage", "UserMessage"]
    assert "First summary" not in then[0].text
    assert then[0].text.count("<conversation_summary>") == then[0].text.count("Paint it") == 1


def test_a_turn_begins_with_what_the_last_one_left(rig, model, small_window):
    """A17.1: the provider's own count outlives the turn, and the next call is preceded by a summary"""
    session = factories.session()
    model.will(ScriptedText("Long."), ScriptedUsage(Tokens(input=70_000, output=100)))
    ended(start(session, "Hello"))
    session.refresh_from_db()
    assert session.context["tokens"] == 70_100
    assert not session.context["estimated"]
    model.will(ScriptedText("So far."), ScriptedUsage(Tokens(input=80_000)))
    model.will(ScriptedText("Aye."), ScriptedUsage(Tokens(input=100)))
    turn = ended(start(session, "And now? " + "x" * 40_000))
    assert [is_summary(request) for request in model.requests] == [False, True, False]
    assert [call.purpose for call in ModelCall.objects.filter(turn=turn).order_by("number")] == [
        "compaction",
        "reply",
    ]
    assert "Go on" not in model.said_to()


def test_a_turn_that_leaves_a_full_window_is_followed_by_a_summary(rig, model, small_window):
    """A17.1, A3.7: at turn end, and after it"""
    session = factories.session()
    model.will(ScriptedText("Long."), ScriptedUsage(NEARLY_FULL))
    model.will(ScriptedText("So far."), ScriptedUsage(Tokens(input=80_000)))
    first = ended(start(session, "Hello"))
    until(lambda: ("compaction", first.pk) in rig.errands)
    rig.run_errands()
    until(lambda: "summary" in kinds(session))
    quiet(session)
    second = Turn.objects.exclude(pk=first.pk).get(session=session)
    assert (second.purpose, second.status) == ("compaction", "succeeded")
    assert list(ModelCall.objects.filter(turn=second).values_list("purpose", flat=True)) == ["compaction"]
    session.refresh_from_db()
    assert session.context["tokens"] < 20_000
    assert session.context["estimated"]
    ended(start(session, "And now?"))
    text = model.requests[-1].messages[0].text
    assert "So far." in text
    assert "Hello" not in text


# --- on request --------------------------------------------------------------------------------------


def test_a_person_has_the_conversation_summarised(rig, model):
    """A17.6: the focus is in the request, the transcript stays whole, and what comes meanwhile waits"""
    session = factories.session()
    ended(start(session, "Paint it"))
    before, page = fresh(session), kinds(session)
    model.will(cue(1), ScriptedText("They paint."), ScriptedUsage(Tokens(input=10)))
    response = request_compaction(session.owner, session, focus="colours")
    body = response.json()
    assert (response.status_code, body["state"]) == (202, "started")
    model.reaches(1)
    queue(session, "And now?")
    model.give(1)
    assert ended(UUID(body["turn_id"])).status == "succeeded"
    quiet(session)
    assert "colours" in model.said_to(1)
    assert "interrupted" not in model.said_to(1)
    assert kinds(session) == [*page, "summary", "user", "assistant"]
    assert "They paint." in model.said_to(2)
    assert "Paint it" not in model.said_to(2)
    assert_same_page(folded(before, session), fresh(session))


def test_nothing_to_compact_is_said(rig, model):
    """A17.6"""
    session = factories.session()
    response = request_compaction(session.owner, session)
    assert (response.status_code, response.json()["state"]) == (200, "nothing_to_compact")
    ended(start(session, "Hello"))
    ended(compaction_requests.request_compaction(session.owner_id, session.pk).turn_id)
    quiet(session)
    assert compaction_requests.request_compaction(session.owner_id, session.pk).state == "nothing_to_compact"
    assert not is_busy(session)


def test_a_busy_session_is_not_compacted(rig, model):
    """A17.6"""
    session = factories.session()
    model.will(cue(1), ScriptedText("Done."))
    turn_id = start(session)
    model.reaches(1)
    response = request_compaction(session.owner, session)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "session_busy")
    model.give(1)
    ended(turn_id)


def test_another_user_finds_no_session_to_compact(rig):
    session = factories.session()
    response = request_compaction(factories.bob(), session)
    assert response.status_code == 404


def test_compact_can_be_typed_and_stopped(rig, model):
    """A30.2, A17.5: a stop leaves no summary"""
    session = factories.session()
    ended(start(session, "Hello"))
    model.will(cue(1), ScriptedText("Never."))
    obeyed = slash_commands.submit_input(command(session, "/compact the colours"))
    assert isinstance(obeyed, slash_commands.CommandResult)
    model.reaches(1)
    stop.stop_session(session.owner_id, session.pk)
    assert ended(obeyed.turn_id).status == "cancelled"
    assert "summary" not in kinds(session)
    assert ended(start(session, "Again")).status == "succeeded"
    assert "Hello" in model.said_to()


def test_a_summary_on_request_that_fails_says_why(rig, model):
    """A17.4"""
    session = factories.session()
    ended(start(session, "Hello"))
    model.will(ScriptedFailure("overloaded"))
    turn = ended(compaction_requests.request_compaction(session.owner_id, session.pk).turn_id)
    assert (turn.status, turn.failure_code, notices(session)) == (
        "failed",
        "compaction_failed",
        ["compaction_failed"],
    )
    assert ended(start(session, "Again")).status == "succeeded"


def test_a_stop_during_it_leaves_no_summary_and_the_next_turn_reads_everything(
    rig, model, small_window, fetch
):
    """A17.c2, A17.5, A1.3"""
    session = factories.session()
    fill_context(model)
    model.will(cue(1), ScriptedText("Never."))
    turn_id = start(session, "Paint it")
    model.reaches(1)
    stop.stop_session(session.owner_id, session.pk)
    assert ended(turn_id).status == "cancelled"
    assert "summary" not in kinds(session)
    until(lambda: ModelCall.objects.filter(turn=turn_id, purpose="compaction", aborted=True).exists())
    ended(start(session, "Go on"))  # as full as before, so it begins with a summary of everything
    assert is_summary(model.requests[2])
    assert "errand fetch" in model.said_to(2)


def test_a_message_that_comes_during_it_is_read_after_the_summary_and_once(rig, model, small_window, fetch):
    """A17.c3, A17.7"""
    session = factories.session()
    fill_context(model)
    model.will(cue(1), ScriptedText("So far."), ScriptedUsage(Tokens(input=80_000)))
    model.will(ScriptedText("Done."), ScriptedUsage(Tokens(input=100)))
    turn_id = start(session, "Paint it")
    model.reaches(1)
    queue(session, "In blue")
    model.give(1)
    ended(turn_id)
    quiet(session)
    said = model.said_to(2)
    assert said.count("In blue") == 1
    assert said.index("So far.") < said.index("In blue")
    rows = list(Message.objects.filter(session=session, sequence__isnull=False).order_by("sequence"))
    assert [row.content for row in rows if row.kind in ("summary", "user")] == [
        "Paint it",
        "So far.",
        "In blue",
    ]


def test_an_empty_summary_is_a_failure_without_a_row(rig, model, small_window, fetch):
    """A17.c3"""
    session = factories.session()
    fill_context(model)
    model.will(ScriptedUsage(Tokens(input=80_000)), ScriptedText(" "))
    model.will(ScriptedText("Done."))
    assert ended(start(session)).status == "succeeded"
    assert "summary" not in kinds(session)
    assert notices(session) == ["compaction_failed"]
    [failed] = told(session.pk, "context.compaction_failed")
    assert isinstance(failed, ContextCompactionFailed)


@pytest.mark.parametrize(("finish", "tries"), [("refused", 1), ("overflow", 2)])
def test_what_a_model_says_instead_of_a_summary_is_none(rig, model, small_window, fetch, finish, tries):
    """A17.4, A6.1, A17.2: words about a refusal, or the beginning of what did not fit, stand for no conversation"""
    session = factories.session()
    fill_context(model)
    for _ in range(tries):
        model.will(ScriptedText("I cannot help with that."), ScriptedFinish(finish))
    model.will(ScriptedText("Done."))
    assert ended(start(session)).status == "succeeded"
    assert ("summary" in kinds(session), notices(session)) == (False, ["compaction_failed"])
    assert [is_summary(request) for request in model.requests] == [False, *[True] * tries, False]


def test_overflow_for_ever_loses_nothing_and_a_new_message_is_possible(rig, model, small_window, fetch):
    """A7.c4"""
    session = factories.session()
    model.otherwise = lambda request: [ScriptedFailure("context_overflow")]
    turn = ended(start(session, "Hello"))
    assert (turn.status, turn.failure_code) == ("failed", "context_full")
    assert len(model.requests) <= 10
    assert kinds(session) == ["user", "notice"]
    model.always(ScriptedText("Aye."))
    assert ended(start(session, "Again")).status == "succeeded"
    assert "Hello" in model.said_to()


# --- reading -----------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_long_session_with_a_summary_reads_only_what_is_after_it():
    """P12, A16.1"""
    session = factories.session()
    factories.many_messages(session, 10_000, length=100)
    kept = factories.message(session, content="The request")
    anchor = message_history.get_last_sequence(session.pk)
    late = factories.message(session, content="Came meanwhile")
    factories.message(session, "summary", content="All", data={"anchor": anchor, "kept": [str(kept.pk)]})
    factories.message(session, "assistant", content="Since")
    with CaptureQueriesContext(connection) as queries:
        read = message_history.list_rows_for_model(session.pk)
    assert [row.content for row in read] == ["All", "The request", late.content, "Since"]
    assert len(queries) == 1
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE copilot_message")
        cursor.execute("SET LOCAL enable_seqscan = off")  # a table of one session alone is cheaper to scan
        cursor.execute("EXPLAIN (ANALYZE, FORMAT TEXT) " + queries[0]["sql"])
        plan = "\n".join(row[0] for row in cursor.fetchall())
    touched = [int(part.split(" ")[0]) for part in plan.split("Rows Removed by Filter: ")[1:]]
    assert sum(touched) < 100, plan


@pytest.mark.django_db
def test_a_hidden_summary_is_not_read_from():
    """A16.1, A30.5"""
    session = factories.session()
    factories.message(session, content="One")
    summary = factories.message(session, "summary", content="All", data={"anchor": 1, "kept": []})
    Message.objects.filter(pk=summary.pk).update(hidden="undone")
    assert [row.content for row in message_history.list_rows_for_model(session.pk)] == ["One"]
