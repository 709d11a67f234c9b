"""Repair requests that a model refused: less effort, no thinking, no images, or another credential."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import assert_never, get_args

from copilot.agent.interfaces import LearnedLimitsStore
from copilot.providers.base import CatalogueEntry, FailureCode, ProviderFailure, ReasoningEffort, pick_effort
from copilot.providers.learned_limits import LearnedLimits
from copilot.realtime.payloads import RequestRepairKind

# From the most thinking to the least.
EFFORT_LADDER: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)
EFFORT_STYLES = ("adaptive", "effort", "gateway")  # the budget style has no levels
MAX_EFFORT_STEPS_DOWN = 3

REPAIR_BY_FAILURE: dict[FailureCode, RequestRepairKind] = {
    "effort_invalid": "effort",
    "thinking_unsupported": "thinking",
    "thinking_signature_invalid": "signature",
    "media_unsupported": "images",
    "auth_failed": "credentials",
}
# A single image was too large or broken, which says nothing about other images.
SINGLE_IMAGE_PROBLEM = re.compile(
    r"too (?:large|big|many)|exceed|\bsize\b|dimension|pixel|could not|cannot (?:process|read)|corrupt|invalid image",
    re.I,
)


class RequestRepair:
    """Hold the repairs of one turn by model: each kind once per model, effort up to three steps down."""

    def __init__(self, learned: LearnedLimitsStore, *, thinking_tokens: int) -> None:
        self._learned = learned
        self._thinking_tokens = thinking_tokens
        self._lessons: dict[str, LearnedLimits] = {}  # in effect in this turn, by model
        self._used: Counter[tuple[str, RequestRepairKind]] = Counter()
        self._to_learn: dict[str, LearnedLimits] = {}  # by model; learned once a repaired request is accepted
        self._reasoning_dropped = False

    # --- The present shape of requests ---

    def thinking_tokens(self, entry: CatalogueEntry) -> int:
        lost = self._reasoning_dropped and entry.provider == "anthropic"
        return self._thinking_tokens if entry.can_reason and self._lesson(entry).thinks and not lost else 0

    def effort(self, entry: CatalogueEntry) -> ReasoningEffort | None:
        """Return the effort to request, or None if the thinking tokens already imply it."""
        if not self.thinking_tokens(entry):
            return None
        accepted, intended = self._lesson(entry).effort, pick_effort(self._thinking_tokens)
        level = _nearest_allowed_effort(entry, max(accepted or intended, intended, key=EFFORT_LADDER.index))
        return None if accepted is None and level == intended else level

    def can_see_images(self, entry: CatalogueEntry) -> bool:
        return entry.supports_images and self._lesson(entry).sees

    @property
    def reasoning_dropped(self) -> bool:
        return self._reasoning_dropped

    def drop_reasoning(self) -> None:
        """Turn thinking off for this turn: Anthropic refuses it once the loop's replay data is gone."""
        self._reasoning_dropped = True

    # --- Repairs ---

    def choose_repair(self, failure: ProviderFailure, entry: CatalogueEntry) -> RequestRepairKind | None:
        kind = REPAIR_BY_FAILURE.get(failure.code)
        if kind is None or (kind == "effort" and not self.thinking_tokens(entry)):
            return None
        max_uses = MAX_EFFORT_STEPS_DOWN if kind == "effort" else 1
        return kind if self._used[entry.name, kind] < max_uses else None

    def restore_repair(self, code: FailureCode | None, entry: CatalogueEntry) -> None:
        """Restore a repair of an earlier run. An effort accepted there has been learned already."""
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
                pass  # the entry itself carries the new credential
            case unreachable:
                assert_never(unreachable)

    def confirm_repair(self, entry: CatalogueEntry) -> None:
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
        lower = [
            effort for effort in EFFORT_LADDER[level + 1 :] if not entry.efforts or effort in entry.efforts
        ]
        if entry.reasoning_style not in EFFORT_STYLES or not lower:
            return replace(self._lesson(entry), thinks=False)
        return replace(self._lesson(entry), effort=lower[0])

    def _hide_images(self, entry: CatalogueEntry, failure: ProviderFailure | None) -> None:
        without_images = replace(self._lesson(entry), sees=False)
        if failure is None or SINGLE_IMAGE_PROBLEM.search(failure.details):
            self._lessons[entry.name] = without_images
        else:
            self._change(entry, without_images)


def _nearest_allowed_effort(entry: CatalogueEntry, level: ReasoningEffort) -> ReasoningEffort:
    """Return the strongest allowed effort that is not above `level`, else the weakest."""
    if not entry.efforts or level in entry.efforts:
        return level
    allowed = sorted(entry.efforts, key=EFFORT_LADDER.index)
    return next(
        (effort for effort in allowed if EFFORT_LADDER.index(effort) > EFFORT_LADDER.index(level)),
        allowed[-1],
    )
