"""The browser's fold and Python's come to the same transcript (T8.4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, Page

from copilot.realtime import events, payloads
from copilot.realtime.events import Event, SessionSnapshot
from copilot.realtime.payloads import MessageKind, MessagePayload
from tests.support import event_reducer
from tests.support.browser import Site

pytestmark = pytest.mark.browser

TURN = "00000000-0000-0000-0000-000000000001"
_sequences = itertools.count(1)
FOLD = """async ({snapshot, events}) => {
    const {createState, reduceEvent} = await import("/static/js/chat/event_reducer.js");
    const state = createState();
    reduceEvent(state, snapshot);
    for (const event of events) reduceEvent(state, event);
    const rows = state.order.map(id => {
        const {points, ...row} = state.rows.get(id);
        return row;
    });
    return {rows, queue: state.queue, todos: state.todos, questions: state.questions, artifacts: state.artifacts, approvals: state.approvals, auto_approve: state.autoApprove, title: state.title, goal: state.goal, context: state.context,
            state: state.state, turn: state.turn && [state.turn.id, state.turn.status, state.turn.attempt]};
}"""


CALLS = """async (events) => {
    const {createState, reduceEvent} = await import("/static/js/chat/event_reducer.js");
    const state = createState();
    for (const event of events) reduceEvent(state, event);
    return [...state.calls.keys()];
}"""


@pytest.fixture(scope="module")
def page(browser: Browser, site: Site) -> Iterator[Page]:
    opened = browser.new_page()
    opened.goto(site.url)
    yield opened
    opened.close()


def row(kind: MessageKind, content: str = "", *, streaming: bool = False) -> MessagePayload:
    sequence = next(_sequences)
    return MessagePayload(
        id=f"row-{sequence}",
        sequence=sequence,
        turn_id=TURN,
        kind=kind,
        role="user" if kind == "user" else "assistant",
        content=content,
        author="",
        attachments=[],
        branch=0,
        created_at="2026-11-16T10:00:00.000Z",
        streaming=streaming,
    )


def snapshot(*rows: MessagePayload) -> SessionSnapshot:
    return SessionSnapshot(
        messages=list(rows),
        turn=None,
        queue=[],
        questions=[],
        todos=[],
        title="",
        state="idle",
        reset=False,
        has_older=False,
    )


def approval(name: str) -> payloads.ApprovalPayload:
    return payloads.ApprovalPayload(
        id=name, turn_id=TURN, call_id=name, tool="pay", arguments={"amount": 3}, reason="Money."
    )


def artifact(name: str) -> events.ArtifactAdded:
    return events.ArtifactAdded(
        file_id=name,
        name="a.md",
        type="text/markdown",
        size=1,
        created_at="2026-11-16T10:00:01.000Z",
        call_id="c",
    )


def whole_turn() -> list[Event]:
    """A turn with everything that changes the transcript, some of it told twice or half known already."""
    return [*what_is_said(), *what_is_decided()]


def what_is_said() -> list[Event]:
    """Rows: begun, grown, told twice, retracted, summed up."""
    asked, thought, text, gone = (
        row("user", "Hi"),
        row("reasoning", streaming=True),
        row("assistant", streaming=True),
        row("assistant"),
    )
    wave = "wave 🌊 "
    summary = row("summary", "Until here.")
    waiting = payloads.QueueItem(id="queued-1", text="later", run_id=None, position=1)
    return [
        events.TurnQueued(origin="web", run_ids=[]),
        events.MessageAdded(message=asked),
        events.TurnStarted(model="m", tier="standard", mode="", resumed=False, run_ids=[]),
        events.ModelHealed(model="m", healing="thinking", failure_class="thinking_unsupported", label="x"),
        events.ModelSwitched(from_model="m", to_model="n", failure_class="overloaded", label="x"),
        events.ReasoningStarted(block_id="r", row_id=thought.id, message=thought),
        events.ReasoningExtended(block_id="r", row_id=thought.id, offset=0, delta="Hmm"),
        events.ReasoningEnded(block_id="r", row_id=thought.id),
        events.TextStarted(block_id="t", row_id=text.id, message=text),
        events.TextExtended(block_id="t", row_id=text.id, offset=0, delta=wave),
        events.TextExtended(block_id="t", row_id=text.id, offset=0, delta=wave),
        events.TextExtended(block_id="t", row_id=text.id, offset=5, delta="🌊 and more"),
        events.TextExtended(block_id="t", row_id=text.id, offset=15, delta=" text"),
        events.TextExtended(block_id="t", row_id=text.id, offset=99, delta="beyond a gap"),
        events.TextStarted(block_id="t", row_id=text.id, message=text),
        events.QueueChanged(items=[waiting], version=7),
        events.QueueChanged(items=[], version=6),
        events.ContextCompacting(tokens_before=9, window=10),
        events.ContextCompacted(
            tokens_before=9, tokens_after=1, window=10, row_id=summary.id, message=summary
        ),
        events.TurnRecovering(attempt=2),
        events.TurnThrottled(reason="user"),
        events.TextEnded(block_id="t", row_id=text.id),
        events.TextStarted(block_id="g", row_id=gone.id, message=gone),
        events.StepRetracted(step_id="s", round=1, failure_class="overloaded", row_ids=[gone.id]),
    ]


def what_is_decided() -> list[Event]:
    """State beside the rows: todos, questions, artifacts, goals, approvals, and the ending."""
    question = payloads.QuestionPayload(
        id="q",
        turn_id=TURN,
        call_id="c",
        question="?",
        choices=[],
        allow_text=True,
        deadline="2026-11-16T10:02:00.000Z",
    )
    return [
        events.TodosChanged(items=[payloads.Todo(text="x", status="pending")]),
        events.QuestionAsked(question=question),
        events.QuestionClosed(question_id="q", outcome="answered"),
        artifact("one"),
        artifact("two"),
        artifact("one"),
        artifact("three"),
        events.ArtifactRemoved(file_id="three"),
        events.TitleChanged(title="Waves", origin="auto"),
        events.GoalJudged(state="active", reason="", text="Calm sea"),
        events.GoalContinued(state="active", reason="still wavy", number=1, most=10),
        events.GoalJudged(state="paused", reason="stopped"),
        events.SessionChanged(
            title="Waves",
            pinned=False,
            archived=False,
            state="running",
            auto_approve=payloads.AutoApprovePayload(enabled=True, cap_microdollars=1_000_000),
        ),
        events.SessionChanged(title="Waves", pinned=False, archived=False, state="running"),
        events.ApprovalRequested(approvals=[approval("a"), approval("b")]),
        events.ApprovalRequested(approvals=[approval("b")]),
        events.TurnPaused(approvals=["a", "b"]),
        events.ApprovalDecided(approval_id="a", state="approved", by="user"),
        events.TurnStarted(model="m", tier="standard", mode="", resumed=True, run_ids=[]),
        events.TurnSucceeded(
            run_ids=[],
            summary=events.TurnSummary(
                duration_ms=1,
                first_token_ms=1,
                tokens_per_second=1.0,
                rounds=1,
                tokens=payloads.Tokens(),
                model="m",
            ),
            context=payloads.ContextPayload(used_percent=12.5, estimated=False),
        ),
        events.GoalJudged(state="cleared", reason=""),
    ]


def test_every_beginning_of_a_turn_folds_to_the_same_transcript_in_python_and_in_the_browser(
    page: Page,
) -> None:
    """T8.4: compared after each event, so that a difference names the event that made it."""
    start, happened = snapshot(row("user", "Earlier")), whole_turn()
    for count in range(len(happened) + 1):
        folded = event_reducer.reduce_events(
            event_reducer.reduce_snapshot(start), [(event, TURN) for event in happened[:count]]
        )
        sent = [wire(event) for event in happened[:count]]
        assert page.evaluate(FOLD, {"snapshot": wire(start), "events": sent}) == expected(folded), happened[
            count - 1
        ]


def test_a_call_that_was_only_proposed_goes_with_its_step(page: Page) -> None:
    """A7.3, A8.4: a step that is tried again, or was cut inside its calls, prepares nothing any more."""
    proposed = events.ToolProposed(call_id="lost", tool="write_file")
    retracted = events.StepRetracted(step_id="s", round=1, failure_class="overloaded", row_ids=[])
    finished = events.StepFinished(step_id="s", round=1, finish_reason="length")
    made = events.ToolCalled(call_id="made", tool="write_file", row_id="r", arguments={}, message=None)
    for ending in (retracted, finished):
        happened = [wire(event) for event in (made, proposed, ending)]
        assert page.evaluate(CALLS, happened) == ["made"]


def wire(event: Event) -> object:
    return msgspec.json.decode(events.encode_event(event, session_id="s", turn_id=TURN))


def expected(folded: event_reducer.ReducedTranscript) -> object:
    turn = folded.turn
    known = {
        "rows": folded.messages(),
        "queue": folded.queue,
        "todos": folded.todos,
        "questions": folded.questions,
        "artifacts": folded.artifacts,
        "approvals": folded.approvals,
        "auto_approve": folded.auto_approve,
        "goal": folded.goal,
        "context": folded.context,
        "title": folded.title,
        "state": folded.state,
        "turn": [turn.id, turn.status, turn.attempt] if turn else None,
    }
    return msgspec.json.decode(msgspec.json.encode(known))
