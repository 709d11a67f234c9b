"""Choose the next model of the chain after one has failed, and the failure to report when none is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from copilot.providers.base import CatalogueEntry, FailureCode, ProviderFailure
from copilot.providers.failures import MAX_DETAILS_CHARACTERS

FallbackScope = Literal["any", "other_credential", "larger_window"]

# Failures that are not listed end the turn. Context overflow is first handled by compaction.
FALLBACK_SCOPES: dict[FailureCode, FallbackScope] = {
    "quota_exhausted": "other_credential",
    "auth_failed": "other_credential",
    "rate_limited": "any",
    "model_not_found": "any",
    "overloaded": "any",
    "no_response": "any",
    "malformed_stream": "any",
    "unknown": "any",
    "context_overflow": "larger_window",
}
SELF_EXPLANATORY_FAILURES: frozenset[FailureCode] = frozenset({"refused", "context_overflow"})
MODEL_FAILURES = frozenset(FALLBACK_SCOPES) - {"context_overflow"}  # caused by the model, not the context
NO_CREDENTIAL = ("", "none")  # entries without a key do not share one


@dataclass(frozen=True, kw_only=True)
class RequestNeeds:
    tools: bool
    prompt_tokens: int  # estimated


def no_open_breaker(entry: CatalogueEntry) -> FailureCode | None:
    return None


class FallbackChain:
    """Follow one turn along its chain of enabled entries, without going back.

    The exception are entries skipped because of an open circuit breaker: they are tried last.
    """

    def __init__(
        self,
        chain: Sequence[CatalogueEntry],
        breaker_code: Callable[[CatalogueEntry], FailureCode | None] = no_open_breaker,
    ) -> None:
        self._first = chain[0]
        self._left = list(chain[1:])
        self._breaker_code = breaker_code
        self._given_up: list[tuple[CatalogueEntry, ProviderFailure]] = []
        self._refused_credentials: set[str] = set()

    def choose_next(
        self, failure: ProviderFailure, failed: CatalogueEntry, needs: RequestNeeds
    ) -> CatalogueEntry | None:
        """Return the entry to continue with. Entries that do not fit are not tried again in this turn."""
        allowed = FALLBACK_SCOPES.get(failure.code)
        if allowed is None:
            return None
        if allowed == "other_credential" and failed.credential not in NO_CREDENTIAL:
            self._refused_credentials.add(failed.credential)
        smallest = _smallest_useful_window(failed, needs) if allowed == "larger_window" else 0
        fitting = [
            entry for entry in self._left if entry.context_window >= smallest and self._fits(entry, needs)
        ]
        healthy = [entry for entry in fitting if self._breaker_code(entry) is None]
        if not fitting:
            self._left = []
            return None
        self._given_up.append((failed, failure))
        return self._take((healthy or fitting)[0])

    def choose_instead_of_first(self, needs: RequestNeeds) -> CatalogueEntry | None:
        """Choose another entry to begin with while the first one's breaker is open; the first goes last."""
        healthy = (
            entry for entry in self._left if self._fits(entry, needs) and self._breaker_code(entry) is None
        )
        entry = next(healthy, None)
        if entry is not None:
            self._take(entry)
            self._left.append(self._first)
        return entry

    def _take(self, entry: CatalogueEntry) -> CatalogueEntry:
        """Remove the entry and those before it from the chain, except those with an open breaker."""
        position = self._left.index(entry)
        postponed = [other for other in self._left[:position] if self._breaker_code(other) is not None]
        self._left = [*self._left[position + 1 :], *postponed]
        return entry

    def final_failure(
        self, failure: ProviderFailure, failed: CatalogueEntry, *, out_of_requests: bool
    ) -> ProviderFailure:
        """Build the failure of the turn: the first model's failure, with all models that were tried.

        When the turn ran out of requests, the last failure counts instead.
        """
        tried = (*self._given_up, (failed, failure))
        last_counts = out_of_requests or failure.code in SELF_EXPLANATORY_FAILURES
        reported_entry, reported = tried[-1 if last_counts else 0]
        names = ", ".join(f"{entry.name} ({problem.code})" for entry, problem in tried)
        return ProviderFailure(
            reported.code,
            details=_append_tried_models(reported.details, f"Models tried: {names}.")
            if self._given_up
            else reported.details,
            status=reported.status,
            retry_after_seconds=reported.retry_after_seconds,
            request_id=reported.request_id,
            provider=reported_entry.provider,
            model=reported_entry.name,
        )

    def _fits(self, entry: CatalogueEntry, needs: RequestNeeds) -> bool:
        large_enough = not entry.context_window or entry.context_window >= needs.prompt_tokens
        has_tools = entry.supports_tools or not needs.tools
        return large_enough and has_tools and entry.credential not in self._refused_credentials


def _smallest_useful_window(failed: CatalogueEntry, needs: RequestNeeds) -> int:
    """Return the smallest window that may help. Windows of unknown size do not count."""
    return max(failed.context_window, needs.prompt_tokens) + 1


def _append_tried_models(details: str, tried: str) -> str:
    max_characters = max(0, MAX_DETAILS_CHARACTERS - len(tried) - 1)
    if len(details) > max_characters:
        details = details[: max(0, max_characters - 1)] + "…"
    return f"{details} {tried}".strip()[:MAX_DETAILS_CHARACTERS]
