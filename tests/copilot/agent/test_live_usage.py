"""A19.7: what a running turn takes is told while it runs, and never in a hurry."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

from billing.usage import usage_records
from billing.usage.usage_records import UsageCall
from copilot.agent import budget
from copilot.agent.runner import LiveUsageMeter
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.realtime.events import UsageMetered
from copilot.realtime.payloads import Tokens
from tests.support import factories
from tests.support.turn_engine import Errand, add_tools, cue, ended, rigged, start, told, until


class Running:
    """A loop as the meter sees it."""

    characters = 0
    characters_under_way = 0
    context_used_percent = 42.0
    tokens = Tokens(input=10)


def test_figures_follow_deltas_and_otherwise_come_once_a_second():
    """A19.7"""
    meter, loop = LiveUsageMeter(), Running()
    assert meter.measure(loop, 0.0).tokens_per_second is None
    loop.characters = loop.characters_under_way = 400
    figures = meter.measure(loop, 0.5)
    assert (figures.tokens_per_second, figures.tokens.output, figures.estimated) == (200.0, 100, True)
    assert figures.context_used_percent == 42.0
    assert meter.measure(loop, 1.0) is None
    assert meter.measure(loop, 1.5) is not None


def test_the_rate_is_of_the_last_five_seconds():
    """A19.7: absent when the provider sends no deltas"""
    meter, loop = LiveUsageMeter(), Running()
    loop.characters = 4_000
    meter.measure(loop, 0.0)
    loop.characters = 8_000
    assert meter.measure(loop, 4.0).tokens_per_second == 250.0
    assert meter.measure(loop, 20.0).tokens_per_second is None


def test_a_running_turn_tells_its_figures_and_an_idle_session_none(transactional_db, settings):
    """A19.7, A19.8: without money"""
    settings.METER_SECONDS = 0.05
    with rigged() as rig:
        rig.start_worker()
        session = factories.session()
        rig.model.will(ScriptedText("Some words"), cue(1), ScriptedText(" more"))
        turn_id = start(session)
        rig.model.reaches(1)
        until(lambda: told(session.pk, "usage.metered"))
        rig.model.give(1)
        ended(turn_id)
        figures = told(session.pk, "usage.metered")
        assert all(isinstance(one, UsageMetered) and one.context_used_percent is not None for one in figures)
        assert told(session.pk)[-1].kind != "usage.metered"


def test_a_continued_turn_reports_how_much_of_the_limit_is_used(transactional_db, settings, monkeypatch):
    """A19.7: of the fuller window, as of the last recorded call, and without amounts"""
    settings.METER_SECONDS = 0.05
    with rigged() as rig:
        rig.start_worker()
        session = factories.session()
        errand = Errand("wait", waits=True)
        add_tools(monkeypatch, errand)
        usage_records.record_usage(
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
        rig.model.will(ScriptedCall("wait"))
        turn_id = start(session)
        until(lambda: [one.limit_used_percent for one in told(session.pk, "usage.metered")][-1:] == [25.0])
        errand.cue.give()
        ended(turn_id)


class Beside:
    """Work that a turn does not wait for, counted and not done."""

    looks = 0

    def run_in_background(self, work):
        self.looks += 1
        work.close()


def test_the_limit_is_looked_up_seldom_and_beside_the_turn():
    """A19.7, P12: never before a call is recorded, then once for all calls of ten seconds"""
    calls, beside = SimpleNamespace(recorded_count=0), Beside()
    used = budget.LimitUsage(SimpleNamespace(user_id=1), SimpleNamespace(model_calls=calls), beside)
    assert (used.current_percent(0.0), beside.looks) == (None, 0)
    for tick in range(20):
        calls.recorded_count += 1
        used.current_percent(tick / 2)
    assert beside.looks == 1
    used.current_percent(budget.LIMIT_CHECK_SECONDS)
    used.current_percent(3 * budget.LIMIT_CHECK_SECONDS)  # nothing was recorded since
    assert beside.looks == 2


def test_a_look_at_the_limit_is_one_statement(db, django_assert_num_queries):
    """A19.7, P12"""
    user = factories.ada()
    budget.read_limit_percent(user.pk)  # policy is read once a process
    with django_assert_num_queries(1):
        assert budget.read_limit_percent(user.pk) == 0.0
