"""What a turn changes about its requests when a model refuses them as they are (A7.4, A14.4)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import assert_never, get_args

from copilot.agent.interfaces import LearnedLimitsStore
from copilot.providers.base import CatalogueEntry, FailureCode, ProviderFailure, ReasoningEffort, pick_effort
from copilot.providers.learned_limits import LearnedLimits
from copilot.realtime.payloads import RequestRepairKind

EFFORT_LADDER: tuple[ReasoningEffort, ...] = get_args(
    ReasoningEffort
)  # from the most thinking to the least; below it is none
EFFORT_STYLES = ("adaptive", "effort", "gateway")  # a budget has no levels
MAX_EFFORT_STEPS_DOWN = 3

REPAIR_BY_FAILURE: dict[FailureCode, RequestRepairKind] = {
    "effort_invalid": "effort",
    "thinking_unsupported": "thinking",
    "thinking_signature_invalid": "signature",
    "media_unsupported": "images",
    "auth_failed": "credentials",
}
# One picture was too large or broken: that says nothing about the next one.
SINGLE_IMAGE_PROBLEM = re.compile(
    r"too (?:large|big|many)|exceed|\bsize\b|dimension|pixel|could not|cannot (?:process|read)|corrupt|invalid image",
    re.I,
)


class RequestRepair:
    """One turn's changes, each model's its own. Every kind once per model, effort three steps."""

    def __init__(self, learned: LearnedLimitsStore, *, thinking_tokens: int) -> None:
        self._learned = learned
        self._thinking_tokens = thinking_tokens
        self._lessons: dict[str, LearnedLimits] = {}  # what holds in this turn, by model
        self._used: Counter[tuple[str, RequestRepairKind]] = Counter()
        self._to_learn: dict[
            str, LearnedLimits
        ] = {}  # by model; counts once a request so changed is accepted
        self._thoughts_lost = False

    # --- what a request to `entry` looks like now ----------------------------------------------------

    def thinking_tokens(self, entry: CatalogueEntry) -> int:
        lost = self._thoughts_lost and entry.provider == "anthropic"
        return self._thinking_tokens if entry.can_reason and self._lesson(entry).thinks and not lost else 0

    def effort(self, entry: CatalogueEntry) -> ReasoningEffort | None:
        """The level to ask for when it is not the one that the thinking tokens mean."""
        if not self.thinking_tokens(entry):
            return None
        accepted, meant = self._lesson(entry).effort, pick_effort(self._thinking_tokens)
        level = _nearest_allowed_effort(entry, max(accepted or meant, meant, key=EFFORT_LADDER.index))
        return None if accepted is None and level == meant else level

    def can_see_images(self, entry: CatalogueEntry) -> bool:
        return entry.supports_images and self._lesson(entry).sees

    @property
    def reasoning_dropped(self) -> bool:
        return self._thoughts_lost

    def drop_reasoning(self) -> None:
        """The tool loop's replay data is gone: Anthropic refuses thinking until the turn ends (A14.4)."""
        self._thoughts_lost = True

    # --- healing -------------------------------------------------------------------------------------

    def choose_repair(self, failure: ProviderFailure, entry: CatalogueEntry) -> RequestRepairKind | None:
        """What may help and was not tried yet."""
        kind = REPAIR_BY_FAILURE.get(failure.code)
        if kind is None or (kind == "effort" and not self.thinking_tokens(entry)):
            return None
        most = MAX_EFFORT_STEPS_DOWN if kind == "effort" else 1
        return kind if self._used[entry.name, kind] < most else None

    def restore_repair(self, code: FailureCode | None, entry: CatalogueEntry) -> None:
        """In an earlier run of the turn: it holds, and counts. A level that was accepted there is known already."""
        kind = REPAIR_BY_FAILURE.get(code) if code else None
        if kind == "effort" and self._learned.recall(entry) != LearnedLimits():
            self._used[entry.name, kind] += 1
        elif kind is not None:
            self.apply(kind, entry, None)

    def apply(self, kind: RequestRepairKind, entry: CatalogueEntry, failure: ProviderFailure | None) -> None:
        self._used[entry.name, kind] += 1
        match kind:
            case "effort":
                self._change(entry, self._stepped_down(entry))
            case "thinking":
                self._change(entry, replace(self._lesson(entry), thinks=False))
            case "images":
                self._hide_images(entry, failure)
            case "signature":
                self.drop_reasoning()
            case "credentials":
                pass  # the entry itself carries the new one
            case unreachable:
                assert_never(unreachable)

    def confirm_repair(self, entry: CatalogueEntry) -> None:
        """The model took the request as it was: what was changed is worth remembering (A4.4)."""
        lesson = self._to_learn.pop(entry.name, None)
        if lesson is not None:
            self._learned.learn(entry, lesson)

    def _lesson(self, entry: CatalogueEntry) -> LearnedLimits:
        if entry.name not in self._lessons:
            self._lessons[entry.name] = self._learned.recall(entry)
        return self._lessons[entry.name]

    def _change(self, entry: CatalogueEntry, lesson: LearnedLimits) -> None:
        self._lessons[entry.name] = self._to_learn[entry.name] = lesson

    def _stepped_down(self, entry: CatalogueEntry) -> LearnedLimits:
        level = EFFORT_LADDER.index(self.effort(entry) or pick_effort(self._thinking_tokens))
        lower = [one for one in EFFORT_LADDER[level + 1 :] if not entry.efforts or one in entry.efforts]
        if entry.reasoning_style not in EFFORT_STYLES or not lower:
            return replace(self._lesson(entry), thinks=False)
        return replace(self._lesson(entry), effort=lower[0])

    def _hide_images(self, entry: CatalogueEntry, failure: ProviderFailure | None) -> None:
        blind = replace(self._lesson(entry), sees=False)
        if failure is None or SINGLE_IMAGE_PROBLEM.search(failure.details):
            self._lessons[entry.name] = blind
        else:
            self._change(entry, blind)


def _nearest_allowed_effort(entry: CatalogueEntry, level: ReasoningEffort) -> ReasoningEffort:
    """The strongest level the entry allows that is not above `level`; else its weakest (A4.1)."""
    if not entry.efforts or level in entry.efforts:
        return level
    allowed = sorted(entry.efforts, key=EFFORT_LADDER.index)
    return next(
        (one for one in allowed if EFFORT_LADDER.index(one) > EFFORT_LADDER.index(level)), allowed[-1]
    )
