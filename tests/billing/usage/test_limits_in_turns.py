"""B7, B9.8: where limits bind a conversation, what waits meanwhile, and what priced tools cost."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from billing import ledger, policies, redis_counters
from billing.models import BillingNotice, LedgerEntry, LimitPolicy
from billing.usage import resets
from config.core.errors import NotFound, TooManyRequests
from copilot.chat import admission, approval_decisions, next_turn
from copilot.chat import queue as chat_queue
from copilot.chat.commands import DecideApproval
from copilot.models import Approval, Message, Turn
from copilot.providers.base import ToolCall
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.tools import execution
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput
from tests.support import factories
from tests.support.redis_outages import make_connection_pool
from tests.support.turn_engine import (
    Errand,
    add_tools,
    command,
    cue,
    ended,
    lease_of,
    queue,
    say,
    start,
    told,
    until,
)
from tests.support.usage import record_usage


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone():
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


@pytest.fixture
def session(rig):
    return factories.session()


def waiting(session):
    return [one.text for one in chat_queue.list_pending_messages(session.pk)]


@pytest.fixture
def kept(session, model):
    """B7.c2: two messages were queued behind a turn whose cost exhausts the limit."""
    ledger.grant_credits(session.owner_id, 1_000, key="grant:1")
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    for text in ("First", "Second"):
        queue(session, text)
    record_usage(session.owner, 1_000_000)
    model.give(1)
    ended(turn_id)
    until(lambda: told(session.pk, "limit.reached"))
    until(lambda: not lease_of(session))
    return session


def test_a_follow_up_is_refused_while_the_turn_continues(session, model):
    """B7.c1: 429, the queue is as it was, and the running turn ends normally."""
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    record_usage(session.owner, 1_000_000)
    with pytest.raises(TooManyRequests) as refused:
        say(session, "And this?")
    assert refused.value.code == "limit_reached"
    assert waiting(session) == []
    model.give(1)
    assert ended(turn_id).status == "succeeded"


def test_what_is_queued_stays_when_the_limit_is_reached(kept):
    """B7.c2, B7.2: nothing continues, nothing starts, both wait in order, and one notice says so."""
    assert Turn.objects.get().status == "succeeded"
    assert waiting(kept) == ["First", "Second"]
    notice = BillingNotice.objects.get()
    assert (notice.kind, notice.data["queued"], notice.data["window"], notice.data["can_reset"]) == (
        "limit_reached",
        2,
        "daily",
        True,
    )
    next_turn.start_stranded_messages(kept.pk)  # the sweep looks again, and says nothing new
    assert waiting(kept) == ["First", "Second"]
    assert BillingNotice.objects.count() == len(told(kept.pk, "limit.reached")) == 1


def test_a_reset_sends_what_waited(kept, model):
    """B7.c3, B7.4: one continuation with both messages, and the queue is empty."""
    model.will(ScriptedText("Go on"))
    resets.buy_usage_reset(kept.owner_id)
    until(lambda: Turn.objects.filter(session=kept, status="succeeded").count() == 2)
    assert waiting(kept) == []
    second = Turn.objects.filter(session=kept).latest("created_at")
    said = Message.objects.filter(turn=second, kind="user").order_by("sequence")
    assert [row.content for row in said] == ["First", "Second"]


def test_unreadable_counters_keep_nothing_waiting(session, model, monkeypatch):
    """B7.c4: the continuation runs."""
    model.will(ScriptedText("Talking"), cue(1))
    model.will(ScriptedText("Go on"))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "First")
    record_usage(session.owner, 1_000_000)
    monkeypatch.setattr(
        redis_counters.get_redis_client(), "connection_pool", make_connection_pool("redis://127.0.0.1:1")
    )
    model.give(1)
    ended(turn_id)
    until(lambda: waiting(session) == [])


def test_a_running_turn_holds_money_until_it_ends(session, model):
    """B7.1, B6.7: the second start is refused, of it nothing stays; after the end there is room again."""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 600_000})
    policies.clear_policy_cache()
    record_usage(session.owner, 400_000)
    other = factories.session()
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    with pytest.raises(TooManyRequests) as refused:
        say(other, "Me too")
    assert refused.value.code == "limit_held"
    assert not Message.objects.filter(session=other).exists()
    assert not lease_of(other)
    model.give(1)
    ended(turn_id)
    until(
        lambda: (
            not redis_counters.get_redis_client().hgetall(redis_counters.build_holds_key(session.owner_id))
        )
    )
    model.will(ScriptedText("Now"))
    assert ended(start(other)).status == "succeeded"


def test_a_turn_that_is_handed_over_keeps_what_is_held_for_it(session, model, rig):
    """B6.7: only an end or a pause settles it; the worker that leaves has neither seen."""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 600_000})
    policies.clear_policy_cache()
    model.otherwise = lambda request: (
        [ScriptedText(" on."), cue(2)]
        if "Going" in repr(request.messages[-2:])
        else [ScriptedText("Going"), cue(1)]
    )
    turn_id = start(session)
    model.reaches(1)
    old = rig.worker
    rig.start_worker()
    old.leave(grace_seconds=0)
    model.reaches(2)
    assert list(
        redis_counters.get_redis_client().hgetall(redis_counters.build_holds_key(session.owner_id))
    ) == [str(turn_id)]
    model.give(2)
    assert ended(turn_id).status == "succeeded"
    until(
        lambda: (
            not redis_counters.get_redis_client().hgetall(redis_counters.build_holds_key(session.owner_id))
        )
    )


def test_decisions_that_are_refused_together_hold_nothing(session, model, monkeypatch):
    """B7, A11.4, B6.7: one of two turns would still be admitted; neither continues, and nothing stays held."""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    asked = []
    for one in (session, factories.session()):
        model.will(ScriptedCall("pay", {}))
        start(one)
        until(lambda one=one: Approval.objects.filter(session=one).exists() and not lease_of(one))
        asked.append(Approval.objects.get(session=one))
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 600_000})
    policies.clear_policy_cache()
    record_usage(session.owner, 500_000)
    decisions = [DecideApproval(approval_id=one.pk, decision="approve") for one in asked]
    with pytest.raises(TooManyRequests):
        approval_decisions.decide_approvals(session.owner_id, decisions)
    assert set(Approval.objects.values_list("state", flat=True)) == {"requested"}
    assert redis_counters.get_redis_client().hgetall(redis_counters.build_holds_key(session.owner_id)) == {}


def test_a_conversation_of_somebody_else_is_not_there_whatever_the_limit_says(session):
    """B7.1: ownership before the check: a used-up limit tells nothing of it, with a run_id or without."""
    bob = factories.user("bob")
    record_usage(bob, 1_000_000)
    for run_id in (None, "mine"):
        with pytest.raises(NotFound):
            admission.submit_message(command(session, "Hello", user_id=bob.pk, run_id=run_id))


# --- priced tools ---------------------------------------------------------------------------------------


class Nothing(ToolArguments):
    pass


def priced(run, seconds=60):
    return Tool(
        name="oracle", description="", arguments=Nothing, run=run, timeout_seconds=seconds, price_cents=5
    )


async def answer(arguments: Nothing, invocation: ToolInvocation) -> ToolOutput:
    return ToolOutput(value="42")


async def silent(arguments: Nothing, invocation: ToolInvocation) -> ToolOutput:
    raise ValueError("nothing came")


async def dry(arguments: Nothing, invocation: ToolInvocation) -> ToolOutput:
    return ToolOutput(value="it would say 42", dry_run=True)


async def slow(arguments: Nothing, invocation: ToolInvocation) -> ToolOutput:
    invocation.mark_delivered()
    await asyncio.Event().wait()
    raise AssertionError


async def consulting(session, turn, run, seconds=60, call_id="call_1"):
    from copilot.chat.permissions import UNRESTRICTED
    from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext

    context = TurnContext(
        session_id=str(session.pk), turn_id=str(turn.pk), user_id=session.owner_id, fence=turn.fence, origin="web",
        permissions=UNRESTRICTED, channel=CHANNELS_BY_ORIGIN["web"],
    )  # fmt: skip
    call = ToolCall(call_id=call_id, tool="oracle", arguments={})
    group = execution.run_tool_calls(
        [call], context=context, emit=lambda event: None, outside=[priced(run, seconds)]
    )
    return [outcome async for outcome in group]


def consult(*asked, **more):
    [outcome] = asyncio.run(consulting(*asked, **more))
    return outcome


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("run", "spent"), [(answer, 5), (silent, 0), (dry, 0), (slow, 5)])
def test_a_priced_tool_costs_what_it_delivers(run, spent):
    """B9.c5: one output, also before a time-out: one SPEND; no output or a dry run: none."""
    session = factories.session()
    ledger.grant_credits(session.owner_id, 100, key="grant:1")
    turn = factories.turn(session, "running")
    for _ in range(2):  # the same call again
        consult(session, turn, run, seconds=1 if run is slow else 60)
    entries = LedgerEntry.objects.filter(kind="SPEND")
    assert -sum(entry.amount_cents for entry in entries) == spent
    assert entries.count() == bool(spent)


@pytest.mark.django_db(transaction=True)
def test_what_cannot_be_charged_any_more_is_kept_and_written_down(monkeypatch, caplog):
    """B9.c5: with balance 0 the output is delivered, and one `billing_leak` is logged."""
    session = factories.session()
    ledger.grant_credits(session.owner_id, 5, key="grant:1")

    async def meanwhile(arguments: Nothing, invocation: ToolInvocation) -> ToolOutput:
        from config.core.db import run_in_thread

        await run_in_thread(lambda: ledger.spend(session.owner_id, 5, key="elsewhere"))
        return ToolOutput(value="42")

    outcome = consult(session, factories.turn(session, "running"), meanwhile)
    assert outcome.success
    leaks = [entry for entry in caplog.records if "billing_leak" in entry.getMessage()]
    assert [entry.levelno for entry in leaks] == [logging.ERROR]
    assert leaks[0].msg["leak_type"] == "insufficient_balance"
    refused = consult(session, factories.turn(factories.session(), "running"), answer, call_id="call_2")
    assert "insufficient_credits" in refused.content


@pytest.mark.django_db(transaction=True)
def test_what_was_delivered_is_charged_however_often_its_turn_is_cut_off():
    """B9.8: stopped, and then lost to another worker while the tool still clings to its work."""
    session = factories.session()
    ledger.grant_credits(session.owner_id, 100, key="grant:1")
    turn = factories.turn(session, "running")

    async def cut_off_twice():
        delivered, stopped, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def stubborn(arguments: Nothing, invocation: ToolInvocation) -> ToolOutput:
            invocation.mark_delivered()
            delivered.set()
            try:
                await never.wait()
            except asyncio.CancelledError:
                stopped.set()
            await never.wait()
            raise AssertionError

        asked = asyncio.ensure_future(consulting(session, turn, stubborn))
        await delivered.wait()
        asked.cancel()
        await stopped.wait()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        await asyncio.gather(*execution._running_charges)

    asyncio.run(cut_off_twice())
    assert [entry.amount_cents for entry in LedgerEntry.objects.filter(kind="SPEND")] == [-5]
