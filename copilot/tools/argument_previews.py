"""Shorten and redact tool arguments for display."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from config.core.json_values import JSON
from config.core.redaction import redact_secret_patterns

MAX_ARGUMENT_KEYS = 6
MAX_ARGUMENT_CHARACTERS = 120


def preview_arguments(arguments: Mapping[str, JSON]) -> dict[str, str]:
    """Return a call's arguments as people see them: a few keys, short values, no secrets.

    Keys are sorted because the database keeps no other order: a reload must show what was shown live.
    """
    return {key: _preview_value(arguments[key]) for key in sorted(arguments)[:MAX_ARGUMENT_KEYS]}


def redact_arguments(arguments: Mapping[str, JSON]) -> dict[str, JSON]:
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
