"""Short forms of what is too long or too secret to show whole (A9.3, A9.10)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from config.core.json_values import JSON
from config.core.redaction import redact_secret_patterns

MAX_ARGUMENT_KEYS = 6
MAX_ARGUMENT_CHARACTERS = 120


def preview_arguments(arguments: Mapping[str, JSON]) -> dict[str, str]:
    """A call's arguments as people see them: a few keys, short values, no secrets.

    In sorted order, because the database keeps no other: a reload must show what was shown live (T8.4).
    """
    return {key: _preview_value(arguments[key]) for key in sorted(arguments)[:MAX_ARGUMENT_KEYS]}


def redact_arguments(arguments: Mapping[str, JSON]) -> dict[str, JSON]:
    """Whole arguments with every secret in their texts masked."""
    return {redact_secret_patterns(key): _redact_value(value) for key, value in arguments.items()}


def _redact_value(value: JSON) -> JSON:
    match value:
        case dict():
            return dict(redact_arguments(value))
        case list():
            return [_redact_value(item) for item in value]
        case str():
            return redact_secret_patterns(value)
        case _:
            return value


def _preview_value(value: JSON) -> str:
    text = redact_secret_patterns(
        value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
    )
    return text if len(text) <= MAX_ARGUMENT_CHARACTERS else text[: MAX_ARGUMENT_CHARACTERS - 1] + "…"
