"""What a turn learns of its models is known to the turns of every process (A4.4)."""

from __future__ import annotations

from copilot import offering
from copilot.agent.services import Services
from copilot.bridge import in_thread
from copilot.providers.base import Entry
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
