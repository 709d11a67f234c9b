"""Two roads to one state: events folded over the old snapshot equal a fresh fetch (T8.4)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from copilot.realtime.events import (
    ApprovalDecided,
    ApprovalRequested,
    MessageAdded,
    ModelHealed,
    ModelSwitched,
    NoticePosted,
    QuestionAsked,
    QuestionClosed,
    QueueChanged,
    ReasoningEnded,
    ReasoningExtended,
    ReasoningStarted,
    SessionChanged,
    SessionSnapshot,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TextStarted,
    TitleChanged,
    TodosChanged,
    ToolCalled,
    ToolFinished,
    TurnCancelled,
    TurnHeartbeat,
    TurnPaused,
    TurnQueued,
    TurnRecovering,
    TurnStarted,
)
from copilot.realtime.payloads import (
    ApprovalPayload,
    MessagePayload,
    NoticeContent,
    QuestionPayload,
    QueueItem,
    Todo,
    ToolCallContent,
    ToolResultContent,
    TurnPayload,
)
from tests.support.event_reducer import ReducedTranscript, reduce_event, reduce_events, reduce_snapshot

TURN = "t1"


def view(row_id, sequence=1, kind="assistant", content="", **fields):
    given = {"turn_id": TURN, "role": "assistant", "author": "", "attachments": [], "branch": 0}
    return MessagePayload(
        id=row_id, sequence=sequence, kind=kind, content=content, created_at="now", **given | fields
    )


class Session:
    """A little server: every act changes its rows and logs an event, as the recorder does."""

    def __init__(self):
        self.rows = {}
        self.turn = None
        self.queue, self.todos, self.questions, self.title = [], [], [], ""
        self.approvals = []
        self.events = []
        self.state = "idle"
        self.open = None

    def log(self, event):
        self.events.append((event, TURN))

    def snapshot(self):
        rows = sorted(self.rows.values(), key=lambda row: row.sequence)
        mine = [row for row in rows if row.turn_id == TURN] if self.turn else []
        return SessionSnapshot(
            messages=[row for row in rows if row not in mine],
            turn=replace(self.turn, messages=mine) if self.turn else None,
            queue=list(self.queue),
            questions=list(self.questions),
            approvals=list(self.approvals),
            todos=list(self.todos),
            title=self.title,
            state=self.state,
            reset=False,
            has_older=False,
        )

    def act(self, name, number, text):
        getattr(self, f"do_{name}")(number, text)

    def add(self, kind="assistant", content="", **fields):
        number = len(self.rows) + 1 + sum(1 for event, _ in self.events if isinstance(event, StepRetracted))
        row = view(f"r{number}-{len(self.events)}", len(self.events) + 1, kind, content, **fields)
        self.rows[row.id] = row
        return row

    def do_say(self, number, text):
        self.log(MessageAdded(message=self.add("user", text, role="user", turn_id=None)))

    def do_begin(self, number, text):
        self.turn = TurnPayload(id=TURN, status="queued", origin="web", run_ids=["x"], attempt=0, messages=[])
        self.state = "running"
        self.log(TurnQueued(origin="web", run_ids=["x"]))
        self.turn = replace(self.turn, status="running")
        self.log(TurnStarted(model="m", tier="standard", mode="", resumed=False, run_ids=["x"]))

    def do_recover(self, number, text):
        if self.turn:
            self.turn = replace(self.turn, attempt=number, status="queued")
            self.log(TurnRecovering(attempt=number))

    def do_text(self, number, text):
        self.do_end_block(0, "")
        cls, kind = (TextStarted, "assistant") if number % 2 else (ReasoningStarted, "reasoning")
        row = self.open = self.add(kind, streaming=True)
        self.log(cls(block_id="b", row_id=row.id, message=row))

    def do_extend(self, number, text):
        if self.open and text:
            row = self.rows[self.open.id]
            cls = TextExtended if row.kind == "assistant" else ReasoningExtended
            self.log(cls(block_id="b", row_id=row.id, offset=len(row.content), delta=text))
            self.rows[row.id] = replace(row, content=row.content + text)

    def do_end_block(self, number, text):
        if self.open:
            row = self.rows[self.open.id]
            self.rows[row.id] = replace(row, streaming=False)
            cls = TextEnded if row.kind == "assistant" else ReasoningEnded
            self.log(cls(block_id="b", row_id=row.id))
            self.open = None

    def do_retract(self, number, text):
        ids = [row_id for row_id, row in self.rows.items() if row.turn_id == TURN][-1:]
        for row_id in ids:
            del self.rows[row_id]
            self.open = None if self.open and self.open.id == row_id else self.open
        self.log(StepRetracted(step_id="s", round=1, failure_class="overloaded", row_ids=ids))

    def do_tool(self, number, text):
        made = ToolCallContent(call_id="c", tool="look", arguments={})
        row = self.add("tool_call", made)
        self.log(ToolCalled(call_id="c", tool="look", row_id=row.id, arguments={}, message=row))
        got = ToolResultContent(
            call_id="c", tool="look", success=True, preview=text, duration_ms=number, truncated=False
        )
        row = self.add("tool_result", got)
        self.log(
            ToolFinished(
                call_id="c",
                row_id=row.id,
                success=True,
                duration_ms=number,
                preview=text,
                truncated=False,
                message=row,
            )
        )

    def do_notice(self, number, text):
        words = {"code": "stopped", "label": "Stopped", "hint": "", "action": "none"}
        row = self.add("notice", NoticeContent(**words), role="notice")
        self.log(NoticePosted(row_id=row.id, message=row, **words))

    def do_queue(self, number, text):
        self.queue = [QueueItem(id=f"q{n}", text=text, run_id=None, position=n) for n in range(number % 3)]
        self.log(QueueChanged(items=self.queue))

    def do_todos(self, number, text):
        self.todos = [Todo(text=text, status="pending")]
        self.log(TodosChanged(items=self.todos))

    def do_ask(self, number, text):
        asked = QuestionPayload(
            id=f"q{number % 3}",
            turn_id=TURN,
            call_id="c",
            question=text,
            choices=[],
            allow_text=True,
            deadline="x",
        )
        self.questions = [*(one for one in self.questions if one.id != asked.id), asked]
        self.log(QuestionAsked(question=asked))

    def do_close(self, number, text):
        self.questions = [one for one in self.questions if one.id != f"q{number % 3}"]
        self.log(QuestionClosed(question_id=f"q{number % 3}", outcome="answered"))

    def do_title(self, number, text):
        self.title = text
        self.log(TitleChanged(title=text, origin="auto"))

    def do_rename(self, number, text):
        self.title = text
        self.log(SessionChanged(title=text, pinned=False, archived=False, state=self.state))

    def do_pause(self, number, text):
        if self.turn:
            self.turn, self.state = replace(self.turn, status="waiting"), "waiting"
            asked = ApprovalPayload(
                id=f"a{number % 3}", turn_id=TURN, call_id="c", tool="pay", arguments={}, reason=text
            )
            self.approvals = [*(one for one in self.approvals if one.id != asked.id), asked]
            self.log(ApprovalRequested(approvals=[asked]))
            self.log(TurnPaused(approvals=[asked.id]))

    def do_decide(self, number, text):
        self.approvals = [one for one in self.approvals if one.id != f"a{number % 3}"]
        self.log(ApprovalDecided(approval_id=f"a{number % 3}", state="approved", by="user"))

    def do_end(self, number, text):
        self.do_end_block(0, "")
        self.turn, self.state, self.approvals = None, "idle", []
        self.log(TurnCancelled(run_ids=["x"], reason="user"))

    def do_news(self, number, text):
        self.log(TurnHeartbeat(phase="model", elapsed_seconds=number))
        self.log(StepStarted(step_id="s", round=1))
        words = {"failure_class": "overloaded", "label": text}
        self.log(ModelHealed(model="m", healing="thinking", **words))
        self.log(ModelSwitched(from_model="m", to_model="n", **words))


NAMES = sorted(name.removeprefix("do_") for name in dir(Session) if name.startswith("do_"))
ACTS = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "extend", "extend", "extend", "text"]),
        st.integers(0, 9),
        st.text(max_size=6),
    ),
    max_size=40,
)


@given(ACTS, ACTS)
def test_events_folded_over_a_snapshot_equal_a_fresh_fetch(before, after):
    """T8.4, from any moment on"""
    session = Session()
    for act in before:
        session.act(*act)
    old, seen = session.snapshot(), len(session.events)
    for act in after:
        session.act(*act)
    news = session.events[seen:]
    fresh = reduce_snapshot(session.snapshot())
    assert reduce_events(reduce_snapshot(old), news) == fresh
    one_by_one = reduce_snapshot(old)
    for event, turn_id in news:
        one_by_one = reduce_event(one_by_one, event, turn_id)
    assert one_by_one == fresh
    assert fresh.messages() == sorted(session.rows.values(), key=lambda row: row.sequence)
    assert fresh.turn_view() == session.snapshot().turn


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=9), st.data())
def test_an_extension_applied_twice_or_late_is_harmless(deltas, data):
    """E1"""
    events, text = [], ""
    for delta in deltas:
        events.append((TextExtended(block_id="b", row_id="r", offset=len(text), delta=delta), TURN))
        text += delta
    again = data.draw(st.lists(st.sampled_from(events), max_size=9))
    state = ReducedTranscript(rows={"r": view("r", streaming=True)})
    assert reduce_events(state, [*events, *again]).rows["r"].content == text


def test_a_checkpoint_that_knows_more_than_the_start_is_kept():
    """T8.3: events since the start over a row already checkpointed"""
    state = ReducedTranscript(rows={"r": view("r", content="Hel", streaming=True)})
    events = [
        TextStarted(block_id="b", row_id="r", message=view("r", streaming=True)),
        TextExtended(block_id="b", row_id="r", offset=0, delta="He"),
        TextExtended(block_id="b", row_id="r", offset=2, delta="llo"),
    ]
    assert reduce_events(state, [(event, TURN) for event in events]).rows["r"].content == "Hello"


def test_a_rewritten_tail_replaces_the_old_one_and_a_gap_changes_nothing():
    state = ReducedTranscript(rows={"r": view("r", content="Hello", streaming=True)})
    changed = reduce_event(state, TextExtended(block_id="b", row_id="r", offset=3, delta="p"), TURN)
    assert changed.rows["r"].content == "Help"
    assert reduce_event(state, TextExtended(block_id="b", row_id="r", offset=9, delta="p"), TURN) == state
    assert reduce_event(state, TextExtended(block_id="b", row_id="x", offset=0, delta="p"), TURN) == state


def test_a_snapshot_starts_over():
    fresh = Session()
    fresh.do_say(0, "Hello")
    state = ReducedTranscript(rows={"r": view("r", content="old")}, title="old")
    assert reduce_event(state, fresh.snapshot()) == reduce_snapshot(fresh.snapshot())


def test_the_ending_of_another_turn_leaves_this_one_alone():
    session = Session()
    session.do_begin(0, "")
    state = reduce_snapshot(session.snapshot())
    assert reduce_event(state, TurnCancelled(run_ids=[], reason="user"), "another") == state


def test_a_message_with_a_place_is_no_chip_whatever_order_the_news_comes_in():
    """T6.6: the news of its queueing may arrive after that of its place"""
    from copilot.realtime.events import MessageAdded, QueueChanged
    from copilot.realtime.payloads import MessagePayload, QueueItem

    row = MessagePayload(
        id="m",
        sequence=1,
        turn_id=None,
        kind="user",
        role="user",
        content="Next",
        author="",
        attachments=[],
        branch=0,
        created_at="",
    )
    queued = QueueChanged(items=[QueueItem(id="m", text="Next", run_id=None, position=1)])
    for order in ([queued, MessageAdded(message=row)], [MessageAdded(message=row), queued]):
        assert reduce_events(ReducedTranscript(), [(event, None) for event in order]).queue == ()
