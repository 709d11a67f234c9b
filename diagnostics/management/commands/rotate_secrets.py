"""Re-encrypt every stored secret under the current SECRET_KEY, and report what still needs a former one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Model

from config.core.encryption import DecryptionFailed, reencrypt_text
from copilot.accounts import api_keys
from linking.links import bot_keys

BATCH = 500


@dataclass(frozen=True)
class Sealed:
    """A table with encrypted texts, and their fields."""

    label: str
    what: str
    fields: tuple[str, ...]


TABLES = (
    Sealed("copilot.Credential", "model credentials", ("secret",)),
    Sealed("copilot.McpServer", "secrets of MCP servers", ("secrets",)),
    Sealed("linking.DeliveryEndpoint", "webhook secrets", ("secret", "old_secret")),
    Sealed("mfa.Authenticator", "second factors", ("data",)),
)
IN_JSON = (
    "secret",
    "seed",
    "migrated_codes",
)  # encrypted parts of a second factor; the rest of its data is plain


@dataclass
class Tally:
    changed: int = 0
    current: int = 0
    unreadable: int = 0

    def __str__(self) -> str:
        return (
            f"{self.changed} re-encrypted, {self.current} already current, {self.unreadable} cannot be read"
        )


class Command(BaseCommand):
    help = "Re-encrypt stored secrets with the current SECRET_KEY. Keep former keys in SECRET_KEY_FALLBACKS until it is done."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="change nothing; exit 1 while a former key is needed"
        )

    def handle(self, *args: object, **options: object) -> None:
        check = bool(options["check"])
        left = unreadable = 0
        for table in TABLES:
            tally = _rotate(table, write=not check)
            left += tally.changed if check else 0
            unreadable += tally.unreadable
            summary = str(tally).replace("re-encrypted", "need a former key") if check else str(tally)
            self.stdout.write(f"{table.what}: {summary}.")
        for what, old in (
            ("API keys", api_keys.count_old_hashes()),
            ("bot keys", bot_keys.count_old_hashes()),
        ):
            left += old
            self.stdout.write(
                f"{what}: {old} not used since SECRET_KEY changed; each is rehashed at its next use."
            )
        self.stdout.write(_advice(left, unreadable))
        if unreadable or (check and left):
            sys.exit(1)


def _advice(left: int, unreadable: int) -> str:
    if unreadable:
        return (
            "Unreadable secrets were encrypted with a key that is neither SECRET_KEY nor in SECRET_KEY_FALLBACKS: "
            "add that key and run this again, or enter those secrets again."
        )
    if left:
        return "SECRET_KEY_FALLBACKS is still needed; without it the keys counted above stop working."
    if settings.SECRET_KEY_FALLBACKS:
        return "Only older sessions and links still need SECRET_KEY_FALLBACKS: remove it when they may end."
    return "Everything is encrypted with the current SECRET_KEY."


def _rotate(table: Sealed, *, write: bool) -> Tally:
    """Re-encrypt row by row with conditional updates: an edit in the meantime wins, and is current anyway."""
    model, tally = apps.get_model(table.label), Tally()
    for row in _rows(model, table.fields):
        changes: dict[str, Any] = {}
        try:
            for field in table.fields:
                old = row[field]
                new = _resealed(old)
                if new != old:
                    changes[field] = new
        except DecryptionFailed:
            tally.unreadable += 1
            continue
        if not changes:
            tally.current += 1
        elif not write or model._default_manager.filter(
            pk=row["pk"], **{field: row[field] for field in changes}
        ).update(**changes):
            tally.changed += 1
    return tally


def _rows(model: type[Model], fields: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield rows in batches by primary key, so that a long table needs neither memory nor one long transaction."""
    rows = model._default_manager.order_by("pk").values("pk", *fields)
    last: object = None
    while batch := list((rows if last is None else rows.filter(pk__gt=last))[:BATCH]):
        yield from batch
        last = batch[-1]["pk"]


def _resealed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _resealed(one) if name in IN_JSON else one for name, one in value.items()}
    if isinstance(value, list):
        return [_resealed(one) for one in value]
    return (reencrypt_text(value) or value) if isinstance(value, str) and value else value
