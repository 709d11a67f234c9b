"""What was stored while the log was away, or told out of turn: connected clients see it without a reload (T8, E1)."""

from __future__ import annotations

import contextlib

import pytest

from config.core.redis import REDIS_OUTAGE_ERRORS, get_redis
from copilot.chat import announcements, queue_commands, sessions, stop
from copilot.chat import selectors as chat_selectors
from copilot.models import Session
from copilot.providers.scripted import ScriptedHang, ScriptedText
from copilot.realtime import event_log, lease
from diagnostics import reaper
from tests.support import event_reducer, factories
from tests.support.redis_outages import redis_away
from tests.support.turn_engine import (
    assert_same_page,
    cue,
    ended,
    endings,
    folded,
    fresh,
    log_of,
    queue,
    start,
    status,
    together,
    told,
    until,
)


@pytest.fixture
def session(rig):
    return factories.session()


@pytest.fixture
def busy(session, model):
    """A session whose turn says nothing more."""
    model.will(ScriptedText("Talking"), ScriptedHang())
    start(session, "One")
    until(lambda: told(session.pk, "text.extended"))
    return session


def followed(session):
    return folded(fresh(factories.session()), session)


# --- told later --------------------------------------------------------------------------------------


def test_changes_made_while_redis_was_down_are_published_when_it_is_back(busy):
    """T8.5: the queue, and the name in every sidebar"""
    chip = queue(busy, "Tow")
    with redis_away():
        queue_commands.edit_queued_message(busy.owner_id, busy.pk, chip, "Two")
        sessions.update_session(busy.owner_id, busy.pk, title="Renamed")
    assert [item.text for item in followed(busy).queue] == ["Tow"]
    reaper.run_sweep_steps()
    assert [item.text for item in followed(busy).queue] == ["Two"]
    assert told(busy.pk, "session.changed")[-1].title == "Renamed"
    assert_same_page(followed(busy), fresh(busy))


def test_who_read_the_page_while_redis_knew_nothing_sees_the_words_all_the_same(session, model, rig):
    """T8.4, T8.5: what was said last was in the lost log alone, and its block has ended when Redis is made whole"""
    model.will(ScriptedText("Words and more."), cue(1))
    turn_id = start(session)
    model.reaches(1)
    until(lambda: told(session.pk, "text.extended"))
    get_redis().flushdb()
    lease.mark_epoch()
    page, cursor = chat_selectors.build_snapshot(session.pk)
    assert "Words" not in repr(page)  # nothing checkpointed, nothing in the log
    model.give(1)
    ended(turn_id)
    until(lambda: rig.worker.is_idle)
    assert [one.session_id for one in announcements.list_unpublished_sessions()] == [session.pk]
    reaper.run_sweep_steps()
    assert_same_page(
        folded(event_reducer.reduce_snapshot(page), session, after=cursor or "0-0"), fresh(session)
    )


def test_it_is_published_once(busy):
    with redis_away():
        sessions.update_session(busy.owner_id, busy.pk, title="Renamed")
    reaper.run_sweep_steps()
    before = len(log_of(busy.pk))
    reaper.run_sweep_steps()
    assert len(log_of(busy.pk)) == before


def test_nothing_is_forgotten_while_redis_stays_away(busy):
    with redis_away():
        sessions.update_session(busy.owner_id, busy.pk, title="Renamed")
        with pytest.raises(REDIS_OUTAGE_ERRORS):
            reaper.run_sweep_steps()
    reaper.run_sweep_steps()
    assert told(busy.pk, "session.changed")[-1].title == "Renamed"


def test_a_turn_cancelled_while_redis_was_away_has_its_one_ending(rig, session):
    """T2, T7.3: the request gave it, so no worker tells it"""
    rig.hold_tasks()
    turn_id = start(session, "One")
    with redis_away(), contextlib.suppress(*REDIS_OUTAGE_ERRORS):
        stop.stop_session(session.owner_id, session.pk)
    assert (status(turn_id), endings(session.pk)) == ("cancelled", [])
    reaper.run_sweep_steps()
    reaper.run_sweep_steps()
    assert endings(session.pk) == ["turn.cancelled"]
    assert_same_page(followed(session), fresh(session))


def test_a_conversation_can_be_begun_while_redis_is_away(transactional_db):
    """T9.3: its rows are all it needs"""
    with redis_away():
        made = sessions.create_session(factories.ada().pk, "Hello")
    reaper.run_sweep_steps()
    assert told(made.pk, "session.changed")[-1].title == "Hello"
    assert not Session.objects.filter(publish_failed_at__isnull=False).exists()


# --- told out of turn --------------------------------------------------------------------------------


def test_a_page_hides_nothing_that_was_told_while_it_was_read(busy, monkeypatch):
    """T8.4"""
    read = chat_selectors.build_snapshot
    news: list[object] = []

    def slow(session_id, *, reset=False):
        found = read(session_id, reset=reset)
        if not news:
            news.append(queue(busy, "Meanwhile"))
        return found

    monkeypatch.setattr(chat_selectors, "build_snapshot", slow)
    assert announcements.publish_snapshot(busy.pk)
    monkeypatch.undo()
    assert [item.text for item in followed(busy).queue] == ["Meanwhile"]


def test_a_page_that_never_catches_up_is_left_to_the_sweep(busy, monkeypatch):
    """T8.4"""
    read = chat_selectors.build_snapshot

    def overtaken(session_id, *, reset=False):
        found = read(session_id, reset=reset)
        announcements.publish_events(
            session_id, busy.owner_id, [(chat_selectors.get_queue(session_id), None)]
        )
        return found

    monkeypatch.setattr(chat_selectors, "build_snapshot", overtaken)
    assert not announcements.publish_snapshot(busy.pk)
    monkeypatch.undo()
    assert not told(busy.pk, "session.snapshot")
    reaper.run_sweep_steps()
    assert told(busy.pk, "session.snapshot")


def test_an_older_queue_told_last_brings_no_chip_back(busy):
    """T6.6: two publishers, and the slower one read first"""
    chip = queue(busy, "Two")
    older = chat_selectors.get_queue(busy.pk)
    queue_commands.remove_queued_message(busy.owner_id, busy.pk, chip)
    event_log.append_events(str(busy.pk), [(older, None)])
    assert followed(busy).queue == ()
    newer = fresh(busy)
    after = event_log.get_last_cursor(str(busy.pk))
    event_log.append_events(str(busy.pk), [(older, None)])
    assert folded(newer, busy, after=after).queue == ()


def test_many_changes_of_a_queue_at_once_end_in_the_same_page(busy):
    """T6.6, T8.4"""
    for round_ in range(5):
        chips = [queue(busy, f"{round_} {number}") for number in range(5)]
        together(
            *(
                lambda chip=chip: queue_commands.remove_queued_message(busy.owner_id, busy.pk, chip)
                for chip in chips
            )
        )
        assert followed(busy).queue == ()


def test_a_version_grows_with_what_is_seen(busy):
    """T6.6: and reading alone does not age it"""
    first = chat_selectors.get_queue(busy.pk).version
    queue(busy, "Two")
    second = chat_selectors.get_queue(busy.pk).version
    assert second > first
    assert chat_selectors.get_queue(busy.pk).version >= second
