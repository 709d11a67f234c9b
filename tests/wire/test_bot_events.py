"""What bots are told: one golden JSON per kind, made of the wire's own, and nothing that is not listed (L13)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from copilot.realtime import events
from linking.event_projection import PROJECTIONS, project_event
from tests.support.paths import GOLDEN_EVENTS

GOLDEN = Path(__file__).parent / "bot_events.json"
TOLD = msgspec.json.decode(GOLDEN.read_bytes()) if GOLDEN.exists() else {}
EVENTS = msgspec.json.decode(GOLDEN_EVENTS.read_bytes())
KEPT_BACK = {
    "arguments", "preview", "tokens", "summary_", "usage", "estimate_microdollars", "remaining_cap_microdollars",
    "reset_cost_cents", "can_reset", "window", "context", "model", "details", "failure_class", "server_context",
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(PROJECTIONS))
def test_each_published_kind_has_its_golden_file(kind):
    """A-L13.4: the list is closed, and of each kind only what is named goes out"""
    told = project_event(EVENTS[kind])
    assert told == TOLD[kind]
    assert not KEPT_BACK & _names(told)


def test_every_other_kind_is_dropped():
    """A-L13.4: an event that copilot gains is told to nobody until it is listed here"""
    silent = set(events.EVENT_CLASSES) - set(TOLD)
    assert set(TOLD) == set(PROJECTIONS)
    assert {kind for kind in silent if project_event(EVENTS[kind]) is not None} == set()
    assert {
        "reasoning.extended",
        "usage.recorded",
        "usage.metered",
        "tool.progressed",
        "queue.changed",
    } <= silent
    assert project_event({"kind": "moon.rose", "session_id": "s"}) is None


def test_a_snapshot_leaves_thoughts_and_tools_at_home():
    """A-L13.4: of the rows of a page, only what was said to people"""
    page = EVENTS["session.snapshot"]
    rows = [
        {**page["messages"][0], "id": kind, "kind": kind} for kind in ("user", "reasoning", "tool_result")
    ]
    told = project_event({**page, "messages": rows, "turn": None})
    assert told is not None
    assert msgspec.json.encode(told["messages"]).count(b'"kind"') == 1


def _names(value: object) -> set[str]:
    match value:
        case dict():
            return set(value) | {name for one in value.values() for name in _names(one)}
        case list():
            return {name for one in value for name in _names(one)}
        case _:
            return set()
