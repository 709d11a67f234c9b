"""What a turn changes about its requests when a model refuses them as they are (A7.4, A14.4)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import assert_never, get_args

from copilot.agent.ports import Learned
from copilot.events import HealingKind
from copilot.providers.base import Effort, Entry, FailureCode, ProviderFailure
from copilot.providers.lessons import Lesson
from copilot.providers.messages import effort_for

LADDER: tuple[Effort, ...] = get_args(Effort)  # from the most thinking to the least; below it is none
EFFORT_STYLES = ("adaptive", "effort", "gateway")  # a budget has no levels
MOST_STEPS_DOWN = 3

REMEDIES: dict[FailureCode, HealingKind] = {
    "effort_invalid": "effort",
    "thinking_unsupported": "thinking",
    "thinking_signature_invalid": "signature",
    "media_unsupported": "images",
    "auth_failed": "credentials",
}
# One picture was too large or broken: that says nothing about the next one.
ABOUT_THIS_IMAGE = re.compile(
    r"too (?:large|big|many)|exceed|\bsize\b|dimension|pixel|could not|cannot (?:process|read)|corrupt|invalid image",
    re.I,
)


class Healing:
    """One turn's changes, each model's its own. Every kind once per model, effort three steps."""

    def __init__(self, learned: Learned, *, thinking_tokens: int) -> None:
        self._learned = learned
        self._thinking_tokens = thinking_tokens
        self._lessons: dict[str, Lesson] = {}  # what holds in this turn, by model
        self._used: Counter[tuple[str, HealingKind]] = Counter()
        self._to_learn: dict[str, Lesson] = {}  # by model; counts once a request so changed is accepted
        self._thoughts_lost = False

    # --- what a request to `entry` looks like now ----------------------------------------------------

    def thinking_tokens(self, entry: Entry) -> int:
        lost = self._thoughts_lost and entry.provider == "anthropic"
        return self._thinking_tokens if entry.can_reason and self._lesson(entry).thinks and not lost else 0

    def effort(self, entry: Entry) -> Effort | None:
        """The level to ask for when it is not the one that the thinking tokens mean."""
        if not self.thinking_tokens(entry):
            return None
        accepted, meant = self._lesson(entry).effort, effort_for(self._thinking_tokens)
        level = _taken_by(entry, max(accepted or meant, meant, key=LADDER.index))
        return None if accepted is None and level == meant else level

    def sees(self, entry: Entry) -> bool:
        return entry.supports_images and self._lesson(entry).sees

    @property
    def thoughts_lost(self) -> bool:
        return self._thoughts_lost

    def lose_thoughts(self) -> None:
        """The tool loop's replay data is gone: Anthropic refuses thinking until the turn ends (A14.4)."""
        self._thoughts_lost = True

    # --- healing -------------------------------------------------------------------------------------

    def remedy(self, failure: ProviderFailure, entry: Entry) -> HealingKind | None:
        """What may help and was not tried yet."""
        kind = REMEDIES.get(failure.code)
        if kind is None or (kind == "effort" and not self.thinking_tokens(entry)):
            return None
        most = MOST_STEPS_DOWN if kind == "effort" else 1
        return kind if self._used[entry.name, kind] < most else None

    def tried(self, code: FailureCode | None, entry: Entry) -> None:
        """In an earlier run of the turn: it holds, and counts. A level that was accepted there is known already."""
        kind = REMEDIES.get(code) if code else None
        if kind == "effort" and self._learned.recall(entry) != Lesson():
            self._used[entry.name, kind] += 1
        elif kind is not None:
            self.apply(kind, entry, None)

    def apply(self, kind: HealingKind, entry: Entry, failure: ProviderFailure | None) -> None:
        self._used[entry.name, kind] += 1
        match kind:
            case "effort":
                self._change(entry, self._stepped_down(entry))
            case "thinking":
                self._change(entry, replace(self._lesson(entry), thinks=False))
            case "images":
                self._hide_images(entry, failure)
            case "signature":
                self.lose_thoughts()
            case "credentials":
                pass  # the entry itself carries the new one
            case unreachable:
                assert_never(unreachable)

    def accepted(self, entry: Entry) -> None:
        """The model took the request as it was: what was changed is worth remembering (A4.4)."""
        lesson = self._to_learn.pop(entry.name, None)
        if lesson is not None:
            self._learned.learn(entry, lesson)

    def _lesson(self, entry: Entry) -> Lesson:
        if entry.name not in self._lessons:
            self._lessons[entry.name] = self._learned.recall(entry)
        return self._lessons[entry.name]

    def _change(self, entry: Entry, lesson: Lesson) -> None:
        self._lessons[entry.name] = self._to_learn[entry.name] = lesson

    def _stepped_down(self, entry: Entry) -> Lesson:
        level = LADDER.index(self.effort(entry) or effort_for(self._thinking_tokens))
        lower = [one for one in LADDER[level + 1 :] if not entry.efforts or one in entry.efforts]
        if entry.reasoning_style not in EFFORT_STYLES or not lower:
            return replace(self._lesson(entry), thinks=False)
        return replace(self._lesson(entry), effort=lower[0])

    def _hide_images(self, entry: Entry, failure: ProviderFailure | None) -> None:
        blind = replace(self._lesson(entry), sees=False)
        if failure is None or ABOUT_THIS_IMAGE.search(failure.details):
            self._lessons[entry.name] = blind
        else:
            self._change(entry, blind)


def _taken_by(entry: Entry, level: Effort) -> Effort:
    """The strongest level the entry allows that is not above `level`; else its weakest (A4.1)."""
    if not entry.efforts or level in entry.efforts:
        return level
    allowed = sorted(entry.efforts, key=LADDER.index)
    return next((one for one in allowed if LADDER.index(one) > LADDER.index(level)), allowed[-1])
