"""A message followed to its ending (T10)."""

from __future__ import annotations

import asyncio

import pytest
from django.utils import timezone

from config.core.db import run_in_thread
from config.core.errors import NotFound, ServiceUnavailable
from copilot.chat import turn_results
from copilot.chat.commands import SendMessage
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Message, ModelCall, Turn
from copilot.realtime import event_log, fanout
from copilot.realtime.events import TurnCancelled, TurnFailed, TurnPaused
from copilot.realtime.fanout import EVENT_FANOUT
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.rest_clients import NOBODYS, eventually
from tests.support.timeouts import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)
PREVIEW = {"tool": "list_files", "success": True, "preview": "a.txt", "duration_ms": 12, "truncated": False}


@pytest.fixture
def ada():
    return factories.ada()


@pytest.fixture
def session(ada):
    return factories.session(ada)


@pytest.fixture
def turn(session):
    made = factories.turn(session, "running", run_ids=["r1"])
    made.session = session
    factories.message(session, content="hi", turn=made, run_id="r1")
    return made


def end(turn, status, event, **fields):
    """Row first, then the event."""
    Turn.objects.filter(pk=turn.pk).update(status=status, ended_at=timezone.now(), **fields)
    event_log.append_events(str(turn.session_id), [(event, str(turn.pk))])


def answer(turn):
    session = turn.session
    factories.message(session, "assistant", content="Let me look.", turn=turn)
    factories.message(
        session, "tool_call", call_id="c1", data={"tool": "list_files", "arguments": {}}, turn=turn
    )
    factories.message(session, "tool_result", call_id="c1", data=PREVIEW, turn=turn)
    factories.message(session, "assistant", content="There is one file.", turn=turn)
    for number in (1, 2):
        ModelCall.objects.create(
            turn=turn,
            number=number,
            provider="x",
            model="y",
            input_tokens=100,
            output_tokens=7,
            cost_microdollars=9,
        )


async def test_an_ended_turn_is_answered_at_once_with_text_calls_and_tokens(ada, turn):
    """T10, A19.8: tokens, never money."""
    await run_in_thread(answer, turn)
    await run_in_thread(
        lambda: Turn.objects.filter(pk=turn.pk).update(status="succeeded", ended_at=timezone.now())
    )
    outcome = await turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=PATIENCE_SECONDS)
    assert outcome == turn_results.TurnResult(
        turn_id=str(turn.pk),
        status="succeeded",
        text="Let me look.\n\nThere is one file.",
        last_text="There is one file.",
        tool_calls=[
            turn_results.ToolCallResult(
                call_id="c1", tool="list_files", arguments={}, success=True, preview="a.txt", duration_ms=12
            )
        ],
        usage=Tokens(input=200, output=14),
    )


async def test_a_waiter_wakes_when_the_turn_ends(ada, turn):
    waiter = asyncio.create_task(turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=30))
    await eventually(lambda: str(turn.session_id) in EVENT_FANOUT._sessions)
    ending = TurnFailed(run_ids=["r1"], code="overloaded", notice_id=None)
    await run_in_thread(end, turn, "failed", ending, failure_code="overloaded")
    outcome = await asyncio.wait_for(waiter, PATIENCE_SECONDS)
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("overloaded", "Model not responding")


async def test_a_pause_for_approval_is_reported_as_waiting(ada, turn):
    """A31.4: with a link to where it is decided"""
    waiter = asyncio.create_task(turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=30))
    await eventually(lambda: str(turn.session_id) in EVENT_FANOUT._sessions)
    await run_in_thread(lambda: Turn.objects.filter(pk=turn.pk).update(status="waiting"))
    await run_in_thread(
        event_log.append_events, str(turn.session_id), [(TurnPaused(approvals=[]), str(turn.pk))]
    )
    outcome = await asyncio.wait_for(waiter, PATIENCE_SECONDS)
    assert outcome.status == "waiting"
    assert outcome.link.endswith(f"/chat/{turn.session_id}/")


async def test_at_the_deadline_the_answer_so_far_is_returned(ada, turn):
    await run_in_thread(
        lambda: factories.message(turn.session, "assistant", content="So far", turn=turn, streaming=True)
    )
    outcome = await turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=0)
    assert (outcome.status, outcome.text, outcome.error) == ("running", "So far", None)


async def test_a_waiter_follows_its_own_message_not_what_happens_to_run(ada, turn):
    """T10: the ending of the turn in front is not the ending of what waits behind it."""
    waiting = await run_in_thread(factories.pending, turn.session, "mine", run_id="mine")
    waiter = asyncio.create_task(
        turn_results.wait_for_turn(ada.pk, turn.pk, run_id="mine", timeout_seconds=30)
    )
    await eventually(lambda: str(turn.session_id) in EVENT_FANOUT._sessions)
    await run_in_thread(end, turn, "cancelled", TurnCancelled(run_ids=["r1"], reason="user"))
    own = await run_in_thread(factories.turn, turn.session, "running", run_ids=["mine"])
    await run_in_thread(lambda: Message.objects.filter(pk=waiting.pk).update(turn=own, sequence=99))
    await run_in_thread(lambda: factories.message(turn.session, "assistant", content="Yours", turn=own))
    assert not waiter.done()
    await run_in_thread(end, own, "cancelled", TurnCancelled(run_ids=["mine"], reason="user"))
    outcome = await asyncio.wait_for(waiter, PATIENCE_SECONDS)
    assert (outcome.turn_id, outcome.status, outcome.text) == (str(own.pk), "cancelled", "Yours")


async def test_a_message_that_still_waits_is_queued_and_says_nothing_of_the_turn_in_front(ada, turn):
    await run_in_thread(answer, turn)
    await run_in_thread(factories.pending, turn.session, "mine", run_id="mine")
    outcome = await turn_results.wait_for_turn(ada.pk, turn.pk, run_id="mine", timeout_seconds=0)
    assert outcome == turn_results.TurnResult(turn_id=str(turn.pk), status="queued")


async def test_a_message_dropped_from_the_queue_is_cancelled(ada, turn):
    """T3.6"""
    waiting = await run_in_thread(factories.pending, turn.session, "mine", run_id="mine")
    await run_in_thread(lambda: Message.objects.filter(pk=waiting.pk).update(dropped_at=timezone.now()))
    own = await run_in_thread(factories.turn, turn.session, "cancelled", run_ids=["mine"])
    outcome = await turn_results.wait_for_turn(
        ada.pk, turn.pk, run_id="mine", timeout_seconds=PATIENCE_SECONDS
    )
    assert outcome == turn_results.TurnResult(turn_id=str(own.pk), status="cancelled")


async def test_other_users_and_unknown_run_ids_find_nothing(ada, turn):
    bob = await run_in_thread(factories.bob)
    with pytest.raises(NotFound):
        await turn_results.wait_for_turn(bob.pk, turn.pk, timeout_seconds=0)
    with pytest.raises(NotFound):
        await turn_results.wait_for_turn(ada.pk, turn.pk, run_id="never", timeout_seconds=0)


async def test_the_waiter_always_unsubscribes(ada, turn):
    """T10: after an answer, an error and a cancellation alike."""
    await turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=0)
    assert str(turn.session_id) not in EVENT_FANOUT._sessions
    with pytest.raises(NotFound):
        await turn_results.wait_for_turn(ada.pk, turn.pk, run_id="never", timeout_seconds=0)
    assert str(turn.session_id) not in EVENT_FANOUT._sessions
    waiter = asyncio.create_task(turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=30))
    await eventually(lambda: str(turn.session_id) in EVENT_FANOUT._sessions)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert str(turn.session_id) not in EVENT_FANOUT._sessions


async def test_not_being_able_to_subscribe_is_an_error_of_its_own(ada, turn, monkeypatch, settings):
    """T10: never "running"."""
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    monkeypatch.setattr(fanout, "EVENT_FANOUT", fanout.EventFanout())
    with pytest.raises(ServiceUnavailable):
        await turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=30)


async def test_news_lost_with_redis_is_made_up_for_by_the_rows(ada, turn, monkeypatch):
    monkeypatch.setattr(turn_results, "ROW_POLL_SECONDS", 0.05)
    waiter = asyncio.create_task(turn_results.wait_for_turn(ada.pk, turn.pk, timeout_seconds=30))
    await eventually(lambda: str(turn.session_id) in EVENT_FANOUT._sessions)
    await run_in_thread(
        lambda: Turn.objects.filter(pk=turn.pk).update(status="succeeded", ended_at=timezone.now())
    )
    assert (await asyncio.wait_for(waiter, PATIENCE_SECONDS)).status == "succeeded"


async def test_run_and_wait_follows_the_message_it_sent(ada, session):
    """T10"""
    command = SendMessage(
        session_id=session.pk, user_id=ada.pk, text="hi", origin="parent", permissions=UNRESTRICTED
    )

    def submit(sent):
        """Stands for dispatch and a worker that answers at once."""
        assert sent.run_id
        turn = factories.turn(session, "running", run_ids=[sent.run_id])
        factories.message(session, content=sent.text, turn=turn, run_id=sent.run_id)
        factories.message(session, "assistant", content="Hello!", turn=turn)
        end(turn, "succeeded", TurnCancelled(run_ids=[sent.run_id], reason="user"))
        accepted.append(turn.pk)
        return Accepted(turn.pk)

    accepted: list[object] = []
    outcome = await turn_results.submit_and_wait(command, submit=submit, timeout_seconds=PATIENCE_SECONDS)
    assert (outcome.turn_id, outcome.status, outcome.text) == (str(accepted[0]), "succeeded", "Hello!")
    assert str(session.pk) not in EVENT_FANOUT._sessions


class Accepted:
    def __init__(self, turn_id):
        self.turn_id = turn_id


async def test_a_message_that_is_refused_leaves_no_listener(ada):
    from uuid import UUID

    command = SendMessage(
        session_id=UUID(NOBODYS), user_id=ada.pk, text="hi", origin="parent", permissions=UNRESTRICTED
    )

    def refuse(_sent):
        raise NotFound

    with pytest.raises(NotFound):
        await turn_results.submit_and_wait(command, submit=refuse, timeout_seconds=PATIENCE_SECONDS)
    assert NOBODYS not in EVENT_FANOUT._sessions
