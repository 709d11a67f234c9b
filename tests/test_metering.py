"""A19.7: what a running turn takes is told while it runs, and never in a hurry."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

from billing import usage as billing_usage
from billing.usage import UsageCall
from copilot.agent import budgets
from copilot.agent.live_metering import LiveMeter
from copilot.events import Tokens, UsageMetered
from copilot.providers.scripted import Call, Text
from tests import make
from tests.engine import Errand, add_tools, cue, ended, rigged, start, told, until


class Running:
    """A loop as the meter sees it."""

    characters = 0
    characters_under_way = 0
    context_used_percent = 42.0
    tokens = Tokens(input=10)


def test_figures_follow_deltas_and_otherwise_come_once_a_second():
    """A19.7"""
    meter, loop = LiveMeter(), Running()
    assert meter.look(loop, 0.0).tokens_per_second is None
    loop.characters = loop.characters_under_way = 400
    figures = meter.look(loop, 0.5)
    assert (figures.tokens_per_second, figures.tokens.output, figures.estimated) == (200.0, 100, True)
    assert figures.context_used_percent == 42.0
    assert meter.look(loop, 1.0) is None
    assert meter.look(loop, 1.5) is not None


def test_the_rate_is_of_the_last_five_seconds():
    """A19.7: absent when the provider sends no deltas"""
    meter, loop = LiveMeter(), Running()
    loop.characters = 4_000
    meter.look(loop, 0.0)
    loop.characters = 8_000
    assert meter.look(loop, 4.0).tokens_per_second == 250.0
    assert meter.look(loop, 20.0).tokens_per_second is None


def test_a_running_turn_tells_its_figures_and_an_idle_session_none(transactional_db, settings):
    """A19.7, A19.8: without money"""
    settings.METER_SECONDS = 0.05
    with rigged() as rig:
        rig.start_worker()
        session = make.session()
        rig.model.will(Text("Some words"), cue(1), Text(" more"))
        turn_id = start(session)
        rig.model.reaches(1)
        until(lambda: told(session.pk, "usage.metered"))
        rig.model.give(1)
        ended(turn_id)
        figures = told(session.pk, "usage.metered")
        assert all(isinstance(one, UsageMetered) and one.context_used_percent is not None for one in figures)
        assert told(session.pk)[-1].kind != "usage.metered"


def test_a_turn_that_goes_on_tells_how_much_of_the_limit_is_used(transactional_db, settings, monkeypatch):
    """A19.7: of the fuller window, as of the last recorded call, and without amounts"""
    settings.METER_SECONDS = 0.05
    with rigged() as rig:
        rig.start_worker()
        session = make.session()
        errand = Errand("wait", waits=True)
        add_tools(monkeypatch, errand)
        billing_usage.record(
            UsageCall(
                call_id=uuid4(),
                user_id=session.owner_id,
                occurred_at=datetime.now(UTC),
                provider="openai_chat",
                model="m",
                tokens=None,
                reported="0.25",
            )
        )
        rig.model.will(Call("wait"))
        turn_id = start(session)
        until(lambda: [one.limit_used_percent for one in told(session.pk, "usage.metered")][-1:] == [25.0])
        errand.cue.give()
        ended(turn_id)


class Beside:
    """Work that a turn does not wait for, counted and not done."""

    looks = 0

    def in_background(self, work):
        self.looks += 1
        work.close()


def test_the_limit_is_looked_up_seldom_and_beside_the_turn():
    """A19.7, P12: never before a call is recorded, then once for all calls of ten seconds"""
    calls, beside = SimpleNamespace(recorded_number=0), Beside()
    used = budgets.LimitUsed(SimpleNamespace(user_id=1), SimpleNamespace(calls=calls), beside)
    assert (used.percent(0.0), beside.looks) == (None, 0)
    for tick in range(20):
        calls.recorded_number += 1
        used.percent(tick / 2)
    assert beside.looks == 1
    used.percent(budgets.LOOK_SECONDS)
    used.percent(3 * budgets.LOOK_SECONDS)  # nothing was recorded since
    assert beside.looks == 2


def test_a_look_at_the_limit_is_one_statement(db, django_assert_num_queries):
    """A19.7, P12"""
    user = make.ada()
    budgets.used_percent(user.pk)  # policy is read once a process
    with django_assert_num_queries(1):
        assert budgets.used_percent(user.pk) == 0.0
