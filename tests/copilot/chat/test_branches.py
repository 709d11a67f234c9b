"""Versions of what was said, and turns taken back (A30.5, A30.6)."""

from __future__ import annotations

import pytest

from config.core.errors import Conflict, InvalidRequest, NotFound, TooManyRequests
from copilot.chat import message_history, stop
from copilot.chat import selectors as chat_selectors
from copilot.files import services as files
from copilot.memories import services as memories
from copilot.models import Approval, Message, Turn
from copilot.providers.base import ToolResultsMessage
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText
from tests.support import factories
from tests.support.branches import hold_conversation, resend, resend_and_wait, switch_branch, undo_last_turn
from tests.support.race_repeats import rounds
from tests.support.turn_engine import (
    Errand,
    add_tools,
    assert_same_page,
    cue,
    ended,
    folded,
    fresh,
    lease_of,
    queue,
    quiet,
    say,
    start,
    together,
    told,
    transcript,
    until,
    waiting,
)


@pytest.fixture
def session(rig):
    return factories.session()


def places(session):
    """Each shown message of the user: which of how many versions it is."""
    rows, _ = chat_selectors.list_messages_page(session.pk)
    return [(row.content, row.branch, row.versions) for row in rows if row.kind == "user"]


@pytest.fixture
def echo(model):
    """The model says which request it answers."""
    model.otherwise = lambda request: [ScriptedText(f"Answer {len(model.requests)}.")]
    return model


# --- edit, retry, switch -----------------------------------------------------------------------------


def test_an_edited_message_starts_a_turn_and_the_rows_from_it_on_are_kept(session, echo):
    """A30.6: the model reads the new text and what came before it, nothing of the older branch"""
    _, second = hold_conversation(session, "One", "Two")
    resend_and_wait(session, second, "Two, better")
    assert transcript(session) == ["One", "Answer 1.", "Two, better", "Answer 3."]
    assert "Two, better" in echo.said_to()
    assert "Answer 1." in echo.said_to()
    assert "'Two'" not in echo.said_to()
    assert "Answer 2." not in echo.said_to()
    kept = Message.objects.filter(session=session, hidden="older_branch").order_by("sequence")
    assert [row.content for row in kept] == ["Two", "Answer 2."]
    assert places(session) == [("One", 0, 1), ("Two, better", 1, 2)]


def test_a_retry_says_the_same_again_also_when_it_names_the_answer(session, echo):
    """A30.6, W2.7"""
    [first] = hold_conversation(session, "One")
    answer = Message.objects.get(session=session, kind="assistant")
    resend_and_wait(session, answer.pk)
    assert transcript(session) == ["One", "Answer 2."]
    assert places(session) == [("One", 1, 2)]
    assert Message.objects.get(pk=first).hidden == "older_branch"


def test_a_failed_turn_is_retried_from_its_notice(session, model):
    """A30.6: also after a failure; the failed try and its notice are gone from the page and from the prompt"""
    model.will(ScriptedFailure("bad_request"))
    failed = ended(start(session, "One"))
    quiet(session)
    assert failed.status == "failed"
    notice = Message.objects.get(session=session, kind="notice")
    resend_and_wait(session, notice.pk)
    assert transcript(session) == ["One", "Aye."]
    assert [row.kind for row in chat_selectors.list_messages_page(session.pk)[0]] == ["user", "assistant"]


def test_switching_shows_a_branch_with_all_that_followed_it(session, echo):
    """A30.6, W2.7: the branch that is shown is the one that is continued"""
    first, _ = hold_conversation(session, "One", "Two")
    other = resend_and_wait(session, first, "Uno")
    switched = switch_branch(session, other, 0)
    assert (switched.message_id, switched.branch, switched.versions) == (first, 0, 2)
    assert transcript(session) == ["One", "Answer 1.", "Two", "Answer 2."]
    hold_conversation(session, "Three")
    assert "Uno" not in echo.said_to()
    switch_branch(session, first, 1)
    assert transcript(session) == ["Uno", "Answer 3."]
    switch_branch(session, other, 0)
    assert transcript(session)[-2:] == ["Three", "Answer 4."]


def test_a_branch_remembers_which_version_inside_it_was_shown(session, echo):
    first, second = hold_conversation(session, "One", "Two")
    third = resend_and_wait(session, second, "Two b")
    other = resend_and_wait(session, first, "Uno")
    switch_branch(session, other, 0)
    assert [text for text, _, _ in places(session)] == ["One", "Two b"]
    switch_branch(session, third, 0)
    assert places(session) == [("One", 0, 2), ("Two", 0, 2)]


def test_three_versions_are_numbered_in_the_order_they_were_made(session, echo):
    [first] = hold_conversation(session, "One")
    second = resend_and_wait(session, first, "Two")
    third = resend_and_wait(session, second, "Three")
    assert places(session) == [("Three", 2, 3)]
    switch_branch(session, third, 0)
    resend_and_wait(session, first, "Four")
    assert places(session) == [("Four", 3, 4)]


def test_the_original_files_go_with_the_new_text(session, model):
    """A30.6"""
    file = files.store_file(session.owner_id, name="a.txt", content=b"words", source="upload")
    outcome = say(session, "Read it", attachments=(str(file.pk),))
    ended(outcome.turn_id)
    quiet(session)
    version = Message.objects.get(pk=resend_and_wait(session, outcome.message_id, "Read it twice"))
    assert [one["file_id"] for one in version.attachments] == [str(file.pk)]
    assert "a.txt" in model.said_to()


def test_a_retry_can_name_another_model(session, model):
    """W2.6: Retry / switch model"""
    [first] = hold_conversation(session, "One")
    outcome = resend(session, first, tier="advanced", mode="fast")
    turn = ended(outcome.turn_id)
    assert (turn.tier, turn.mode) == ("advanced", "fast")


def test_another_first_message_brings_what_is_remembered(session, model):
    """A25.2: the model reads it with the first message of the conversation, whichever version that is"""
    memories.add_memory(session.owner_id, "Sails a yawl.")
    first, second = hold_conversation(session, "One", "Two")
    resend_and_wait(session, second, "Zwei")
    assert "Sails a yawl." not in Message.objects.get(session=session, content="Zwei").server_context
    resend_and_wait(session, first, "Eins")
    assert "Sails a yawl." in Message.objects.get(session=session, content="Eins").server_context


def test_an_answer_tells_how_long_its_turn_took(session, model):
    """W2.7"""
    hold_conversation(session, "One")
    [turn] = Turn.objects.filter(session=session)
    answer = fresh(session).messages()[-1]
    assert answer.duration_ms == turn.summary["duration_ms"]
    assert_same_page(folded(fresh(factories.session()), session), fresh(session))


@pytest.fixture
def interrupted(session, model, monkeypatch):
    """A turn that heard two more messages while its tool ran, both at one boundary."""
    errand = Errand("fetch", waits=True)
    add_tools(monkeypatch, errand)
    model.will(ScriptedCall("fetch"))
    model.will(ScriptedText("Done."))
    turn_id = start(session, "Go")
    until(lambda: errand.runs)
    said = [queue(session, "And this"), queue(session, "And that")]
    errand.cue.give()
    ended(turn_id)
    quiet(session)
    return said


def test_a_cut_inside_a_turn_leaves_every_call_with_its_result(session, model, interrupted):
    """A16.3: what was said between two steps is edited; the work before it stays"""
    resend_and_wait(session, interrupted[0], "Something else")
    groups = [one for one in model.requests[-1].messages if isinstance(one, ToolResultsMessage)]
    assert [len(group.results) for group in groups] == [1]
    assert "Something else" in model.said_to()
    assert "And this" not in model.said_to()
    assert "And that" not in model.said_to()


def test_a_message_that_was_delivered_with_another_is_edited_alone(session, model, interrupted):
    """A30.6, A13.5: the words that stood with it in one block stay, and come back together with it"""
    other = resend_and_wait(session, interrupted[1], "Something else")
    assert "1. And this" in model.said_to()
    assert "Something else" in model.said_to()
    assert "And that" not in model.said_to()
    switch_branch(session, other, 0)
    hold_conversation(session, "On we go")
    assert repr("1. And this\n2. And that\n</user_follow_up>")[1:-1] in model.said_to()


# --- what clients see --------------------------------------------------------------------------------


def test_every_tab_follows_edits_switches_and_undos(session, echo):
    """T8.4: a client that only folded the log sees what a reload shows, after each act"""
    start_state = fresh(session)
    first, _ = hold_conversation(session, "One", "Two")
    other = resend_and_wait(session, first, "Uno")
    assert_same_page(folded(start_state, session), fresh(session))
    switch_branch(session, other, 0)
    assert_same_page(folded(start_state, session), fresh(session))
    undo_last_turn(session)
    assert_same_page(folded(start_state, session), fresh(session))
    assert places(session) == [("One", 0, 2)]


def test_the_snapshot_is_published_before_the_new_turn_so_that_no_text_is_lost(session, model, rig):
    """Row before event, and the new page before the first event of the new turn"""
    [first] = hold_conversation(session, "One")
    before = len(told(session.pk))
    rig.hold_tasks()
    resend(session, first, "Uno")
    kinds = [event.kind for event in told(session.pk)[before:]]
    assert kinds == ["session.snapshot", "message.added", "queue.changed", "turn.queued", "session.changed"]


# --- undo --------------------------------------------------------------------------------------------


def test_undo_takes_the_last_turn_out_and_says_what_it_cannot(session, echo):
    """A30.5: repeatable; rows are kept; the next request knows nothing of them"""
    hold_conversation(session, "One", "Two", "Three")
    undone = undo_last_turn(session)
    assert undone.text == "Three"
    assert "not undone" in undone.message
    undo_last_turn(session)
    assert transcript(session) == ["One", "Answer 1."]
    assert Message.objects.filter(session=session, hidden="undone").count() == 4
    hold_conversation(session, "Four")
    assert "Two" not in echo.said_to()
    assert "Three" not in echo.said_to()
    undo_last_turn(session)
    undo_last_turn(session)
    with pytest.raises(Conflict) as refused:
        undo_last_turn(session)
    assert refused.value.code == "nothing_to_undo"


def test_undo_of_a_turn_inside_a_summarised_range_voids_the_summary(session, echo):
    """A30.c2, A30.5: the next request is built from valid rows only"""
    hold_conversation(session, "One", "Two")
    factories.message(session, "summary", content="They counted to two.")
    assert [row.kind for row in message_history.list_rows_for_model(session.pk)] == ["summary"]
    undo_last_turn(session)
    assert [row.content for row in message_history.list_rows_for_model(session.pk)] == ["One", "Answer 1."]
    hold_conversation(session, "Three")
    assert "counted" not in echo.said_to()
    assert "Two" not in echo.said_to()


def test_undo_falls_back_to_the_summary_before(session, echo):
    """A30.5: only summaries that cover undone rows are void"""
    hold_conversation(session, "One")
    factories.message(session, "summary", content="They began.")
    hold_conversation(session, "Two")
    undo_last_turn(session)
    assert [row.content for row in message_history.list_rows_for_model(session.pk)] == ["They began."]


def test_chips_that_wait_stay_chips_after_an_undo(session, model):
    """T7.4: an undo starts nothing that a stop had kept waiting"""
    hold_conversation(session, "One")
    model.will(ScriptedText("Well"), cue(1))
    turn_id = start(session, "Two")
    model.reaches(1)
    queue(session, "Later")
    stop.stop_session(session.owner_id, session.pk)
    ended(turn_id)
    quiet(session)
    undo_last_turn(session)
    assert waiting(session) == ["Later"]
    assert lease_of(session) == {}
    assert transcript(session) == ["One", "Aye."]


@pytest.fixture
def paused(session, model, monkeypatch):
    """A turn that waits for a person's word."""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    hold_conversation(session, "One")
    model.will(ScriptedCall("pay"))
    turn_id = start(session, "Two")
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    return turn_id


def test_undo_of_a_turn_that_waits_for_approval_cancels_its_requests(session, model, paused):
    """A30.5, A11.9"""
    assert undo_last_turn(session).text == "Two"
    assert list(Approval.objects.values_list("state", flat=True)) == ["cancelled"]
    assert ended(paused).status == "cancelled"
    assert transcript(session) == ["One", "Aye."]
    assert_same_page(folded(fresh(factories.session()), session), fresh(session))


def test_a_turn_that_waits_for_approval_keeps_its_session_busy(session, model, paused):
    """A30.6: switching or retrying beside an open request is refused"""
    first = Message.objects.filter(session=session, kind="user").earliest("sequence")
    for act in ("edit", "retry", "switch"):
        with pytest.raises(Conflict) as refused:
            ACTS[act](session, first.pk)
        assert refused.value.code == "session_busy"
    assert Approval.objects.get().state == "requested"


# --- refusals ----------------------------------------------------------------------------------------


@pytest.fixture
def busy(session, model):
    hold_conversation(session, "One")
    model.will(ScriptedText("First."), cue(1))
    turn_id = start(session, "Two")
    model.reaches(1)
    yield session
    model.give(1)
    ended(turn_id)


ACTS = {
    "edit": lambda session, message_id: resend(session, message_id, "Uno"),
    "retry": lambda session, message_id: resend(session, message_id),
    "switch": lambda session, message_id: switch_branch(session, message_id, 1),
    "undo": lambda session, message_id: undo_last_turn(session),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_busy_session_refuses_and_nothing_changes(busy, act):
    """A30.6: 409 session_busy"""
    first = Message.objects.filter(session=busy, kind="user").earliest("sequence")
    rows = Message.objects.filter(session=busy).count()
    with pytest.raises(Conflict) as refused:
        ACTS[act](busy, first.pk)
    assert refused.value.code == "session_busy"
    assert Message.objects.filter(session=busy).count() == rows
    assert not Message.objects.filter(session=busy).exclude(hidden="").exists()


@pytest.mark.parametrize("act", ACTS)
def test_what_is_not_yours_does_not_exist(session, model, act):
    """T3.8"""
    [first] = hold_conversation(session, "One")
    session.owner_id = factories.bob().pk
    with pytest.raises(NotFound):
        ACTS[act](session, first)


def test_what_is_not_shown_cannot_be_continued(session, model):
    [first] = hold_conversation(session, "One")
    version = resend_and_wait(session, first, "Uno")
    for act in (lambda: resend(session, first), lambda: switch_branch(session, first, 1)):
        with pytest.raises(Conflict) as refused:
            act()
        assert refused.value.code == "not_shown"
    with pytest.raises(Conflict) as refused:
        switch_branch(session, version, 7)
    assert refused.value.code == "no_such_branch"


def test_only_what_a_person_said_is_edited_and_never_into_nothing(session, model):
    [first] = hold_conversation(session, "One")
    answer = Message.objects.get(session=session, kind="assistant")
    for target, text in ((answer.pk, "Uno"), (first, "  ")):
        with pytest.raises(InvalidRequest):
            resend(session, target, text)
    assert transcript(session) == ["One", "Aye."]


@pytest.mark.parametrize("text", ["Uno", None], ids=["edit", "retry"])
def test_the_same_run_id_again_is_the_first_outcome(session, model, monkeypatch, text):
    """T3.6: an edit sent twice is one edit, whichever version its client still shows, and though a limit came between"""
    [first] = hold_conversation(session, "One")
    outcomes = [resend(session, first, text, run_id="r")]
    ended(outcomes[0].turn_id)
    quiet(session)
    monkeypatch.setattr("copilot.chat.branches.check_usage_limit", reached)
    outcomes += [resend(session, pk, text, run_id="r") for pk in (first, outcomes[0].message_id)]
    assert len({one.message_id for one in outcomes}) == 1
    assert Turn.objects.filter(session=session).count() == 2
    with pytest.raises(Conflict) as refused:
        resend(session, first, "Due", run_id="r")
    assert refused.value.code == "idempotency_conflict"


def test_one_edit_sent_twice_at_once_is_one_edit(session, model):
    """T3.6: concurrently"""
    for number in range(5):
        [first] = hold_conversation(session, f"One {number}")
        outcomes = together(
            *[lambda first=first, n=number: resend(session, first, "Uno", run_id=f"r{n}")] * 3
        )
        assert len({one.message_id for one in outcomes}) == 1
        ended(outcomes[0].turn_id)
        quiet(session)


def reached(user_id):
    raise TooManyRequests("Used up.", code="limit_reached")


def test_a_limit_refuses_a_retry_as_it_refuses_a_message(session, model, monkeypatch):
    """T3.2"""
    [first] = hold_conversation(session, "One")
    monkeypatch.setattr("copilot.chat.branches.check_usage_limit", reached)
    with pytest.raises(TooManyRequests):
        resend(session, first)
    assert transcript(session) == ["One", "Aye."]


# --- at the same moment ------------------------------------------------------------------------------


def outcome_of(act):
    try:
        return act()
    except Conflict as refused:
        assert refused.code in ("session_busy", "not_shown")
        return None


@rounds(6, 25)
def test_undo_edit_retry_and_a_message_race(rig, model, rounds):
    """A30.c2: one of the acts wins and the others get 409; a message is never lost, whichever wins"""
    for number in range(1, rounds + 1):
        session = factories.session()
        model.always(ScriptedText("Aye."))
        _, second = hold_conversation(session, "One", "Two")
        model.always(ScriptedText("Aye."), cue(number))
        won = []
        acts = [
            lambda: undo_last_turn(session),
            lambda: resend(session, second, "Zwei"),
            lambda: resend(session, second),
        ]
        races = [lambda act=act: won.append(outcome_of(act)) for act in acts]
        together(*races, lambda: say(session, "Three"))
        model.give(number)
        until(lambda: not waiting(session))
        quiet(session)
        assert len(won) == 3
        assert len([one for one in won if one is not None]) <= 1
        assert transcript(session).count("Three") == 1
        assert lease_of(session) == {}
        assert_same_page(folded(fresh(factories.session()), session), fresh(session))
