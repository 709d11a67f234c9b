"""The transcript: rows are appended in order, by fence, and what was said is never rewritten (T2.4, A0.3)."""

from __future__ import annotations

import pytest

from config.core.errors import FenceLost
from copilot.chat import message_history, messages, queue
from copilot.chat import selectors as chat_selectors
from copilot.models import Message
from tests.support import factories
from tests.support.turn_engine import command

pytestmark = pytest.mark.django_db


@pytest.fixture
def turn():
    session = factories.session()
    factories.message(session, content="Hello")
    return factories.turn(session, "running", fence=3)


def row(turn, kind="assistant", **fields):
    given = {"turn_id": turn.pk, "fence": turn.fence} | fields
    return messages.NewMessage(id=factories.uuid.uuid4(), kind=kind, **given)


def contents(session):
    rows = Message.objects.filter(session=session, sequence__isnull=False).order_by("sequence")
    return list(rows.values_list("content", flat=True))


def test_rows_get_the_next_places_in_order(turn):
    """T2.4, A0.3: the next sequence comes from the database"""
    placed = messages.append_messages([row(turn, content=text) for text in "abc"])
    assert [one.sequence for one in placed.values()] == [2, 3, 4]
    assert contents(turn.session) == ["Hello", "a", "b", "c"]


def test_rows_of_many_turns_are_stored_in_one_statement(django_assert_num_queries):
    """T5.2"""
    turns = [factories.turn(factories.session(), "running") for _ in range(3)]
    rows = [row(turn, content=f"{turn.pk} {n}") for n in range(2) for turn in turns]
    with django_assert_num_queries(1):
        assert len(messages.append_messages(rows)) == 6
    for turn in turns:
        assert contents(turn.session) == [f"{turn.pk} 0", f"{turn.pk} 1"]


def test_one_refused_row_does_not_take_its_neighbours_along(turn):
    """T4.1"""
    good, old = row(turn, content="good"), row(turn, content="old", fence=2)
    assert set(messages.append_messages([good, old])) == {good.id}


def test_a_second_result_for_one_call_is_dropped(turn):
    """A9.8"""
    first, second = (row(turn, "tool_result", call_id="c", content=text) for text in ("one", "two"))
    assert set(messages.append_messages([first])) == {first.id}
    assert messages.append_messages([second]) == {}


def test_of_a_turns_calls_only_the_last_rounds_are_read(turn, django_assert_num_queries):
    """A10.2: whole ones, in order, before a summary; what it wrote between them and after it is not asked for"""
    for number in range(4):
        for call_id in (f"{number}a", f"{number}b"):
            messages.append_messages([row(turn, "tool_call", call_id=call_id, data={"tool": "look"})])
        messages.append_messages([row(turn, "reasoning", content="Hm.")])
        for call_id in (f"{number}b", f"{number}a"):
            messages.append_messages([row(turn, "tool_result", call_id=call_id, data={"tool": "look"})])
    summary = message_history.get_last_sequence(turn.session_id) + 1
    messages.append_messages(
        [row(turn, "summary"), row(turn, "tool_call", call_id="after", data={"tool": "look"})]
    )
    with django_assert_num_queries(1):
        read = message_history.list_tool_rows(turn.pk, before=summary, rounds=2)
    assert [one.call_id for one in read] == ["2a", "2b", "2b", "2a", "3a", "3b", "3b", "3a"]
    assert message_history.list_tool_rows(turn.pk, before=1, rounds=2) == []


def test_a_row_stored_twice_is_stored_once(turn):
    """T9.3: a retry after a lost answer"""
    one = row(turn, content="once")
    messages.append_messages([one])
    assert messages.append_messages([one]) == {}
    assert contents(turn.session) == ["Hello", "once"]


def test_a_streaming_row_grows_and_then_is_final(turn):
    """A3.2, T2.4"""
    one = row(turn, streaming=True)
    messages.append_messages([one])

    def draft(text, streaming):
        return messages.StreamingDraft(
            row_id=one.id, turn_id=turn.pk, fence=turn.fence, content=text, streaming=streaming
        )

    assert messages.save_drafts([draft("a", True)]) == {(one.id, one.fence)}
    assert messages.save_drafts([draft("ab", False)]) == {(one.id, one.fence)}
    assert messages.save_drafts([draft("rewritten", False)]) == set()
    assert Message.objects.get(pk=one.id).content == "ab"


def test_a_message_is_accepted_without_a_place():
    """T3.3"""
    session = factories.session()
    accepted = messages.insert_message(factories.uuid.uuid4(), command(session, "Hello"), [], "context")
    later = messages.insert_message(factories.uuid.uuid4(), command(session, "Hello"), [], "context")
    assert later.accept_number > accepted.accept_number
    assert contents(session) == []


def test_a_foreign_session_accepts_nothing():
    """T3.8"""
    session = factories.session()
    assert (
        messages.insert_message(
            factories.uuid.uuid4(), command(session, "x", user_id=factories.bob().pk), [], ""
        )
        is None
    )


def test_discarding_takes_back_only_what_waits(turn):
    """T3.5"""
    waits = factories.pending(turn.session, "waits")
    assert messages.discard_pending_message(waits.pk) is True
    placed = Message.objects.get(session=turn.session, content="Hello")
    assert messages.discard_pending_message(placed.pk) is False


def test_taking_gives_places_behind_everything_else(turn):
    """T6.1: and the turn's run_ids and reach grow"""
    for text in ("one", "two"):
        factories.pending(turn.session, text)
    taken = queue.consume_pending_messages(
        turn.pk, turn.fence, lambda pending: [queue.ConsumedMessage(message=one) for one in pending]
    )
    assert [one.message.text for one in taken] == ["one", "two"]
    assert contents(turn.session) == ["Hello", "one", "two"]
    assert all(Message.objects.filter(content__in=["one", "two"]).values_list("mid_turn", flat=True))


def test_a_stopped_turn_takes_nothing(turn):
    """T7.3"""
    from copilot.chat import turn_transitions

    factories.pending(turn.session, "one")
    turn_transitions.request_stop(turn.session_id)
    assert (
        queue.consume_pending_messages(
            turn.pk, turn.fence, lambda pending: [queue.ConsumedMessage(message=one) for one in pending]
        )
        == []
    )


def test_pending_messages_are_ordered_by_hand_or_by_acceptance(turn):
    """T6.5"""
    one, two = factories.pending(turn.session, "one"), factories.pending(turn.session, "two")
    queue.reorder_pending_messages({one.pk: 9.0, two.pk: 1.0})
    assert [item.text for item in queue.list_pending_messages(turn.session_id)] == ["two", "one"]


def test_dropping_reaches_up_to_a_number_and_leaves_the_rows(turn):
    """T7.3, T3.6"""
    one, two = factories.pending(turn.session, "one"), factories.pending(turn.session, "two")
    assert [item.id for item in queue.drop_pending_messages(turn.session_id, through=one.accept_number)] == [
        one.pk
    ]
    assert [item.id for item in queue.list_pending_messages(turn.session_id)] == [two.pk]
    assert Message.objects.filter(pk=one.pk).exists()


def test_what_a_lost_run_left_open_is_closed(turn):
    """A3.5: streaming rows become final with what the log knew, calls get a result"""
    growing = row(turn, streaming=True, content="half")
    call = row(turn, "tool_call", call_id="c", data={"tool": "look", "arguments": {}})
    messages.append_messages([growing, call])

    def grow(session_id, texts):
        return {row_id: text + " a loaf" for row_id, text in texts.items()}

    closed = messages.close_open_messages(turn.session_id, turn.pk, "Stopped.", read_streamed_text=grow)
    assert (closed.ended, len(closed.results)) == ([(growing.id, "assistant")], 1)
    assert contents(turn.session) == ["Hello", "half a loaf", "", "Stopped."]
    again = messages.close_open_messages(turn.session_id, turn.pk, "Stopped.", read_streamed_text=grow)
    assert (again.ended, again.results) == ([], [])


def test_closing_for_a_worker_needs_its_fence(turn):
    """T4.1"""
    with pytest.raises(FenceLost):
        messages.close_open_messages(
            turn.session_id, turn.pk, "x", read_streamed_text=lambda *_: {}, fence=turn.fence - 1
        )


def test_retracted_rows_are_hidden_and_kept(turn):
    """A7.3"""
    one = row(turn, content="wrong", streaming=True)
    messages.append_messages([one])
    messages.retract_messages(turn.pk, turn.fence, [one.id])
    assert Message.objects.get(pk=one.id).hidden == "retracted"
    assert [view.content for view in chat_selectors.list_messages_page(turn.session_id)[0]] == ["Hello"]
    assert [seen.content for seen in message_history.list_rows_for_model(turn.session_id)] == ["Hello"]


def test_the_model_reads_from_the_newest_summary_on(turn):
    """A16.1"""
    messages.append_messages([row(turn, "summary", content="In short"), row(turn, content="and then")])
    assert [seen.content for seen in message_history.list_rows_for_model(turn.session_id)] == [
        "In short",
        "and then",
    ]
