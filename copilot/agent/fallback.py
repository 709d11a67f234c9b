"""Which model of the chain goes on when one has failed for good, and what is said when none does (A7.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from copilot.providers.base import CatalogueEntry, FailureCode, ProviderFailure
from copilot.providers.failures import MAX_DETAILS_CHARACTERS

FallbackScope = Literal["any", "other_credential", "larger_window"]

# Classes that are not here end the turn. A conversation that is too long is compaction's business first (A7.5).
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
MODEL_FAILURES = frozenset(FALLBACK_SCOPES) - {
    "context_overflow"
}  # of the model, not of one conversation (A7.7)
NO_CREDENTIAL = ("", "none")  # servers without keys share none


@dataclass(frozen=True, kw_only=True)
class RequestNeeds:
    """What the request that failed asks of another model."""

    tools: bool
    prompt_tokens: int  # estimated


def no_open_breaker(entry: CatalogueEntry) -> FailureCode | None:
    return None


class FallbackChain:
    """One turn's way along its chain, which holds enabled entries only. There is no way back (A7.6).

    But to those that were only passed over because they keep failing elsewhere: they are asked last (A7.7).
    """

    def __init__(
        self,
        chain: Sequence[CatalogueEntry],
        tripped: Callable[[CatalogueEntry], FailureCode | None] = no_open_breaker,
    ) -> None:
        self._first = chain[0]
        self._left = list(chain[1:])
        self._tripped = tripped
        self._given_up: list[tuple[CatalogueEntry, ProviderFailure]] = []
        self._dead_credentials: set[str] = set()

    def choose_next(
        self, failure: ProviderFailure, failed: CatalogueEntry, needs: RequestNeeds
    ) -> CatalogueEntry | None:
        """The entry to go on with; what is passed over is never asked in this turn."""
        allowed = FALLBACK_SCOPES.get(failure.code)
        if allowed is None:
            return None
        if allowed == "other_credential" and failed.credential not in NO_CREDENTIAL:
            self._dead_credentials.add(failed.credential)
        smallest = _smallest_useful_window(failed, needs) if allowed == "larger_window" else 0
        fitting = [
            entry for entry in self._left if entry.context_window >= smallest and self._fits(entry, needs)
        ]
        sound = [entry for entry in fitting if self._tripped(entry) is None]
        if not fitting:
            self._left = []
            return None
        self._given_up.append((failed, failure))
        return self._take((sound or fitting)[0])

    def choose_instead_of_first(self, needs: RequestNeeds) -> CatalogueEntry | None:
        """Whom to begin with while the chain's first keeps failing; that one is then asked last (A7.7)."""
        sound = (entry for entry in self._left if self._fits(entry, needs) and self._tripped(entry) is None)
        entry = next(sound, None)
        if entry is not None:
            self._take(entry)
            self._left.append(self._first)
        return entry

    def _take(self, entry: CatalogueEntry) -> CatalogueEntry:
        """What stood before it does not suit this turn, or is only passed over for now."""
        at = self._left.index(entry)
        passed = [one for one in self._left[:at] if self._tripped(one) is not None]
        self._left = [*self._left[at + 1 :], *passed]
        return entry

    def final_failure(
        self, failure: ProviderFailure, failed: CatalogueEntry, *, out_of_requests: bool
    ) -> ProviderFailure:
        """What the turn fails with: the first model's class and all that were tried (A7.c5).

        A turn that may send no more requests fails with the last class (A7.2).
        """
        tried = (*self._given_up, (failed, failure))
        last_counts = out_of_requests or failure.code in SELF_EXPLANATORY_FAILURES
        whose, told = tried[-1 if last_counts else 0]
        named = ", ".join(f"{entry.name} ({why.code})" for entry, why in tried)
        return ProviderFailure(
            told.code,
            details=_append_tried_models(told.details, f"Models tried: {named}.")
            if self._given_up
            else told.details,
            status=told.status,
            retry_after_seconds=told.retry_after_seconds,
            request_id=told.request_id,
            provider=whose.provider,
            model=whose.name,
        )

    def _fits(self, entry: CatalogueEntry, needs: RequestNeeds) -> bool:
        large_enough = not entry.context_window or entry.context_window >= needs.prompt_tokens
        has_tools = entry.supports_tools or not needs.tools
        return large_enough and has_tools and entry.credential not in self._dead_credentials


def _smallest_useful_window(failed: CatalogueEntry, needs: RequestNeeds) -> int:
    """The smallest window that may help; one of unknown size is not known to."""
    return max(failed.context_window, needs.prompt_tokens) + 1


def _append_tried_models(details: str, tried: str) -> str:
    room = max(0, MAX_DETAILS_CHARACTERS - len(tried) - 1)
    if len(details) > room:
        details = details[: max(0, room - 1)] + "…"
    return f"{details} {tried}".strip()[:MAX_DETAILS_CHARACTERS]
