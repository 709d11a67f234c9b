"""A model that keeps failing everybody is passed over for a while, and asked last (A7.7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from config.core.redis import get_redis
from copilot.agent.fallback import FallbackChain, RequestNeeds
from copilot.agent.outputs import LoopAnswered, ModelCallStarted
from copilot.models import ModelCall
from copilot.providers import breakers, catalogue, catalogue_store, scripted
from copilot.providers.base import CatalogueEntry, ProviderFailure
from copilot.providers.breakers import BREAKERS, BreakerTrip, ModelBreakers
from copilot.providers.learned_limits import fingerprint_entry
from copilot.providers.scripted import ScriptedFailure, ScriptedText
from copilot.realtime.events import ModelSwitched
from tests.support import factories
from tests.support.agent_doubles import InMemoryModelHealth
from tests.support.agent_loop import Reciter, assert_well_ordered, call, calls, loop_of, of, play, say
from tests.support.turn_engine import answer, ended, quiet, start, told, until

FIRST = CatalogueEntry(
    name="Frail", provider="scripted", model="frail", credential="one", context_window=9_000
)
SECOND = replace(FIRST, name="Sturdy", model="sturdy", credential="two")
THIRD = replace(FIRST, name="Spare", model="spare", credential="three")
ANY = RequestNeeds(tools=False, prompt_tokens=10)
GONE = ProviderFailure("model_not_found")


# --- one turn ----------------------------------------------------------------------------------------


async def test_a_turn_begins_with_the_next_model_and_says_so():
    """A7.7: before its first request, which costs nobody a failure"""
    reciter = Reciter(calls(call("a", "look")), say("Done."))
    health = InMemoryModelHealth(failing={"Frail": "overloaded"})
    parts = await play(loop_of(reciter, chain=(FIRST, SECOND), health=health))
    assert [request.entry.name for request in reciter.requests] == ["Sturdy", "Sturdy"]
    [switched] = of(parts, ModelSwitched)
    assert (switched.from_model, switched.to_model, switched.failure_class) == (
        "Frail",
        "Sturdy",
        "overloaded",
    )
    assert parts.index(switched) < parts.index(of(parts, ModelCallStarted)[0])
    assert (parts[-1], health.reported) == (LoopAnswered(), [])
    assert_well_ordered(parts)


@pytest.mark.parametrize(
    "chain",
    [(FIRST,), (FIRST, replace(SECOND, supports_tools=False)), (FIRST, replace(SECOND, context_window=5))],
)
async def test_a_failing_model_is_asked_all_the_same_where_no_other_suits(chain):
    """A7.7, A7.6"""
    reciter = Reciter(say("Done."))
    parts = await play(
        loop_of(reciter, chain=chain, health=InMemoryModelHealth(failing={"Frail": "overloaded"}))
    )
    assert reciter.requests[0].entry.name == "Frail"
    assert not of(parts, ModelSwitched)


def test_models_that_keep_failing_are_asked_last():
    """A7.7: among those that suit"""
    fallback = FallbackChain(
        (FIRST, SECOND, THIRD), InMemoryModelHealth(failing={"Sturdy": "overloaded"}).open_breaker_code
    )
    assert fallback.choose_next(GONE, FIRST, ANY) == THIRD
    assert fallback.choose_next(GONE, THIRD, ANY) == SECOND
    assert fallback.choose_next(GONE, SECOND, ANY) is None

    both = InMemoryModelHealth(failing={"Frail": "overloaded", "Sturdy": "overloaded"})
    fallback = FallbackChain((FIRST, SECOND, THIRD), both.open_breaker_code)
    assert fallback.choose_instead_of_first(ANY) == THIRD
    assert fallback.choose_next(GONE, THIRD, ANY) == SECOND
    assert fallback.choose_next(GONE, SECOND, ANY) == FIRST
    assert fallback.choose_next(GONE, FIRST, ANY) is None


@pytest.mark.parametrize(
    ("code", "reported"),
    [
        ("model_not_found", ["Frail"]),
        ("quota_exhausted", ["Frail"]),
        ("overloaded", ["Frail"]),  # once, when the turn gives it up: not with every retry
        ("bad_request", []),
        ("refused", []),
        ("context_overflow", []),
    ],
)
async def test_what_is_the_models_own_fault_is_reported_when_a_turn_gives_it_up(code, reported):
    """A7.7"""
    health = InMemoryModelHealth()
    await play(loop_of(Reciter(*[[ProviderFailure(code)]] * 9), chain=(FIRST,), health=health))
    assert [name for name, _ in health.reported] == reported


# --- every process -----------------------------------------------------------------------------------


@pytest.fixture(name="breaking")
def breaking_fixture(settings, redis_clean) -> Iterator[None]:
    settings.MODEL_BREAKER_FAILURES, settings.MODEL_BREAKER_SECONDS = 3, 60
    yield
    BREAKERS.replace_all({})


def test_the_third_failure_within_a_minute_opens_it_for_a_minute(redis_clean):
    """A7.7: for all who ask, by Redis' own clock; the next count begins at nothing"""
    opened = [breakers.count_model_failure("m", "overloaded", failures=3, seconds=60) for _ in range(5)]
    assert opened == [False, False, True, False, False]
    [(name, (why, left))] = breakers.list_open_breakers().items()
    assert (name, why) == ("m", "overloaded")
    assert 0 < left < 61  # a clock may be set back meanwhile
    assert all(0 < get_redis().ttl(key) <= 60 for key in get_redis().keys("*breakers*"))


def test_failures_that_lie_further_apart_open_nothing(redis_clean):
    """A7.7"""
    assert not any(breakers.count_model_failure("m", "overloaded", failures=2, seconds=0) for _ in range(5))
    assert not any(breakers.count_model_failure(name, "overloaded", failures=2, seconds=60) for name in "abc")
    assert breakers.list_open_breakers() == {}


def test_an_open_breaker_closes_after_a_while_and_an_edit_closes_it_at_once():
    """A7.7, A4.4"""
    now = [0.0]
    known = ModelBreakers(lambda: now[0])
    known.open_breaker(fingerprint_entry(FIRST), BreakerTrip(code="overloaded", seconds=60))
    assert known.open_breaker_code(replace(FIRST, credential="new")) == "overloaded"
    assert known.open_breaker_code(replace(FIRST, version=FIRST.version + 1)) is None
    assert known.open_breaker_code(SECOND) is None
    now[0] = 60.0
    assert known.open_breaker_code(FIRST) is None


def test_what_one_process_found_out_another_takes_with_its_next_look(breaking):
    """A7.7"""
    for _ in range(3):
        breakers.count_model_failure(fingerprint_entry(FIRST), "overloaded", failures=3, seconds=60)
    assert BREAKERS.open_breaker_code(FIRST) is None
    catalogue_store.sync_breakers()
    assert BREAKERS.open_breaker_code(FIRST) == "overloaded"
    get_redis().flushdb()
    catalogue_store.sync_breakers()
    assert BREAKERS.open_breaker_code(FIRST) is None


def test_turns_that_give_a_model_up_spare_the_next_one_the_wait(rig, model, breaking):
    """A7.7: three turns find out, the fourth begins with the other model, and its rows say so"""
    before = catalogue.get_catalogue()
    chain = (FIRST, SECOND)
    catalogue.set_catalogue(catalogue.Catalogue(entries=chain, tiers={"standard": chain}))
    for entry in chain:
        scripted.install_script(entry.model, model)
    model.otherwise = lambda request: (
        [ScriptedFailure("model_not_found", status=404)] if request.entry == FIRST else [ScriptedText("Aye.")]
    )
    session = factories.session()
    try:
        for _ in range(3):
            ended(start(session))
            quiet(session)
        until(lambda: BREAKERS.open_breaker_code(FIRST))
        turn = ended(start(session))
        quiet(session)
    finally:
        catalogue.set_catalogue(before)
        for entry in chain:
            scripted.uninstall_script(entry.model)
    asked = [request.entry.name for request in model.requests if request.tools]  # titles have none
    assert asked == ["Frail", "Sturdy"] * 3 + ["Sturdy"]
    assert (turn.status, answer(turn.pk)) == ("succeeded", "Aye.")
    until(lambda: ModelCall.objects.filter(turn=turn.pk, model="sturdy", ended_at__isnull=False).count() == 1)
    assert len(told(session.pk, "model.switched")) == 4
