"""Store the models that administrators edit, and keep every process's catalogue up to date with them.

This is the only writer of Credential, ModelEntry, TierEntry and ModelLesson. Without rows, the catalogue
comes from the environment. It is loaded at a process's first use and within seconds of an edit, without
delaying any turn.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args

import msgspec
import structlog
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from billing import policies, pricing
from config.core import encryption, redaction
from config.core.errors import ServiceUnavailable
from copilot.models import Credential, ModelEntry, ModelLesson, TierEntry
from copilot.providers import breakers, catalogue, clients
from copilot.providers.base import CatalogueEntry, FailureCode
from copilot.providers.breakers import BREAKERS, BreakerTrip
from copilot.providers.catalogue import Catalogue
from copilot.providers.learned_limits import (
    LEARNED_LIMITS,
    LEARNED_LIMITS_SECONDS,
    LearnedLimits,
    fingerprint_entry,
)

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 2.0  # one statement over a few rows

# Fields with the same name on a row and an entry.
_COPIED_FIELDS = (
    "name",
    "provider",
    "model",
    "base_url",
    "context_window",
    "max_output_tokens",
    "supports_tools",
    "supports_images",
    "media_in_tool_results",
    "can_reason",
    "reasoning_style",
    "replays_reasoning",
    "efforts",
)

_VERSIONS_SQL = """
SELECT concat_ws('|',
    (SELECT string_agg(id || ':' || version, ',' ORDER BY id) FROM copilot_modelentry),
    (SELECT string_agg(id || ':' || changed_at, ',' ORDER BY id) FROM copilot_credential),
    (SELECT string_agg(tier || position || ':' || entry_id, ',' ORDER BY tier, position) FROM copilot_tierentry)),
    COALESCE((SELECT string_agg(name || ':' || learned_at, ',' ORDER BY name) FROM copilot_modellesson), '')
"""


class CatalogueFollower:
    """Keep this process's catalogue up to date. Without rows, it comes from the environment."""

    def __init__(self) -> None:
        self.versions = ""
        self.lessons = ""
        self._process = 0
        self._lock = threading.Lock()

    def ensure_following(self) -> None:
        """Start following once per process, also after a fork. Called whenever the catalogue is read."""
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process == os.getpid():
                return
            self._process = os.getpid()
            self._refresh_once()
        threading.Thread(target=self._refresh_forever, name="catalogue", daemon=True).start()

    def _refresh_forever(self) -> None:
        while True:
            time.sleep(REFRESH_SECONDS)
            self._refresh_once()

    def _refresh_once(self) -> None:
        try:
            refresh_catalogue()
        except DatabaseError as problem:
            log.warning("catalogue_refresh_failed", error=type(problem).__name__)
            connection.close()
        sync_breakers()


_follower = CatalogueFollower()


def follow_catalogue() -> None:
    catalogue.set_refresh_hook(_follower.ensure_following)


def refresh_catalogue() -> bool:
    """Reload the rows if they have changed, and return whether they had."""
    with connection.cursor() as cursor:
        cursor.execute(_VERSIONS_SQL)
        versions, lessons = cursor.fetchone()
    if lessons != _follower.lessons:
        _load_learned_limits()
        _follower.lessons = lessons
    if versions == _follower.versions:
        return False
    loaded = _build_from_rows() or catalogue.build_from_settings(settings)
    redaction.register_secrets(entry.credential for entry in loaded.entries)
    clients.reload_sdks(loaded.entries)
    catalogue.set_catalogue(loaded)
    _follower.versions = versions
    log.info("catalogue_changed", models=len(loaded.entries))
    return True


def read_credential(entry: CatalogueEntry) -> str:
    """Reload the credential, which may have been changed since the provider refused it."""
    refresh_catalogue()
    return catalogue.find_credential(entry)


# --- Learned limits ---


def store_learned_limits(entry: CatalogueEntry, lesson: LearnedLimits) -> None:
    """Store learned limits for all processes, which load them at their next refresh."""
    ModelLesson.objects.update_or_create(
        name=entry.name,
        defaults={
            "fingerprint": fingerprint_entry(entry),
            "lesson": msgspec.to_builtins(lesson),
            "learned_at": Now(),
        },
    )


def _load_learned_limits() -> None:
    now = datetime.now(UTC)
    for row in ModelLesson.objects.all():
        seconds = LEARNED_LIMITS_SECONDS - (now - row.learned_at).total_seconds()
        if seconds > 0:
            lesson = msgspec.convert(row.lesson, LearnedLimits)
            LEARNED_LIMITS.store(row.name, row.fingerprint, lesson, seconds=seconds)


# --- Circuit breakers ---


def count_model_failure(entry: CatalogueEntry, code: FailureCode) -> None:
    """Count a model that a turn gave up on. Repeated failures open its breaker in every process."""
    name, seconds = fingerprint_entry(entry), settings.MODEL_BREAKER_SECONDS
    if breakers.count_model_failure(name, code, failures=settings.MODEL_BREAKER_FAILURES, seconds=seconds):
        BREAKERS.open_breaker(name, BreakerTrip(code=code, seconds=seconds))
        log.warning("breaker_opened", model=entry.name, code=code, seconds=seconds)


def sync_breakers() -> None:
    if settings.MODEL_BREAKER_FAILURES:
        found = breakers.list_open_breakers().items()
        BREAKERS.replace_all(
            {
                name: BreakerTrip(code=code, seconds=left)
                for name, (text, left) in found
                if (code := _parse_failure_code(text))
            }
        )


def _parse_failure_code(text: str) -> FailureCode | None:
    return next((code for code in get_args(FailureCode) if code == text), None)


# --- Chains for turns ---


def resolve_chain(tier: str, mode: str) -> tuple[CatalogueEntry, ...]:
    """Return the chain of a message's turn, which is never empty."""
    chain = find_chain(tier, mode)
    if not chain:
        raise ServiceUnavailable("No model in this tier has a price, and this installation requires one.")
    return chain


def find_chain(tier: str, mode: str = "") -> tuple[CatalogueEntry, ...]:
    """Return the chain of a tier, without models of unknown cost if the installation requires a known one."""
    chain = catalogue.resolve_tier(tier, mode)
    if settings.REQUIRE_KNOWN_COST:
        chain = tuple(entry for entry in chain if find_price(entry.provider, entry.model) is not None)
    return (
        _drop_expensive_fallbacks(chain, settings.FALLBACK_PRICE_RATIO)
        if settings.FALLBACK_PRICE_RATIO
        else chain
    )


def _drop_expensive_fallbacks(chain: tuple[CatalogueEntry, ...], ratio: int) -> tuple[CatalogueEntry, ...]:
    """Drop fallbacks that cost more than `ratio` times the first model. Unknown prices are not compared."""
    prices = [find_price(entry.provider, entry.model) for entry in chain]
    return tuple(
        entry
        for entry, price in zip(chain, prices, strict=True)
        if price is None or prices[0] is None or _is_within_price_ratio(price, prices[0], ratio)
    )


def _is_within_price_ratio(price: pricing.CataloguePrice, first: pricing.CataloguePrice, ratio: int) -> bool:
    if price.flat_rate:
        return True
    input_price, output_price = first.input_per_million_microdollars, first.output_per_million_microdollars
    if first.flat_rate:
        input_price = output_price = 0
    return (
        price.input_per_million_microdollars <= ratio * input_price
        and price.output_per_million_microdollars <= ratio * output_price
    )


def find_price(provider: str, model: str) -> pricing.CataloguePrice | None:
    if provider == "scripted":
        return pricing.CataloguePrice(
            id=0, provider=provider, model=model, flat_rate=True, effective_from=_LONG_AGO
        )
    return pricing.find_price_in_force(policies.get_prices(), provider, model, datetime.now(UTC))


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


# --- Rows to entries ---


def _build_from_rows() -> Catalogue | None:
    """Build the catalogue from rows; None if the standard tier has no enabled model."""
    rows = ModelEntry.objects.filter(enabled=True).select_related("credential").order_by("name")
    entries = {row.pk: entry for row in rows if (entry := _build_entry(row)) is not None}
    chains: dict[str, list[CatalogueEntry]] = {}
    for tier_entry in TierEntry.objects.order_by("tier", "position"):
        if (entry := entries.get(tier_entry.entry_id)) is not None:
            chains.setdefault(tier_entry.tier, []).append(entry)
    usable = {tier: chain for tier, entries in chains.items() if (chain := _drop_leading_demo(entries))}
    if "standard" not in usable:
        return None
    return Catalogue(
        entries=tuple(entries.values()),
        tiers={tier: usable.get(tier, usable["standard"]) for tier in catalogue.TIERS},
        demo_tokens_per_second=settings.DEMO_TOKENS_PER_SECOND,
        connect_seconds=settings.MODEL_CONNECT_SECONDS,
    )


def _drop_leading_demo(chain: Sequence[CatalogueEntry]) -> tuple[CatalogueEntry, ...]:
    first = 0
    while not settings.ALLOW_DEMO_MODEL and first < len(chain) and chain[first].demo:
        first += 1
    return tuple(chain[first:])


def _build_entry(row: ModelEntry) -> CatalogueEntry | None:
    try:
        key = encryption.decrypt_text(row.credential.secret) if row.credential else ""
    except encryption.DecryptionFailed:
        log.error("model_credential_undecryptable", entry_id=row.pk)
        return None
    seconds = row.first_token_seconds or settings.MODEL_FIRST_TOKEN_SECONDS
    fields = {name: getattr(row, name) for name in (*_COPIED_FIELDS, "version")} | {
        "credential": key or "none",  # local servers need no key, but the SDKs do
        "first_token_timeout_seconds": seconds,
    }
    try:
        return catalogue.label_demo(msgspec.convert(fields, CatalogueEntry))
    except msgspec.ValidationError:
        log.error("model_entry_invalid", entry_id=row.pk)
        return None


# --- Writes ---


def set_credential_secret(credential: Credential, secret: str) -> None:
    """Store the secret encrypted; it cannot be shown again."""
    credential.secret = encryption.encrypt_text(secret)
    credential.changed_at = Now()
    credential.save()
    transaction.on_commit(refresh_catalogue)


def save_model_entry(entry: ModelEntry) -> None:
    """Save an edit as a new version, which discards what was learned about the old one."""
    if entry.pk is not None:
        entry.version = F("version") + 1
    entry.save()
    entry.refresh_from_db(fields=["version"])
    transaction.on_commit(refresh_catalogue)


def refresh_after_commit() -> None:
    transaction.on_commit(refresh_catalogue)


def adopt_catalogue(source: Catalogue) -> list[ModelEntry]:
    """Copy a catalogue into rows that administrators can edit; existing names are left alone."""
    with transaction.atomic():
        rows = {entry.name: _adopt_entry(entry) for entry in source.entries}
        for tier, chain in source.tiers.items():
            if not TierEntry.objects.filter(tier=tier).exists():
                TierEntry.objects.bulk_create(
                    TierEntry(tier=tier, position=position, entry=rows[entry.name])
                    for position, entry in enumerate(chain, start=1)
                )
        refresh_after_commit()
    return list(rows.values())


def _adopt_entry(entry: CatalogueEntry) -> ModelEntry:
    found = ModelEntry.objects.filter(name=entry.name).first()
    if found is not None:
        return found
    copied = {name: getattr(entry, name) for name in _COPIED_FIELDS}
    return ModelEntry.objects.create(
        **copied | {"efforts": list(entry.efforts)}, credential=_adopt_credential(entry)
    )


def _adopt_credential(entry: CatalogueEntry) -> Credential | None:
    if entry.credential in ("", "none"):
        return None
    name = f"{entry.provider} ({entry.name})"
    key, _ = Credential.objects.get_or_create(
        name=name[:100], defaults={"secret": encryption.encrypt_text(entry.credential)}
    )
    return key
