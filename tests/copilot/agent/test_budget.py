"""A10.4 and B6.10: what a turn may cost, and the user's own limit between its calls."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing.models import LimitPolicy, ModelPrice, UsageRecord
from billing.policies import clear_policy_cache
from copilot.agent.budget import smallest_limit
from copilot.agent.guards import BudgetGuard, ReachedLimit
from copilot.agent.interfaces import BudgetStatus
from copilot.agent.outputs import LoopAnswered, LoopFailed, NoticeAdded
from copilot.chat import model_calls, side_questions
from copilot.models import ModelCall, Turn
from copilot.providers.base import ProviderFailure
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText
from tests.support import factories
from tests.support.agent_doubles import InMemoryBudget
from tests.support.agent_loop import Reciter, call, calls, loop_of, of, play, say
from tests.support.turn_engine import (
    Errand,
    add_tools,
    cue,
    ended,
    kinds,
    make_cost_report,
    notices,
    queue,
    start,
    until,
)


def spends(model, microdollars, *, times):
    """Rounds that say something, call a tool and cost this much."""
    for number in range(times):
        model.will(
            ScriptedText(f"Part {number}."),
            ScriptedCall("fetch", {"note": str(number)}),
            make_cost_report(microdollars),
        )


def look(call_id, text=""):
    return calls(call(call_id, "look"), text=text)


# --- the loop alone ----------------------------------------------------------------------------------


async def test_a_round_that_would_pass_the_budget_is_not_begun():
    """A10.c2: budget 1,000 and rounds of 400: the third call is not made"""
    budget = InMemoryBudget(400, 400, budget=1_000)
    reciter = Reciter(look("1", "Looking."), look("2", "Again."))
    parts = await play(loop_of(reciter, budget=budget))
    assert len(reciter.requests) == budget.reads == 2
    assert parts[-1] == LoopAnswered(limit_code="budget_reached")
    assert [notice.code for notice in of(parts, NoticeAdded)] == ["budget_reached"]


async def test_a_budget_that_ends_a_turn_without_words_fails_it():
    """A10.6"""
    reciter = Reciter(look("1"))
    parts = await play(loop_of(reciter, budget=InMemoryBudget(400, budget=400)))
    assert parts[-1] == LoopFailed(code="budget_reached")


async def test_the_users_own_limit_ends_the_turn_between_calls_and_says_when_it_lifts():
    """B6.10"""
    reciter = Reciter(look("1", "Looking."), look("2", "Again."))
    parts = await play(loop_of(reciter, budget=InMemoryBudget(limit_after=1)))
    assert len(reciter.requests) == 2
    assert [(one.code, one.details) for one in of(parts, NoticeAdded)] == [("limit_reached", "Reached.")]


async def test_a_failed_call_is_not_tried_again_without_money():
    """A10.4: before each model call"""
    reciter = Reciter([ProviderFailure("overloaded")])
    parts = await play(loop_of(reciter, budget=InMemoryBudget(400, budget=400)))
    assert parts[-1] == LoopFailed(code="budget_reached")
    assert len(reciter.requests) == 1


async def test_a_turn_of_one_call_is_never_asked_for_money():
    budget = InMemoryBudget(budget=1)
    await play(loop_of(Reciter(say("Hello.")), budget=budget))
    assert budget.reads == 0


@pytest.mark.parametrize(
    ("spending", "refused"),
    [
        (BudgetStatus(spent=600, budget=1_000), None),
        (BudgetStatus(spent=600, reserved=400, budget=1_000), ReachedLimit(code="budget_reached")),
        (BudgetStatus(spent=1_000, budget=1_000), ReachedLimit(code="budget_reached")),
        (BudgetStatus(spent=10**9, budget=0), None),
        (BudgetStatus(spent=1_000, budget=1_000, limit="Reached."), ReachedLimit(code="budget_reached")),
        (BudgetStatus(limit="Reached."), ReachedLimit(code="limit_reached", details="Reached.")),
    ],
)
async def test_what_is_spent_and_reserved_is_held_against_the_budget(spending, refused):
    class Fixed:
        async def read_spending(self):
            return spending

    assert await BudgetGuard(Fixed(), resumed=True).check_before_round() == refused


def test_the_smallest_bound_that_binds_is_the_budget():
    assert (smallest_limit(1_000, 0, 300), smallest_limit(0, 0), smallest_limit(0, 7)) == (300, 0, 7)


# --- the whole engine --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _the_scripted_model_has_its_price(request):
    """It costs nothing by default; here it costs what its replies report."""
    if "rig" in request.fixturenames:
        request.getfixturevalue("rig")
        ModelPrice.objects.filter(provider="scripted").delete()
        clear_policy_cache()


@pytest.fixture
def fetch(monkeypatch):
    errand = Errand("fetch")
    add_tools(monkeypatch, errand)
    return errand


def test_a_turn_ends_at_its_budget_with_everything_kept_and_the_exact_spend_recorded(
    rig, model, settings, fetch
):
    """A10.c2, A10.6"""
    settings.TURN_BUDGET_MICRODOLLARS = 1_000
    session = factories.session()
    spends(model, 400, times=4)
    turn = ended(start(session))
    assert (turn.status, turn.limit_code, notices(session)) == (
        "succeeded",
        "budget_reached",
        ["budget_reached"],
    )
    assert len(model.requests) == fetch.runs == 2
    assert kinds(session).count("tool_result") == 2
    assert model_calls.get_turn_spending(turn.pk) == model_calls.TurnSpending(spent=800, reserved=0, budget=0)


def test_billings_ceiling_binds_when_it_is_smaller_and_zero_is_none(rig, model, settings, fetch):
    """B6.10"""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_ceiling_microdollars": 500})
    clear_policy_cache()
    session = factories.session()
    spends(model, 400, times=2)
    assert ended(start(session)).limit_code == "budget_reached"
    assert len(model.requests) == 1
    LimitPolicy.objects.update(turn_ceiling_microdollars=0)
    clear_policy_cache()
    settings.TURN_BUDGET_MICRODOLLARS = 0
    assert ended(start(session)).limit_code == ""


def test_ten_rounds_stop_at_the_daily_limit_with_everything_kept(rig, model, settings, fetch):
    """B6.c7, B6.8: at most six calls, the notice, all rows, at most 1,200,000 spent"""
    settings.TURN_BUDGET_MICRODOLLARS = 0
    session = factories.session()
    spends(model, 200_000, times=10)
    turn = ended(start(session))
    assert len(model.requests) <= 6
    assert turn.limit_code == "limit_reached"
    assert notices(session) == ["limit_reached"]
    assert model_calls.get_turn_spending(turn.pk).spent <= 1_200_000
    assert kinds(session).count("tool_call") == kinds(session).count("tool_result") == len(model.requests)


def test_the_policy_can_let_running_turns_pass_the_limit(rig, model, settings, fetch):
    """B6.10: limit_binds_running_turns"""
    settings.TURN_BUDGET_MICRODOLLARS = 0
    LimitPolicy.objects.update_or_create(pk=1, defaults={"limit_binds_running_turns": False})
    clear_policy_cache()
    spends(model, 900_000, times=2)
    assert ended(start(factories.session())).limit_code == ""
    assert len(model.requests) == 3


def test_a_summary_is_not_tried_again_with_money_that_is_not_there(rig, model, settings):
    """A10.4, B6.10: before each model call, the second try of a summary among them"""
    settings.TURN_BUDGET_MICRODOLLARS = 1_000
    session = factories.session()
    model.will(ScriptedFailure("context_overflow"))
    model.will(make_cost_report(1_000), ScriptedFailure("context_overflow"))
    turn = ended(start(session))
    assert (turn.failure_code, len(model.requests)) == ("budget_reached", 2)


def test_a_side_question_is_not_retried_beyond_the_users_limit(rig, model, settings):
    """B6.10, A7.1"""
    settings.RETRY_TRANSIENT_SECONDS = [0]
    session = factories.session()
    model.will(make_cost_report(2_000_000), ScriptedFailure("overloaded"))
    aside = side_questions.ask_side_question(session.owner_id, session.pk, "What is a fid?")
    until(
        lambda: (
            side_questions.get_side_question(session.owner_id, session.pk, aside.side_id).state == "failed"
        )
    )
    assert len(model.requests) == 1


def test_a_message_queued_behind_a_spent_turn_gets_a_turn_of_its_own(rig, model, settings):
    """T6.3 with A10.4"""
    settings.TURN_BUDGET_MICRODOLLARS = 1_000
    session = factories.session()
    model.will(ScriptedText("Done."), cue(1), make_cost_report(1_000))
    first = start(session)
    model.reaches(1)
    queue(session, "And this?")
    model.give(1)
    ended(first)
    until(lambda: Turn.objects.filter(session=session, status="succeeded").count() == 2)
    assert Turn.objects.get(pk=first).limit_code == ""


def child(of: Turn, *, status="running", given=0) -> Turn:
    made = factories.turn(factories.session(), status)
    Turn.objects.filter(pk=made.pk).update(parent=of, budget_microdollars=given)
    return made


def pay(turn: Turn, microdollars: int) -> None:
    ModelCall.objects.create(
        id=uuid.uuid4(), turn=turn, number=1, provider="p", model="m", cost_microdollars=microdollars
    )


@pytest.mark.django_db
def test_children_and_their_children_draw_on_the_same_budget():
    """A21.6: spent by all of them, and reserved what running children may still take"""
    parent = factories.turn(factories.session(), "running")
    running, over = child(parent, given=1_000), child(parent, status="succeeded", given=500)
    grandchild = child(running, given=400)
    for turn, amount in ((parent, 100), (running, 200), (over, 50), (grandchild, 30)):
        pay(turn, amount)
    assert model_calls.get_turn_spending(parent.pk) == model_calls.TurnSpending(
        spent=380, reserved=770, budget=0
    )
    assert model_calls.get_turn_spending(running.pk) == model_calls.TurnSpending(
        spent=230, reserved=370, budget=1_000
    )


@pytest.mark.django_db
def test_a_priced_tool_call_has_a_row_and_counts_once():
    """A19.1, A24.3"""
    turn = factories.turn(factories.session(), "running")
    for _ in range(2):
        model_calls.record_tool_cost(
            turn.pk,
            "call_1",
            session_id=turn.session_id,
            user_id=turn.session.owner_id,
            provider="brave",
            cost_microdollars=5_000,
        )
    row = ModelCall.objects.get(turn=turn)
    assert (row.purpose, row.cost_microdollars, row.cost_source) == ("tool", 5_000, "REPORTED")
    assert (
        UsageRecord.objects.get(pk=row.pk).cost_microdollars
        == model_calls.get_turn_spending(turn.pk).spent
        == 5_000
    )


@pytest.mark.django_db
def test_the_look_is_one_statement_however_many_children():
    """P12"""
    parent = factories.turn(factories.session(), "running")
    for _ in range(3):
        pay(child(parent), 10)
    with CaptureQueriesContext(connection) as queries:
        assert model_calls.get_turn_spending(parent.pk).spent == 30
    assert len(queries) == 1
