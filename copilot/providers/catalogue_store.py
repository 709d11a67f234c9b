"""Which models there are: rows that administrators edit, or else the environment's; every process follows them (A4).

The only writer of Credential, ModelEntry, TierEntry and ModelLesson. What a tier means is a value in `providers.catalogue`; this
module puts it there at a process's first use of it, and again within seconds of an edit, off every turn's road.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args

import msgspec
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from billing import policies, pricing
from config.core import encryption, redaction
from config.core.errors import ServiceUnavailable
from copilot.models import Credential, ModelEntry, ModelLesson, TierEntry
from copilot.providers import breaker_store, catalogue, clients
from copilot.providers.base import CatalogueEntry, FailureCode
from copilot.providers.breakers import BREAKERS, BreakerTrip
from copilot.providers.catalogue import Catalogue
from copilot.providers.learned_limits import (
    LEARNED_LIMITS,
    LEARNED_LIMITS_SECONDS,
    LearnedLimits,
    fingerprint_entry,
)

log = logging.getLogger(__name__)

REFRESH_SECONDS = 2.0  # an edit is acted on within seconds, by a statement over a few rows

# What a row and an entry call by the same name.
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
    """What this process has seen of the rows; no rows at all is what the environment made at boot."""

    def __init__(self) -> None:
        self.seen = ""
        self.lessons = ""
        self._process = 0
        self._lock = threading.Lock()

    def ensure_following(self) -> None:
        """Called whenever the catalogue is asked for; does something once per process, forked ones too."""
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
            log.warning("the model catalogue could not be read, it stays: %s", type(problem).__name__)
            connection.close()
        sync_breakers()


_follower = CatalogueFollower()


def follow_catalogue() -> None:
    """From now on this process's catalogue is the rows'."""
    catalogue.set_refresh_hook(_follower.ensure_following)


def refresh_catalogue() -> bool:
    """Read the rows again if they have changed; whether they had."""
    with connection.cursor() as cursor:
        cursor.execute(_VERSIONS_SQL)
        seen, lessons = cursor.fetchone()
    if lessons != _follower.lessons:
        _load_learned_limits()
        _follower.lessons = lessons
    if seen == _follower.seen:
        return False
    made = _build_from_rows() or catalogue.build_from_settings(settings)
    redaction.register_secrets(entry.credential for entry in made.entries)
    clients.reload_sdks(made.entries)
    catalogue.set_catalogue(made)
    _follower.seen = seen
    log.info("the model catalogue has changed: %d models", len(made.entries))
    return True


def read_credential(entry: CatalogueEntry) -> str:
    """As the store has it now: a key may have been changed since the provider refused it (A7.4)."""
    refresh_catalogue()
    return catalogue.find_credential(entry)


# --- what models taught ------------------------------------------------------------------------------


def store_learned_limits(entry: CatalogueEntry, lesson: LearnedLimits) -> None:
    """For every process: each takes it with its next look for edits (A4.4)."""
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


# --- models that keep failing ------------------------------------------------------------------------


def count_model_failure(entry: CatalogueEntry, code: FailureCode) -> None:
    """A turn gave the model up. Should it keep failing, turns of every process begin with another for a while (A7.7)."""
    name, seconds = fingerprint_entry(entry), settings.MODEL_BREAKER_SECONDS
    if breaker_store.count_model_failure(
        name, code, failures=settings.MODEL_BREAKER_FAILURES, seconds=seconds
    ):
        BREAKERS.open_breaker(name, BreakerTrip(code=code, seconds=seconds))
        log.warning("model %s keeps failing (%s): passed over for %d s", entry.name, code, seconds)


def sync_breakers() -> None:
    """What other processes found out; asked for with every look for edits."""
    if settings.MODEL_BREAKER_FAILURES:
        found = breaker_store.list_open_breakers().items()
        BREAKERS.replace_all(
            {
                name: BreakerTrip(code=code, seconds=left)
                for name, (why, left) in found
                if (code := _parse_failure_code(why))
            }
        )


def _parse_failure_code(why: str) -> FailureCode | None:
    return next((code for code in get_args(FailureCode) if code == why), None)


# --- what a turn may run on --------------------------------------------------------------------------


def resolve_chain(tier: str, mode: str) -> tuple[CatalogueEntry, ...]:
    """The chain that a message's turn runs on; never empty."""
    chain = find_chain(tier, mode)
    if not chain:
        raise ServiceUnavailable("No model of this tier has a price, and this installation requires one.")
    return chain


def find_chain(tier: str, mode: str = "") -> tuple[CatalogueEntry, ...]:
    """The chain of a tier; without models of unknown cost where the installation refuses those (A4.5)."""
    chain = catalogue.resolve_tier(tier, mode)
    if settings.REQUIRE_KNOWN_COST:
        chain = tuple(entry for entry in chain if find_price(entry.provider, entry.model) is not None)
    return (
        _drop_expensive_fallbacks(chain, settings.FALLBACK_PRICE_RATIO)
        if settings.FALLBACK_PRICE_RATIO
        else chain
    )


def _drop_expensive_fallbacks(chain: tuple[CatalogueEntry, ...], ratio: int) -> tuple[CatalogueEntry, ...]:
    """Without fallbacks that cost more than so many times what the first model does (A7.7).

    Where a price is not known there is nothing to compare, and nobody is left out for it (A4.5).
    """
    prices = [find_price(entry.provider, entry.model) for entry in chain]
    return tuple(
        entry
        for entry, price in zip(chain, prices, strict=True)
        if price is None or prices[0] is None or _is_within_price_ratio(price, prices[0], ratio)
    )


def _is_within_price_ratio(price: pricing.CataloguePrice, first: pricing.CataloguePrice, ratio: int) -> bool:
    """Both of what is read and of what is written; what is billed at a flat rate costs nothing more."""
    if price.flat_rate:
        return True
    reads, writes = first.input_per_million_microdollars, first.output_per_million_microdollars
    if first.flat_rate:
        reads = writes = 0
    return (
        price.input_per_million_microdollars <= ratio * reads
        and price.output_per_million_microdollars <= ratio * writes
    )


def find_price(provider: str, model: str) -> pricing.CataloguePrice | None:
    if provider == "scripted":
        return pricing.CataloguePrice(
            id=0, provider=provider, model=model, flat_rate=True, effective_from=_LONG_AGO
        )
    return pricing.find_price_in_force(policies.get_prices(), provider, model, datetime.now(UTC))


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


# --- rows to entries ---------------------------------------------------------------------------------


def _build_from_rows() -> Catalogue | None:
    """None when no enabled row is the standard tier's: then nothing could be asked."""
    rows = ModelEntry.objects.filter(enabled=True).select_related("credential").order_by("name")
    entries = {row.pk: entry for row in rows if (entry := _build_entry(row)) is not None}
    chains: dict[str, list[CatalogueEntry]] = {}
    for place in TierEntry.objects.order_by("tier", "position"):
        if (entry := entries.get(place.entry_id)) is not None:
            chains.setdefault(place.tier, []).append(entry)
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
    """In production no tier begins with a script unless that is wanted (A4.6)."""
    first = 0
    while not settings.ALLOW_DEMO_MODEL and first < len(chain) and chain[first].demo:
        first += 1
    return tuple(chain[first:])


def _build_entry(row: ModelEntry) -> CatalogueEntry | None:
    try:
        key = encryption.decrypt_text(row.credential.secret) if row.credential else ""
    except encryption.DecryptionFailed:
        log.error("the key of model %s cannot be read: the installation's key was changed", row.pk)
        return None
    seconds = row.first_token_seconds or settings.MODEL_FIRST_TOKEN_SECONDS
    fields = {name: getattr(row, name) for name in (*_COPIED_FIELDS, "version")} | {
        "credential": key or "none",  # local servers want none, the SDKs want one
        "first_token_timeout_seconds": seconds,
    }
    try:
        return catalogue.label_demo(msgspec.convert(fields, CatalogueEntry))
    except msgspec.ValidationError:
        log.error("model %s of the catalogue is not usable as it is", row.pk)
        return None


# --- writing -----------------------------------------------------------------------------------------


def set_credential_secret(credential: Credential, secret: str) -> None:
    """Kept sealed; what it was cannot be shown again."""
    credential.secret = encryption.encrypt_text(secret)
    credential.changed_at = Now()
    credential.save()
    transaction.on_commit(refresh_catalogue)


def save_model_entry(entry: ModelEntry) -> None:
    """Every edit is a new version, which forgets what was learned of the old one (A4.4)."""
    if entry.pk is not None:
        entry.version = F("version") + 1
    entry.save()
    entry.refresh_from_db(fields=["version"])
    transaction.on_commit(refresh_catalogue)


def refresh_after_commit() -> None:
    """Rows were written by their forms: this process acts on them at once."""
    transaction.on_commit(refresh_catalogue)


def adopt_catalogue(made: Catalogue) -> list[ModelEntry]:
    """Copy a catalogue into rows, so that administrators can go on from there; names that exist are left alone."""
    with transaction.atomic():
        rows = {entry.name: _adopt_entry(entry) for entry in made.entries}
        for tier, chain in made.tiers.items():
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
