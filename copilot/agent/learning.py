"""What a turn learns of its models is known to the turns of every process (A4.4, A7.7)."""

from __future__ import annotations

from django.conf import settings

from copilot import offering
from copilot.agent.services import Services
from copilot.bridge import in_thread
from copilot.providers.base import Entry, FailureCode
from copilot.providers.breakers import BREAKERS
from copilot.providers.lessons import LESSONS, Lesson


class TurnLessons:
    """The loop's lessons: known here at once, and elsewhere when those processes look for edits next."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def recall(self, entry: Entry) -> Lesson:
        return LESSONS.recall(entry)

    def learn(self, entry: Entry, lesson: Lesson) -> None:
        LESSONS.learn(entry, lesson)
        self._services.in_background(in_thread(offering.keep_lesson, entry, lesson))


class TurnHealth:
    """The loop's word on models that fail: counted for all processes, off the turn's road."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def tripped(self, entry: Entry) -> FailureCode | None:
        return BREAKERS.tripped(entry)

    def failed(self, entry: Entry, code: FailureCode) -> None:
        if settings.MODEL_BREAKER_FAILURES:
            self._services.in_background(in_thread(offering.count_failure, entry, code))
