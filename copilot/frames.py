"""Frames of the socket: text in, text out (E2)."""

from __future__ import annotations

import msgspec

from copilot import dispatch, events
from copilot.errors import InvalidRequest, Refused

Reply = dict[str, object]
Outcome = (
    dispatch.Started
    | dispatch.Queued
    | dispatch.Obeyed
    | dispatch.Goal
    | dispatch.Aside
    | dispatch.Stopped
    | dispatch.Switched
    | dispatch.Undone
    | dispatch.Decided
)


def decoded(frame: str | bytes) -> events.JSON:
    try:
        return msgspec.json.decode(frame)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, RecursionError, UnicodeError) as problem:
        raise InvalidRequest("That is not JSON.") from problem


def text(reply: Reply) -> str:
    return msgspec.json.encode(reply).decode()


def error(ref: object, refusal: Refused) -> str:
    return text({"kind": "error", "ref": ref, **refusal.body()})


def fields(outcome: Outcome) -> Reply:
    told: Reply = msgspec.to_builtins(outcome)
    for name in ("ignored_attachments", "hint"):  # said only when there is something to say
        if not told.get(name):
            told.pop(name, None)
    return told
