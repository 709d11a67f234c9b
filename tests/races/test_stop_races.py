"""Stop against everything that may happen at the same moment (T7.5, A1.c3, A1.c4)."""

from __future__ import annotations

import random
import threading

from config.core import rate_limits
from config.core.redis import get_redis
from copilot.chat import queue, stop, turns
from copilot.models import Message, ModelCall, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.turn_engine import (
    PATIENCE_SECONDS,
    Errand,
    add_tools,
    assert_same_page,
    cue,
    ended,
    endings,
    folded,
    fresh,
    lease_of,
    quiet,
    said,
    say,
    start,
    together,
    until,
    waiting,
)


def press_stop(session):
    return stop.stop_session(session.owner_id, session.pk)


@rounds(24, 200)
def test_stop_and_natural_end_race(rig, model, rounds):
    """A1.c3: whichever wins, each turn has one ending, in its row and in the log, and one set of usage rows"""
    from billing.models import UsageRecord

    chance = random.Random(7)
    won = {"succeeded": 0, "cancelled": 0}
    for number in range(1, rounds + 1):
        session = factories.session()
        model.will(ScriptedText("Nearly done."), cue(number))
        turn_id = start(session)
        model.reaches(number)
        late = chance.randrange(12)
        together(lambda: give_late(model, number, late), lambda: press_stop(session))
        won[ended(turn_id).status] += 1
        until(lambda: lease_of(session) == {})
        assert len(endings(session.pk)) == 1
        assert not Message.objects.filter(session=session, streaming=True).exists()
        assert_same_page(folded(fresh(factories.session()), session), fresh(session))
        calls = ModelCall.objects.filter(turn=turn_id)
        until(lambda: calls.exclude(ended_at=None).count() == 1)
        assert UsageRecord.objects.filter(call_id__in=calls.values("pk")).count() == 1
    if rounds == 200:  # who wins is luck: a few rounds may all go one way
        assert min(won.values()) > 0, f"no race at all: {won}"


def give_late(model, number, late):
    """After so many looks at the database, which take about as long as a stop needs."""
    for _ in range(late):
        Turn.objects.count()
    model.give(number)


@rounds(20, 100)
def test_stop_edit_resend(rig, model, rounds):
    """T7.5: each sent in the moment the stop is acknowledged; no "already running", no lost text"""
    session = factories.session()
    model.always(ScriptedText("Well, "), cue(1))
    for number in range(rounds):
        say(session, f"Edit {number}")
        until(lambda: latest(session).status == "running" and said(session)[-1] == f"Edit {number}")
        press_stop(session)
        allow_more(session)
    until(lambda: lease_of(session) == {})
    assert waiting(session) == []
    assert said(session) == [f"Edit {number}" for number in range(rounds)]
    assert endings(session.pk) == ["turn.cancelled"] * rounds


def latest(session):
    return Turn.objects.filter(session=session).latest("created_at")


def allow_more(session):
    """T3.7 would slow the race down."""
    get_redis().delete(rate_limits.rate_limit_key("queue", str(session.owner_id)))


@rounds(4, 15)
def test_stop_right_after_sending_leaves_no_turn_running(rig, model, rounds):
    """T7.3: a stop between two turns covers what is about to start; it becomes a chip or a stopped turn"""
    model.always(ScriptedText("Well, "), cue(1))
    for _ in range(rounds):
        session = factories.session()
        for number in range(8):
            say(session, f"Edit {number}")
            press_stop(session)
            allow_more(session)
        until(lambda: lease_of(session) == {})
        assert not Turn.objects.filter(session=session, status__in=Turn.UNFINISHED).exists()
        assert sorted([*said(session), *waiting(session)]) == [f"Edit {number}" for number in range(8)]
        assert waiting(session) == sorted(waiting(session))


def test_stop_covers_a_turn_that_opens_while_it_looks(rig, model, monkeypatch):
    """T7.3: the last message that waited gets its turn between two looks of the stop; it is stopped all the same"""
    session = factories.session()
    model.will(ScriptedText("First."), cue(1))
    model.will(ScriptedText("Second."), cue(2))
    start(session, "First")
    model.reaches(1)
    say(session, "Second", run_id="own-turn")
    may_open, looked = threading.Event(), threading.Event()
    opening, looking = turns.open_turn, queue.get_last_pending_number

    def open_late(opening_turn):
        assert may_open.wait(PATIENCE_SECONDS)
        return opening(opening_turn)

    def look(session_id):
        if not looked.is_set():
            looked.set()
            may_open.set()
            until(lambda: said(session) == ["First", "Second"])
        return looking(session_id)

    monkeypatch.setattr(turns, "open_turn", open_late)
    monkeypatch.setattr(queue, "get_last_pending_number", look)
    model.give(1)
    until(lambda: latest(session).status == "succeeded")
    assert press_stop(session).state == "stopping"
    quiet(session)
    assert endings(session.pk) == ["turn.succeeded", "turn.cancelled"]


@rounds(15, 60)
def test_stop_while_a_message_arrives_never_strands_it(rig, model, rounds):
    """T7.3: covered by the stop it is a chip, accepted after it it runs; it is never lost"""
    for number in range(1, rounds + 1):
        session = factories.session()
        allow_more(session)
        model.will(ScriptedText("Talking."), cue(number))
        start(session, "First")
        model.reaches(number)
        together(lambda: press_stop(session), lambda: say(session, "Second"))
        until(lambda: said(session) == ["First", "Second"] or waiting(session) == ["Second"])
        quiet(session)
        if waiting(session):
            ended(start(session, "Third"))
            quiet(session)
        assert said(session)[:2] == ["First", "Second"]


@rounds(14, 60)
def test_stop_at_any_moment_of_a_busy_turn(rig, model, monkeypatch, rounds):
    """T12: reasoning, text, tools and a follow-up; each leaves a usable session and a page like its reload"""
    errand = Errand("fetch")
    add_tools(monkeypatch, errand)
    chance = random.Random(11)
    script = [
        [ScriptedText("Looking.", size=2), ScriptedCall("fetch"), ScriptedCall("fetch")],
        [ScriptedText("Found it.", size=2)],
    ]
    for _ in range(rounds):
        session = factories.session()
        for reply in script:
            model.will(*reply)
        turn_id = start(session)
        moment = chance.randrange(1, 14)
        until(lambda: len(fresh_log(session)) >= moment or endings(session.pk))
        press_stop(session)
        ended(turn_id)
        until(lambda: lease_of(session) == {})
        assert len(endings(session.pk)) == 1
        calls = Message.objects.filter(session=session, kind="tool_call").count()
        assert calls == Message.objects.filter(session=session, kind="tool_result").count()
        assert_same_page(folded(fresh(factories.session()), session), fresh(session))
        model._replies.clear()
        assert ended(start(session, "Next")).status == "succeeded"


def fresh_log(session):
    from tests.support.turn_engine import log_of

    return log_of(session.pk)
