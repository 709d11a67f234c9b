"""Short forms of what is too long or too secret to show whole (A9.3, A9.10)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from copilot.events import JSON
from copilot.redaction import redact_shapes

ARGUMENT_KEYS = 6
ARGUMENT_CHARACTERS = 120


def preview_arguments(arguments: Mapping[str, JSON]) -> dict[str, str]:
    """A call's arguments as people see them: a few keys, short values, no secrets.

    In sorted order, because the database keeps no other: a reload must show what was shown live (T8.4).
    """
    return {key: _short(arguments[key]) for key in sorted(arguments)[:ARGUMENT_KEYS]}


def redacted_arguments(arguments: Mapping[str, JSON]) -> dict[str, JSON]:
    """Whole arguments with every secret in their texts masked."""
    return {redact_shapes(key): _redacted(value) for key, value in arguments.items()}


def _redacted(value: JSON) -> JSON:
    match value:
        case dict():
            return dict(redacted_arguments(value))
        case list():
            return [_redacted(item) for item in value]
        case str():
            return redact_shapes(value)
        case _:
            return value


def _short(value: JSON) -> str:
    text = redact_shapes(
        value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    )
    return text if len(text) <= ARGUMENT_CHARACTERS else text[: ARGUMENT_CHARACTERS - 1] + "…"
