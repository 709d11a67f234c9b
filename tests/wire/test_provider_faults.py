"""Every class of failure after every chunk of a reply, over every wire: the turn stays in order and ends once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import get_args
from uuid import uuid4

import pytest

from copilot.agent.loop import AgentLoop
from copilot.agent.outputs import LoopAnswered, LoopFailed, LoopOutput, ToolCallAdded, ToolResultAdded
from copilot.providers.base import CatalogueEntry, FailureCode, Provider
from copilot.providers.scripted import (
    Script,
    ScriptedCall,
    ScriptedFailure,
    ScriptedProvider,
    ScriptedReasoning,
    ScriptedText,
    ScriptItem,
)
from copilot.realtime.events import ModelHealed, ModelRetrying, StepRetracted
from copilot.tools.calls import make_error_outcome
from tests.support.agent_doubles import InMemoryToolbox
from tests.support.agent_loop import (
    assert_well_ordered,
    look,
    loop_of,
    of,
    output_of,
    play,
)
from tests.support.provider_wires import STREAMS, vendor

RECORDINGS = {
    "chat": ("chat_reasoning_content", "chat_ollama_no_usage"),
    "responses": ("responses_tools", "responses_text"),
    "messages": ("messages_tools", "messages_text"),
}
ENTRY = CatalogueEntry(name="Recorded", provider="scripted", model="recorded")
TOOLBOX = {"read_file": look, "current_time": look}
# What a server says in the middle of its stream; `status` is how gateways pass an upstream's on.
SAID: dict[FailureCode, dict[str, object]] = {
    "quota_exhausted": {"code": "insufficient_quota", "message": "You exceeded your current quota."},
    "rate_limited": {"code": "rate_limit_exceeded", "message": "Slow down."},
    "auth_failed": {"code": "invalid_api_key", "message": "Incorrect API key."},
    "model_not_found": {"code": "model_not_found", "message": "The model does not exist."},
    "context_overflow": {"code": "context_length_exceeded", "message": "Too long."},
    "overloaded": {"code": "overloaded_error", "message": "Overloaded."},
    "effort_invalid": {"message": "Invalid value for reasoning_effort."},
    "thinking_unsupported": {"message": "thinking is not supported by this model"},
    "thinking_signature_invalid": {"message": "Invalid signature in thinking block"},
    "media_unsupported": {"message": "image input is not supported"},
    "refused": {"code": "content_filter", "message": "Flagged."},
    "bad_request": {"code": 400, "message": "No."},
    "unknown": {"message": "Hm."},
}
BROKEN = ("cut", "reset", "garbage")
STOPPED = "stopped"  # the class `cancelled`: it is our own doing
NOT_SAID: tuple[FailureCode, ...] = ("no_response", "malformed_stream")  # found by us; over a wire see BROKEN
TRIED_AGAIN = {"rate_limited", "overloaded", *NOT_SAID, *BROKEN}
HEALED = {"thinking_unsupported", "thinking_signature_invalid", "media_unsupported"}


def events_of(recording: str) -> list[bytes]:
    whole = (STREAMS / f"{recording}.sse").read_bytes().replace(b"\r\n", b"\n")
    return [part + b"\n\n" for part in whole.split(b"\n\n") if part.strip()]


def finish_of(events: list[bytes]) -> int:
    """The place of the event that says why the reply ended; behind it nothing is missed."""
    reasons = (b'"finish_reason":"', b'"type":"response.completed"', b'"type":"message_stop"')
    return next(place for place, event in enumerate(events) if any(reason in event for reason in reasons))


def said(wire: str, fault: str) -> bytes:
    """The last thing that is heard before the stream ends."""
    if fault in (*BROKEN, STOPPED):
        return b"data: {oops\n\n" if fault == "garbage" else b""
    complaint = SAID[fault]
    if wire == "messages":
        body = {"type": "error", "error": {"type": complaint.get("code", "error"), **complaint}}
        return b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"
    if wire == "responses":
        return b"event: error\ndata: " + json.dumps({"type": "error", **complaint}).encode() + b"\n\n"
    return b"data: " + json.dumps({"error": complaint}).encode() + b"\n\n"


class Breaking:
    """A server whose first reply breaks at a place; the second is whole and the third is an answer."""

    def __init__(self, wire: str, fault: str) -> None:
        self.events, self.last = (events_of(name) for name in RECORDINGS[wire])
        self.place = self.requests = 0
        self.stands, self.left = asyncio.Event(), asyncio.Event()  # all was said; the other side hung up
        self._wire, self._fault = wire, fault

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        self.requests += 1
        breaks = self.requests == 1
        promised = "content-length: 999999" if breaks and self._fault == "reset" else "connection: close"
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{promised}\r\n\r\n".encode())
        writer.write(self._broken() if breaks else b"".join(self.events if self.requests == 2 else self.last))
        await writer.drain()
        if self._fault == STOPPED:
            self.stands.set()
            await reader.read()
            self.left.set()
        writer.close()

    def _broken(self) -> bytes:
        return b"".join(self.events[: self.place]) + said(self._wire, self._fault)


@asynccontextmanager
async def breaking(wire: str, fault: str) -> AsyncIterator[tuple[Breaking, Provider]]:
    made = Breaking(wire, fault)
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, vendor(wire, address) as provider:
        yield made, provider


async def assert_ends_well(provider: Provider, fault: str) -> None:
    """In order, once, with a result for every call that was shown; and as the class demands."""
    parts = await play(loop_of(provider, chain=(ENTRY,), toolbox=InMemoryToolbox(tools=TOOLBOX)))
    assert_well_ordered(parts)
    assert len(of(parts, ModelRetrying)) == (fault in TRIED_AGAIN)
    assert len(of(parts, ModelHealed)) == (fault in HEALED)
    assert len(of(parts, StepRetracted)) <= 1
    if fault in TRIED_AGAIN | HEALED:
        assert parts[-1] == LoopAnswered()
        assert [made.outcome.success for made in of(parts, ToolResultAdded)] == [True, True]
    else:
        code = "context_full" if fault == "context_overflow" else fault
        assert isinstance(parts[-1], LoopFailed)
        assert parts[-1].code == code
        assert not any(made.outcome.success for made in of(parts, ToolResultAdded))


@pytest.mark.parametrize("fault", [*SAID, *BROKEN])
@pytest.mark.parametrize("wire", RECORDINGS)
async def test_a_failure_after_any_event_of_a_wire_leaves_the_turn_in_order(wire: str, fault: str) -> None:
    """A2.c1, A6.1, A7.3: reasoning, text and two calls, cut off in every place"""
    async with breaking(wire, fault) as (server, provider):
        for place in range(finish_of(server.events)):
            server.place, server.requests = place, 0
            await assert_ends_well(provider, fault)
            assert server.requests == (3 if fault in TRIED_AGAIN | HEALED else 1), place


async def assert_stops_well(server: Breaking, provider: Provider) -> None:
    """What is open is known, closing it leaves everything in order, and the connection is gone (A1.6)."""
    loop = loop_of(provider, chain=(ENTRY,), toolbox=InMemoryToolbox(tools=TOOLBOX))
    server.stands, server.left = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(loop.run())
    await server.stands.wait()
    for _ in range(10):  # wherever the stream is by then
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await server.left.wait()
    assert_well_ordered([*output_of(loop).parts, *closed(loop), LoopFailed(code="cancelled")])


def closed(loop: AgentLoop) -> Iterator[LoopOutput]:
    """What a turn that is stopped adds to what its loop has produced (A3.5)."""
    yield from (end for end in (loop.unrecorded_call(), loop.open_block) if end is not None)
    for one in loop.open_calls:
        assert not one.made
        yield ToolCallAdded(row_id=one.row_id, call=one.call)
        yield ToolResultAdded(row_id=uuid4(), outcome=make_error_outcome(one.call, "Stopped."))
    yield from (end for end in (loop.open_step,) if end is not None)


@pytest.mark.parametrize("wire", RECORDINGS)
async def test_a_stop_after_any_event_of_a_wire_leaves_nothing_open(wire: str) -> None:
    """A2.c1, A1.c1, A1.6: the class that we cause ourselves"""
    async with breaking(wire, STOPPED) as (server, provider):
        for place in range(finish_of(server.events)):
            server.place, server.requests = place, 0
            await assert_stops_well(server, provider)


def cut_anywhere(fault: FailureCode) -> Iterator[list[ScriptItem]]:
    whole: list[ScriptItem] = [
        ScriptedReasoning("I should look."),
        ScriptedText("Let me"),
        ScriptedText(" see."),
    ]
    whole += [ScriptedCall("read_file", {"name": "a.txt"}), ScriptedCall("current_time")]
    for place in range(len(whole) + 1):
        yield [*whole[:place], ScriptedFailure(fault)]


@pytest.mark.parametrize("fault", [*SAID, *NOT_SAID])
async def test_a_script_that_fails_anywhere_leaves_the_turn_in_order(fault: FailureCode) -> None:
    """A2.c1: the fourth wire"""
    for broken in cut_anywhere(fault):
        whole = [
            ScriptedText("Let me see."),
            ScriptedCall("read_file", {"name": "a.txt"}),
            ScriptedCall("current_time"),
        ]
        await assert_ends_well(ScriptedProvider(Script(broken, whole, [ScriptedText("Hello there")])), fault)


def test_no_class_of_failure_is_left_out() -> None:
    """A6.1: `cancelled` is our own doing, and has a test of its own"""
    assert {*SAID, *NOT_SAID} == set(get_args(FailureCode))
