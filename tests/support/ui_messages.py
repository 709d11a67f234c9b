"""Check the parts of an AI SDK stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def assert_well_formed_parts(parts: Sequence[dict[str, Any]]) -> None:
    """Check as strictly as the strictest client: at most one part is open, and only inside a step."""
    assert parts[0]["type"] == "start"
    in_step, opened = False, None
    used: set[tuple[str, str]] = set()
    called: set[str] = set()
    answered: set[str] = set()
    for place, part in enumerate(parts[1:], start=1):
        kind = part["type"]
        name, _, act = kind.rpartition("-")
        if kind in ("start-step", "finish-step"):
            assert in_step == (kind == "finish-step")
            assert opened is None
            in_step = not in_step
        elif kind in ("finish", "error", "abort"):
            assert (place, in_step, opened) == (len(parts) - 1, False, None)
        elif name in ("text", "reasoning", "tool-input") and act == "start":
            identity = part.get("id") or part["toolCallId"]
            assert in_step
            assert opened is None
            assert (name, identity) not in used
            used.add((name, identity))
            opened = (name, identity)
        elif name in ("text", "reasoning"):
            assert opened == (name, part["id"])
            opened = None if act == "end" else opened
        elif kind == "tool-input-available":
            assert opened == ("tool-input", part["toolCallId"])
            called.add(part["toolCallId"])
            opened = None
        elif kind.startswith("tool-output"):
            assert (opened, in_step) == (None, True)
            assert part["toolCallId"] in called - answered
            answered.add(part["toolCallId"])
        else:
            assert kind == "file" or kind.startswith("data-"), kind
