"""A turn's life: every move one conditional update, and the rules the database keeps (T2, T4.3)."""

from __future__ import annotations

import pytest
from django.db import DataError, IntegrityError, transaction
from django.utils import timezone

from config.core.errors import TurnConflict
from copilot.chat import message_history, turn_transitions, turns
from copilot.chat.model_calls import TierModel
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Message, ModelCall, Session, Turn
from copilot.realtime.events import TurnSummary
from copilot.realtime.payloads import Tokens
from tests.support import factories

pytestmark = pytest.mark.django_db


def opening(session, message, **fields):
    given = {
        "origin": "web",
        "run_id": None,
        "tier": "",
        "mode": "",
        "permissions": UNRESTRICTED,
        "title": "T",
    }
    return turns.NewTurn(
        turn_id=factories.uuid.uuid4(),
        token=factories.uuid.uuid4(),
        session_id=session.pk,
        message_id=message.pk,
        accept_number=message.accept_number,
        **given | fields,
    )


def opened(session=None):
    session = session or factories.session()
    one = opening(session, factories.pending(session, "Hello"))
    turns.open_turn(one)
    return Turn.objects.get(pk=one.turn_id)


# --- what the database refuses (T2.3) ----------------------------------------------------------------


def refused(act):
    with pytest.raises(IntegrityError), transaction.atomic():
        act()


def test_two_unfinished_turns_on_one_session():
    """T2.3"""
    for first in ("queued", "running", "waiting"):
        session = factories.session()
        factories.turn(session, first)
        refused(lambda: factories.turn(session, "queued"))
        factories.turn(session, "succeeded")


def test_a_failed_turn_without_a_code_and_a_code_without_failure():
    """T2.3"""
    turn = factories.turn(factories.session(), "succeeded")
    refused(lambda: Turn.objects.filter(pk=turn.pk).update(failure_code="x"))
    refused(lambda: Turn.objects.filter(pk=turn.pk).update(status="failed"))


def test_an_ended_turn_without_an_end_and_an_end_without_ending():
    """D3: invalid rows cannot exist"""
    turn = factories.turn(factories.session(), "running")
    refused(lambda: Turn.objects.filter(pk=turn.pk).update(status="succeeded"))
    refused(lambda: Turn.objects.filter(pk=turn.pk).update(ended_at=timezone.now()))
    refused(lambda: Turn.objects.filter(pk=turn.pk).update(started_at=None))


def test_two_messages_in_one_place_and_two_results_for_one_call():
    """T2.3"""
    session = factories.session()
    factories.message(session, sequence=1)
    refused(lambda: factories.message(session, sequence=1))
    factories.message(session, "tool_result", call_id="c")
    refused(lambda: factories.message(session, "tool_result", call_id="c"))
    factories.message(factories.session(), "tool_result", call_id="c")


def test_only_what_people_say_waits_for_a_place():
    """A0.3"""
    refused(lambda: factories.message(factories.session(), "assistant", sequence=None))


# --- opening -----------------------------------------------------------------------------------------


def test_opening_gives_the_message_its_place_and_the_session_its_fence():
    """T3.5, T4.1: in one statement"""
    session = factories.session()
    message = factories.pending(session, "Hello")
    one = opening(session, message, run_id="r")
    result = turns.open_turn(one)
    turn = Turn.objects.get(pk=one.turn_id)
    message.refresh_from_db()
    session.refresh_from_db()
    assert (turn.status, turn.fence, session.fence, result.fence) == ("queued", 1, 1, 1)
    assert (message.turn_id, message.sequence, turn.run_ids) == (turn.pk, result.sequence, ["r"])
    assert message.sequence == turns.SEQUENCES_LEFT_FREE + 1


def test_a_message_is_taken_once():
    """A13.4"""
    session = factories.session()
    message = factories.pending(session, "Hello")
    assert turns.open_turn(opening(session, message)) is not None
    assert turns.open_turn(opening(session, message)) is None
    dropped = factories.pending(factories.session(), "Gone")
    Message.objects.filter(pk=dropped.pk).update(dropped_at=timezone.now())
    assert turns.open_turn(opening(dropped.session, dropped)) is None


def test_a_second_turn_is_refused_while_one_is_unfinished():
    """T2.3"""
    turn = opened()
    message = factories.pending(turn.session, "Next")
    refused(lambda: turns.open_turn(opening(turn.session, message)))
    message.refresh_from_db()
    assert message.sequence is None


def test_an_earlier_message_that_needs_its_own_turn_goes_first():
    """T6.2"""
    session = factories.session()
    first, second = factories.pending(session, "First", run_id="r"), factories.pending(session, "Second")
    assert turns.open_turn(opening(session, second)) is None
    assert turns.open_turn(opening(session, first, run_id="r")) is not None


def test_a_given_title_is_kept():
    session = factories.session(title="Mine")
    turns.open_turn(opening(session, factories.pending(session, "Hello")))
    session.refresh_from_db()
    assert session.title == "Mine"


# --- moving ------------------------------------------------------------------------------------------


def test_claiming_moves_queued_to_running_once():
    """T5.1"""
    turn = opened()
    [claimed] = turns.claim_turns([turn.pk], "w").claimed
    assert (claimed.turn_id, claimed.fence, claimed.attempts, claimed.resumed) == (turn.pk, 1, 1, False)
    assert turns.claim_turns([turn.pk], "other").claimed == []
    turn.refresh_from_db()
    assert (turn.status, turn.worker, turn.attempts) == ("running", "w", 1)


def test_many_turns_are_claimed_in_one_statement(django_assert_num_queries):
    """T5.2"""
    ids = [opened().pk for _ in range(5)]
    with django_assert_num_queries(1):
        assert {one.turn_id for one in turns.claim_turns(ids, "w").claimed} == set(ids)


def test_a_turn_claimed_alone_comes_with_the_messages_for_the_model():
    session = factories.session()
    turn = opened(session)
    found = turns.claim_turns([turn.pk], "w")
    assert found.messages == message_history.list_rows_for_model(session.pk)
    assert [row.content for row in found.messages or ()] == ["Hello"]
    assert turns.claim_turns([opened().pk, opened().pk], "w").messages is None


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_fails_raises_djangos_error_and_claims_nothing():
    turn = opened()
    with pytest.raises(DataError):
        turns.claim_turns([turn.pk], "\0")
    assert Turn.objects.get(pk=turn.pk).status == "queued"


MOVES = {
    "succeeded": {"running"},
    "failed": {"queued", "running", "waiting"},
    "cancelled": {"queued", "running", "waiting"},
}


@pytest.mark.parametrize("to", MOVES)
@pytest.mark.parametrize("now", ["queued", "running", "waiting", "succeeded", "failed", "cancelled"])
def test_an_ending_is_reached_only_from_where_it_may_be(now, to):
    """T2.2, T4.3"""
    turn = factories.turn(factories.session(), now)
    code = "internal_error" if to == "failed" else ""
    if now in MOVES[to]:
        turn_transitions.end_turn(turn.pk, turn.fence, Turn.Status(to), failure_code=code)
        turn.refresh_from_db()
        assert (turn.status, turn.ended_at is not None) == (to, True)
    else:
        with pytest.raises(TurnConflict):
            turn_transitions.end_turn(turn.pk, turn.fence, Turn.Status(to), failure_code=code)


def test_an_ending_under_another_fence_is_refused():
    """T4.3: older and newer"""
    turn = factories.turn(factories.session(), "running", fence=5)
    for fence in (4, 6):
        with pytest.raises(TurnConflict):
            turn_transitions.end_turn(turn.pk, fence, turns.SUCCEEDED)


def test_an_override_raises_the_fence():
    """T7.1: a worker that was overridden cannot write any more"""
    turn = factories.turn(factories.session(), "running", fence=5)
    turn_transitions.end_turn(turn.pk, 5, turns.CANCELLED, reason="user", override=True)
    turn.refresh_from_db()
    assert (turn.fence, Session.objects.get(pk=turn.session_id).fence) == (6, 6)


def test_an_ending_waits_for_what_is_queued_unless_stopped():
    """T6.3: asked and ended in one statement"""
    turn = factories.turn(factories.session(), "running")
    factories.pending(turn.session, "Wait")
    with pytest.raises(TurnConflict):
        turn_transitions.end_turn(turn.pk, turn.fence, turns.SUCCEEDED, unless_pending=True)
    turn_transitions.request_stop(turn.session_id)
    turn_transitions.end_turn(turn.pk, turn.fence, turns.SUCCEEDED, unless_pending=True)


def test_an_ending_that_was_answered_into_the_void_is_recognised():
    """T9.3: the first try came through, its answer did not"""
    turn = factories.turn(factories.session(), "running", fence=5)
    turn_transitions.end_turn(turn.pk, 5, turns.SUCCEEDED)
    assert turn_transitions.find_own_ending(turn.pk, 5, turns.SUCCEEDED) is not None
    assert turn_transitions.find_own_ending(turn.pk, 5, turns.CANCELLED) is None
    assert turn_transitions.find_own_ending(turn.pk, 4, turns.SUCCEEDED) is None


def test_the_summary_survives():
    """A3.6"""
    turn = factories.turn(factories.session(), "running")
    summary = TurnSummary(
        duration_ms=5, first_token_ms=1, tokens_per_second=2.5, rounds=1, tokens=Tokens(output=3), model="m"
    )
    turn_transitions.end_turn(turn.pk, turn.fence, turns.SUCCEEDED, summary=summary)
    turn.refresh_from_db()
    assert (turn.summary["tokens"]["output"], turn.model) == (3, "m")


# --- stopping and changing hands ---------------------------------------------------------------------


def test_a_stop_covers_what_was_accepted_before_it():
    """T7.3: by accept number"""
    turn = factories.turn(factories.session(), "running")
    before = factories.pending(turn.session, "Before")
    assert turn_transitions.request_stop(turn.session_id).stop_through == before.accept_number
    after = factories.pending(turn.session, "After")
    assert after.accept_number > before.accept_number


def test_an_idle_session_cannot_be_stopped():
    """T7.3"""
    turn = factories.turn(factories.session(), "succeeded")
    assert turn_transitions.request_stop(turn.session_id) is None
    assert turn_transitions.request_stop(factories.session().pk) is None


def test_a_stop_that_names_another_turn_touches_nothing():
    """A1.5"""
    turn = factories.turn(factories.session(), "running")
    assert turn_transitions.request_stop(turn.session_id, factories.uuid.uuid4()) is None


def test_a_lost_worker_costs_an_attempt_and_a_hand_over_does_not():
    """D1, A3.9: both raise the fence"""
    turn = factories.turn(factories.session(), "running", fence=3, attempts=1)
    lost = turn_transitions.requeue_turn(turn.pk, 3, lost=True)
    assert (lost.fence, lost.attempts) == (4, 2)
    turns.claim_turns([turn.pk], "w")
    planned = turn_transitions.requeue_turn(turn.pk, 4, lost=False)
    assert (planned.fence, planned.attempts) == (5, 2)
    assert turn_transitions.requeue_turn(turn.pk, 5, lost=True) is None
    turn.refresh_from_db()
    assert (turn.status, turn.handovers, turn.worker) == ("queued", 1, "")


def test_fences_only_grow():
    """T4.1: their truth is Postgres"""
    session = factories.session()
    seen = []
    for _ in range(3):
        turn = opened(session)
        [claimed] = turns.claim_turns([turn.pk], "w").claimed
        requeued = turn_transitions.requeue_turn(turn.pk, claimed.fence, lost=True)
        turns.claim_turns([turn.pk], "w")
        turn_transitions.end_turn(turn.pk, requeued.fence, turns.SUCCEEDED)
        seen += [claimed.fence, requeued.fence]
    assert seen == sorted(set(seen))


def test_what_a_worker_believes_to_run_is_checked_by_fence():
    """D2"""
    mine, taken, over = (
        factories.turn(factories.session(), status, fence=2) for status in ("running", "running", "failed")
    )
    held = [(mine.pk, 2), (taken.pk, 1), (over.pk, 2)]
    assert turns.list_still_running(held) == {mine.pk}


MODELS = {
    "standard": TierModel(name="Small One", provider="openai_chat", model="small-one"),
    "advanced": TierModel(name="Large One", provider="anthropic", model="large-one"),
}


def test_the_row_of_the_first_model_call_comes_with_the_claim():
    """A19.3: it is stored before the request is sent, and a later run of the turn makes no second first call"""
    one = opened()
    [claimed] = turns.claim_turns([one.pk], "worker", MODELS).claimed
    assert claimed.has_first_call
    assert [(call.number, call.provider, call.model) for call in ModelCall.objects.filter(turn=one.pk)] == [
        (1, "openai_chat", "small-one")
    ]
    turn_transitions.requeue_turn(one.pk, claimed.fence, lost=True)
    [again] = turns.claim_turns([one.pk], "another", MODELS).claimed
    assert (again.has_first_call, again.calls) == (False, 1)
    assert ModelCall.objects.filter(turn=one.pk).count() == 1


def test_the_model_of_a_turn_is_known_from_its_start():
    """A4.3: recorded by the claim itself, and not chosen again when the catalogue changes before a later run"""
    one, other = opened(), factories.turn(factories.session(), tier="advanced")
    turns.claim_turns([one.pk, other.pk], "worker", MODELS)
    assert Turn.objects.get(pk=one.pk).model == "Small One"
    assert Turn.objects.get(pk=other.pk).model == "Large One"
    turn_transitions.requeue_turn(one.pk, Turn.objects.get(pk=one.pk).fence, lost=True)
    edited = {"standard": TierModel(name="Newer", provider="openai_chat", model="newer")}
    [again] = turns.claim_turns([one.pk], "another", edited).claimed
    turn_transitions.end_turn(one.pk, again.fence, Turn.Status.FAILED, failure_code="unknown")
    assert Turn.objects.get(pk=one.pk).model == "Small One"


def test_a_stopped_turn_is_claimed_without_a_call():
    """A1.5: it never asks"""
    one = opened()
    turn_transitions.request_stop(one.session_id)
    [claimed] = turns.claim_turns([one.pk], "worker", MODELS).claimed
    assert (claimed.stopped, claimed.has_first_call) == (True, False)
    assert not ModelCall.objects.filter(turn=one.pk).exists()
