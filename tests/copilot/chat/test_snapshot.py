"""The snapshot: one page, the turn in flight in its present state, and a cost that does not grow (T8.3, P12)."""

from __future__ import annotations

import pytest

from config.core.errors import InvalidRequest, NotFound
from copilot.chat import announcements, sessions
from copilot.chat import selectors as chat_selectors
from copilot.realtime import event_log
from copilot.realtime.events import ReasoningExtended, TextExtended
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def session():
    return factories.session(title="Boats")


def converse(session, rows):
    for number in range(rows):
        factories.message(session, "user" if number % 2 == 0 else "assistant", content=f"row {number}")


def test_a_snapshot_holds_the_last_page_the_queue_and_the_cursor(session):
    """T8.3"""
    converse(session, 60)
    factories.pending(session, "next")
    cursor = announcements.publish_session_change(session)
    snapshot, at = chat_selectors.build_snapshot(session.pk)
    assert at == cursor
    assert [row.content for row in snapshot.messages] == [f"row {number}" for number in range(10, 60)]
    assert (snapshot.has_older, snapshot.title, snapshot.state) == (True, "Boats", "idle")
    assert [item.text for item in snapshot.queue] == ["next"]


def test_the_turn_in_flight_is_folded_into_its_present_parts(session):
    """T8.3: text beyond the checkpoint comes from the log"""
    turn = factories.turn(session, "running")
    factories.message(session, turn=turn, content="Hello")
    row = factories.message(session, "assistant", turn=turn, content="Once", streaming=True)
    deltas = [
        TextExtended(block_id="b", row_id=str(row.pk), offset=4 + n, delta=c) for n, c in enumerate(" upon")
    ]
    event_log.append_events(str(session.pk), [(delta, str(turn.pk)) for delta in deltas])
    snapshot, _ = chat_selectors.build_snapshot(session.pk)
    assert snapshot.messages == []
    assert [message.content for message in snapshot.turn.messages] == ["Hello", "Once upon"]
    assert snapshot.state == "running"


def test_deltas_that_overlap_or_leave_a_gap_are_distinguished(session):
    """T8.4: twice is harmless, and beyond a gap nothing is known"""
    turn = factories.turn(session, "running")
    row = factories.message(session, "reasoning", turn=turn, content="abc", streaming=True)

    def tell(offset, delta):
        event = ReasoningExtended(block_id="b", row_id=str(row.pk), offset=offset, delta=delta)
        event_log.append_events(str(session.pk), [(event, str(turn.pk))])
        return event_log.read_streamed_text(str(session.pk), {str(row.pk): "abc"})[str(row.pk)]

    assert tell(0, "ab") == "abc"
    assert tell(2, "cde") == "abcde"
    assert tell(9, "lost") == "abcde"
    assert tell(5, "f") == "abcdef"


def test_what_lies_far_back_in_the_log_is_found_when_it_is_needed(session):
    """T9.1: a checkpoint older than the recent events"""
    turn = factories.turn(session, "running")
    row = factories.message(session, "assistant", turn=turn, content="", streaming=True)
    deltas = [TextExtended(block_id="b", row_id=str(row.pk), offset=n, delta="x") for n in range(1_000)]
    event_log.append_events(str(session.pk), [(delta, str(turn.pk)) for delta in deltas])
    assert event_log.read_streamed_text(str(session.pk), {str(row.pk): ""}) == {str(row.pk): "x" * 1_000}


def test_opening_a_long_conversation_takes_as_many_queries_as_a_short_one(django_assert_num_queries):
    """P12, P10"""
    short, long = factories.session(), factories.session()
    converse(short, 2)
    converse(long, 300)
    counts = []
    for session in (short, long):
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as captured:
            chat_selectors.build_snapshot(session.pk)
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 6


def test_older_rows_are_paged_without_holes(session):
    """E3"""
    converse(session, 120)
    seen: list[object] = []
    before = None
    while True:
        page, older = chat_selectors.list_messages_page(session.pk, before=before)
        seen = [row.content for row in page] + seen
        before = page[0].sequence
        if not older:
            break
    assert seen == [f"row {number}" for number in range(120)]


def test_notes_and_server_context_are_never_sent(session):
    """A0.3, A15.5"""
    factories.message(session, "note", content="for the model")
    message = factories.message(session, content="Hello")
    type(message).objects.filter(pk=message.pk).update(server_context="secret page")
    page, _ = chat_selectors.list_messages_page(session.pk)
    assert [row.content for row in page] == ["Hello"]


def test_sessions_are_listed_in_pages_without_doubles():
    """T11: 50 a page, by cursor, pinned first"""
    for number in range(120):
        made = factories.session(title=f"S{number}")
        if number % 40 == 0:
            sessions.update_session(made.owner_id, made.pk, pinned=True)
    seen, cursor = [], None
    while True:
        page = chat_selectors.list_sessions_page(made.owner_id, cursor=cursor)
        assert len(page.items) <= 50
        seen += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len({item.id for item in seen}) == len(seen) == 120
    assert [item.pinned for item in seen[:4]] == [True, True, True, False]
    with pytest.raises(InvalidRequest):
        chat_selectors.list_sessions_page(made.owner_id, cursor="nonsense")


def test_foreign_deleted_and_unknown_sessions_look_the_same(session):
    """T3.8"""
    sessions.delete_session(session.owner_id, session.pk)
    for user, name in (
        (session.owner_id, session.pk),
        (factories.bob().pk, factories.session().pk),
        (1, factories.uuid.uuid4()),
    ):
        with pytest.raises(NotFound):
            chat_selectors.get_session(user, name)
    assert sessions.restore_session(session.owner_id, session.pk).pk == session.pk


def test_a_reply_is_whole_only_when_its_step_is_finished(session):
    """T9.1: the log's last word on the turn's steps"""
    from copilot.realtime.events import StepFinished, StepStarted, ToolProposed

    turn = factories.turn(session, "running")

    def tell(event, turn_id=None):
        event_log.append_events(str(session.pk), [(event, str(turn_id or turn.pk))])
        return event_log.is_reply_published(session.pk, turn.pk)

    assert not event_log.is_reply_published(session.pk, turn.pk)
    assert not tell(StepStarted(step_id="s", round=1))
    assert tell(StepFinished(step_id="s", round=1, finish_reason="stop"))
    assert tell(StepStarted(step_id="x", round=1), factories.uuid.uuid4())
    assert not tell(ToolProposed(call_id="c", tool="t"))
    for reason in ("failed", "refused", "overflow", "overloaded", "cancelled", "paused"):
        assert not tell(StepFinished(step_id="s", round=1, finish_reason=reason))
