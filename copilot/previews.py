"""Short forms of what is too long or too secret to show whole (A9.3, A9.10)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from copilot.events import JSON
from copilot.redaction import redact

ARGUMENT_KEYS = 6
ARGUMENT_CHARACTERS = 120


def preview_arguments(arguments: Mapping[str, JSON]) -> dict[str, str]:
    """A call's arguments as people see them: a few keys, short values, no secrets.

    In sorted order, because the database keeps no other: a reload must show what was shown live (T8.4).
    """
    return {key: _short(arguments[key]) for key in sorted(arguments)[:ARGUMENT_KEYS]}


def _short(value: JSON) -> str:
    text = redact(value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode())
    return text if len(text) <= ARGUMENT_CHARACTERS else text[: ARGUMENT_CHARACTERS - 1] + "…"
