"""What a model has taught is remembered for a day, and not beyond an edit (A4.4)."""

from __future__ import annotations

from dataclasses import replace

from copilot.providers.learned_limits import LEARNED_LIMITS_SECONDS, LearnedLimits, LearnedLimitsCache
from tests.support.agent_doubles import ManualClock
from tests.support.agent_loop import ENTRY

BLIND = LearnedLimits(sees=False)


def test_a_lesson_is_kept_for_a_day():
    """A4.4"""
    clock = ManualClock()
    lessons = LearnedLimitsCache(clock.now)
    lessons.learn(ENTRY, BLIND)
    clock.advance(LEARNED_LIMITS_SECONDS - 1)
    assert lessons.recall(ENTRY) == BLIND
    clock.advance(1)
    assert lessons.recall(ENTRY) == LearnedLimits()


def test_an_edited_entry_is_an_unknown_one_also_when_it_is_edited_back():
    """A4.4"""
    lessons = LearnedLimitsCache()
    lessons.learn(ENTRY, BLIND)
    assert lessons.recall(replace(ENTRY, supports_images=True)) == LearnedLimits()
    assert lessons.recall(ENTRY) == LearnedLimits()


def test_a_new_key_forgets_nothing_and_the_old_one_is_not_kept():
    """A4.4"""
    lessons = LearnedLimitsCache()
    lessons.learn(replace(ENTRY, credential="old-secret"), BLIND)
    assert lessons.recall(replace(ENTRY, credential="new-secret")) == BLIND
    assert "secret" not in repr(lessons._remembered)


def test_what_one_model_taught_says_nothing_of_another():
    """A4.4"""
    lessons = LearnedLimitsCache()
    lessons.learn(ENTRY, BLIND)
    assert lessons.recall(replace(ENTRY, name="Other")) == LearnedLimits()
