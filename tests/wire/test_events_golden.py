"""The wire's words: one golden JSON per kind of event; changing one is a new kind (E1, A2.6)."""

from __future__ import annotations

import dataclasses
import typing
from types import UnionType
from typing import Literal, get_args, get_origin

import msgspec
import pytest

from copilot.realtime import events
from copilot.realtime.events import SessionSnapshot, TurnSummary
from copilot.realtime.payloads import (
    ApprovalPayload,
    ArtifactPayload,
    AttachmentPayload,
    AutoApprovePayload,
    ContextPayload,
    GoalPayload,
    MessagePayload,
    QuestionPayload,
    QueueItem,
    Todo,
    Tokens,
    ToolCallContent,
    ToolResultContent,
    TurnPayload,
)
from tests.support.paths import GOLDEN_EVENTS

SESSION, TURN = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"

ROW = MessagePayload(
    id="row",
    sequence=7,
    turn_id=TURN,
    kind="user",
    role="user",
    content="Hello",
    author="Ada",
    attachments=[AttachmentPayload(file_id="file", name="a.txt", type="text/plain", size=3)],
    branch=0,
    created_at="2026-01-02T03:04:05.678Z",
)
QUESTION = QuestionPayload(
    id="question",
    turn_id=TURN,
    call_id="call",
    question="Port or starboard?",
    choices=["Port", "Starboard"],
    allow_text=True,
    deadline="2026-01-02T03:06:05.678Z",
)
APPROVAL = ApprovalPayload(
    id="approval",
    turn_id=TURN,
    call_id="call",
    tool="delete_file",
    arguments={"path": "a.txt"},
    reason="It deletes a file.",
    block_reason="The cap is reached.",
    estimate_microdollars=400,
    remaining_cap_microdollars=200,
)
TOKENS = Tokens(input=1, cache_read=2, cache_write_5m=3, cache_write_1h=4, output=5, reasoning=6)
SUMMARY = TurnSummary(
    duration_ms=1500, first_token_ms=200, tokens_per_second=33.3, rounds=2, tokens=TOKENS, model="model"
)
SAMPLES: dict[str, object] = {
    "message": ROW,
    "messages": [ROW],
    "turn": TurnPayload(id=TURN, status="running", origin="web", run_ids=["run"], attempt=1, messages=[]),
    "queue": [QueueItem(id="item", text="Next", run_id=None, position=1)],
    "questions": [QUESTION],
    "question": QUESTION,
    "todos": [Todo(text="Sail", status="in_progress")],
    "tokens": TOKENS,
    "summary": SUMMARY,
    "goal": GoalPayload(text="Sail", state="paused", reason="No wind.", continuations=2),
    "context": ContextPayload(used_percent=12.5, estimated=False),
    "auto_approve": AutoApprovePayload(enabled=True, cap_microdollars=1_000_000),
    "artifacts": [
        ArtifactPayload(
            file_id="file",
            name="a.md",
            type="text/markdown",
            size=5,
            created_at="2026-01-02T03:04:05.678Z",
            call_id="call",
        )
    ],
}
ITEMS: dict[str, object] = {"queue.changed": SAMPLES["queue"], "todos.changed": SAMPLES["todos"]}


def sample(kind: str) -> events.Event:
    """An event with every field filled in."""
    cls = events.EVENT_CLASSES[kind]
    fields = cls.__dataclass_fields__
    values = {name: _value(kind, name, cls.__annotations__[name]) for name in fields if name != "kind"}
    return cls(**values)


def _value(kind: str, name: str, annotation: str) -> object:
    if name == "items":
        return ITEMS[kind]
    if name == "approvals" and kind != "turn.paused":
        return [APPROVAL]
    if name == "message" and annotation == "str":
        return "Half done"
    if name in SAMPLES:
        return SAMPLES[name]
    return _plain(name, eval(annotation, {**vars(typing), **vars(events)}))


def _plain(name: str, hint: object) -> object:
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return options[0]
    if isinstance(hint, UnionType):
        return _plain(name, options[0])
    if get_origin(hint) is list:
        return [f"{name} 1", f"{name} 2"] if options[0] is str else [{"id": name}]
    if get_origin(hint) is dict:
        return {"key": "value"}
    return {str: name, int: 3, float: 1.5, bool: True}[hint]


def wire(kind: str) -> dict[str, object]:
    payload = events.encode_event(sample(kind), session_id=SESSION, turn_id=TURN).decode()
    placed = events.add_cursor_and_time(payload, "1767323045678-4")
    decoded: dict[str, object] = msgspec.json.decode(placed)
    return decoded


def golden() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = msgspec.json.decode(GOLDEN_EVENTS.read_bytes())
    return found


def test_every_kind_has_its_golden_form_and_none_is_left_over():
    """E1: a kind that goes, or comes without one, is a change of the wire"""
    assert sorted(golden()) == sorted(events.EVENT_CLASSES)


@pytest.mark.parametrize("kind", sorted(events.EVENT_CLASSES))
def test_the_wire_form_is_golden(kind):
    """E1: adding a field is free, changing one is a new kind"""
    expected, actual = golden()[kind], wire(kind)
    assert {name: actual.get(name) for name in expected} == expected
    added = set(actual) - set(expected)
    assert not added, f"write the new fields {sorted(added)} of {kind} into {GOLDEN_EVENTS.name}"


@pytest.mark.parametrize("kind", sorted(events.EVENT_CLASSES))
def test_what_is_encoded_can_be_read_back(kind):
    """A1.9: one codec"""
    event = sample(kind)
    assert events.decode_event(events.encode_event(event, session_id=SESSION, turn_id=TURN)) == event
    assert events.decode_event(events.encode_event(event, session_id=SESSION)) == event


@pytest.mark.parametrize("kind", sorted(events.EVENT_CLASSES))
def test_an_event_is_frozen_named_by_its_kind_and_made_by_keywords_alone(kind):
    """A1.9"""
    made = events.EVENT_CLASSES[kind]
    assert made.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(made))
    assert typing.get_type_hints(made)["kind"] == Literal[kind]


@pytest.mark.parametrize("kind", sorted(events.EVENT_CLASSES))
def test_every_event_carries_its_envelope(kind):
    """E1"""
    assert {"kind", "session_id", "turn_id", "cursor", "at"} <= set(wire(kind))
    assert (wire(kind)["kind"], wire(kind)["at"]) == (kind, "2026-01-02T03:04:05.678Z")


@pytest.mark.parametrize("kind", sorted(events.EVENT_CLASSES))
def test_kinds_are_nouns_and_verbs_and_no_event_speaks_of_money(kind):
    """E1, A19.8"""
    noun, _, verb = kind.partition(".")
    assert noun.replace("_", "").isalpha()
    assert verb.replace("_", "").isalpha()
    told = msgspec.json.encode(wire(kind))
    assert b"cost" not in told.replace(b"reset_cost_cents", b"")  # what a reset is sold for is public (B7.2)


def test_contents_of_rows_keep_their_shape():
    """A0.3, A9.3: the content of tool rows and notices is an object"""
    call = ToolCallContent(call_id="c", tool="t", arguments={"a": "1"})
    result = ToolResultContent(
        call_id="c", tool="t", success=True, preview="p", duration_ms=1, truncated=False, file_id=None
    )
    assert set(msgspec.to_builtins(call)) >= {"call_id", "tool", "arguments"}
    kept = {"call_id", "tool", "success", "preview", "duration_ms", "truncated", "file_id"}
    assert set(msgspec.to_builtins(result)) >= kept


def test_a_snapshot_says_whether_it_replaces_what_was_known():
    """T8.2"""
    assert {"reset", "has_older", "cursor"} <= set(wire("session.snapshot"))
    assert SessionSnapshot.__dataclass_fields__["reset"].name == "reset"
