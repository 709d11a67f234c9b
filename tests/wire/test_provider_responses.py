"""What is the Responses API's own: sealed thoughts that go back, paragraphs, and every place where a stream can break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    CatalogueEntry,
    ModelRequest,
    Provider,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    StreamItem,
    ToolResult,
    ToolResultsMessage,
    UsageReported,
    UserMessage,
)
from copilot.providers.openai_responses import ResponsesReplyDecoder
from copilot.providers.request_validation import find_request_problems
from copilot.tools.calls import ToolCallAssembler
from tests.support.agent_doubles import InMemoryToolbox
from tests.support.agent_loop import look, loop_of, play
from tests.support.provider_wires import (
    COUNTED,
    LOGICAL,
    STREAMS,
    FakeProvider,
    collect,
    collect_into,
    logical,
    replayed,
    replaying,
    request,
    vendor,
)

THINKER = CatalogueEntry(
    name="m", provider="openai_responses", model="recorded", can_reason=True, reasoning_style="effort"
)
SEALED = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "I should look."}],
    "encrypted_content": "gAAAAABsealed",
}


def thinking(
    *after: AssistantMessage | ToolResultsMessage | UserMessage, model: str = "recorded"
) -> ModelRequest:
    return replace(
        request(),
        entry=replace(THINKER, model=model),
        messages=(UserMessage(text="hi"), *after),
        thinking_tokens=8192,
    )


def answered(items: list[StreamItem]) -> tuple[AssistantMessage, ToolResultsMessage]:
    """The reply as the loop keeps it, and results for its calls."""
    assembler = ToolCallAssembler()
    for item in items:
        if isinstance(item, CallFragment):
            assembler.add_fragment(item)
    calls = assembler.complete()
    text = next((str(said) for kind, said in logical(items) if kind == "text"), "")
    replay = tuple(item.data for item in items if isinstance(item, ReasoningReplay))
    results = tuple(ToolResult(call_id=c.call_id, tool=c.tool, content="ok") for c in calls)
    return AssistantMessage(text=text, calls=calls, replay=replay), ToolResultsMessage(results=results)


async def second_request(recording: str, *, model: str = "recorded") -> list[dict[str, Any]]:
    """What a tool loop sends back after `recording`, to the same model or another one."""
    async with (
        replaying(recording, "responses_text") as (address, bodies),
        vendor("responses", address) as provider,
    ):
        reply, group = answered(await collect(provider, thinking()))
        again = thinking(reply, group, model=model)
        assert find_request_problems(again) == []
        await collect(provider, again)
    items: list[dict[str, Any]] = bodies[1]["input"]
    return items


# --- thoughts ----------------------------------------------------------------------------------------


async def test_a_sealed_thought_goes_back_unchanged_before_what_it_led_to_a14_3() -> None:
    items = await second_request("responses_tools")
    kinds = ["message", "reasoning", "message", *["function_call"] * 2, *["function_call_output"] * 2]
    assert [item["type"] for item in items] == kinds
    assert items[1] == SEALED


async def test_thoughts_between_calls_keep_their_places_a14_3() -> None:
    items = await second_request("responses_interleaved_thoughts")
    places = [item.get("encrypted_content") or item["type"] for item in items[1:-2]]
    assert places == [
        "gAAAAABone",
        "message",
        "gAAAAABtwo",
        "function_call",
        "gAAAAABthree",
        "function_call",
    ]


async def test_another_model_never_gets_a_sealed_thought_a14_4() -> None:
    items = await second_request("responses_tools", model="another")
    assert "reasoning" not in [item["type"] for item in items]


async def test_another_provider_never_gets_a_sealed_thought_a14_4() -> None:
    reply, group = answered(await replayed("responses_tools"))
    for kind, recording in (("chat", "chat_length"), ("messages", "messages_text")):
        async with replaying(recording) as (address, bodies), vendor(kind, address) as provider:
            await collect(provider, thinking(reply, group))
        assert "gAAAA" not in json.dumps(bodies)


async def test_only_the_finished_item_is_kept_for_replay() -> None:
    """The seal of an item that has only begun may be incomplete."""
    replay = [item for item in await replayed("responses_tools") if isinstance(item, ReasoningReplay)]
    assert [json.loads(json.loads(item.data)["sealed"]) for item in replay] == [SEALED]


async def test_a_tool_loop_replays_its_thoughts_and_the_next_turn_none_a14_c3(fake: FakeProvider) -> None:
    entry = replace(THINKER, model="fake:thinking=2,tokens=3")
    told = 'fake:{"tools": [{"name": "look"}, {"name": "look"}], "rounds": 2}'
    async with vendor("openai_responses", fake.address) as provider:
        loop = loop_of(
            provider,
            text=told,
            chain=(entry,),
            thinking_tokens=8192,
            toolbox=InMemoryToolbox(tools={"look": look}),
        )
        await play(loop)
    sent = await asyncio.to_thread(fake.get, "/requests?last=3")
    thoughts = [[item["id"] for item in one["body"]["input"] if item["type"] == "reasoning"] for one in sent]
    assert [len(one) for one in thoughts] == [0, 1, 2]
    assert thoughts[2][:1] == thoughts[1]


async def test_parts_and_items_in_a_row_are_paragraphs_a14_1() -> None:
    assert logical(await replayed("responses_paragraphs", size=7)) == [
        ("reasoning", "First thought.\n\nSecond thought.\n\nThird."),
        ("text", "One.\n\nTwo."),
        ("finish", "stop"),
    ]


def test_odd_reasoning_is_taken_for_empty_a14_1() -> None:
    reply = ResponsesReplyDecoder()
    for delta in (None, 7, ["x"], {"text": "x"}, ""):
        event = {"type": "response.reasoning_summary_text.delta", "delta": delta}
        assert reply.feed(json.dumps(event).encode()) == ()
    spoken = reply.feed(b'{"type":"response.reasoning_text.delta","delta":"hm"}')
    assert spoken == (ReasoningDelta("hm"),)


# --- endings -----------------------------------------------------------------------------------------


async def test_a_refusal_is_shown_and_named_a5_4() -> None:
    items = await replayed("responses_refusal")
    assert logical(items) == [("text", "I can't help with that."), ("finish", "refused")]


async def test_a_failure_with_counts_is_counted_first_a19_5() -> None:
    counted: list[StreamItem] = []
    async with (
        replaying("responses_failed_with_usage") as (address, _),
        vendor("responses", address) as provider,
    ):
        with pytest.raises(ProviderFailure) as failure:
            await collect_into(counted, provider)
    assert counted[-1] == UsageReported(COUNTED)
    assert (failure.value.code, failure.value.request_id) == ("rate_limited", "resp_recorded")


async def test_a_failed_response_never_shows_the_instructions_a6_2() -> None:
    with pytest.raises(ProviderFailure) as failure:
        await replayed("responses_failed_without_reason")
    assert failure.value.details == "the provider gave no reason"


def test_kinds_to_come_say_nothing_a5_1() -> None:
    reply = ResponsesReplyDecoder()
    for payload in (b'{"type":"response.queued","response":{}}', b'{"type":"response.new","x":1}', b"[DONE]"):
        assert reply.feed(payload) == ()
    assert not reply.started


# --- faults at every place ---------------------------------------------------------------------------


def events_of(recording: str) -> list[bytes]:
    whole = (STREAMS / f"{recording}.sse").read_bytes()
    return [part + b"\n\n" for part in whole.split(b"\n\n") if part]


EVENTS = events_of("responses_tools")
LAST = len(EVENTS) - 1  # response.completed
FIRST_SIGN = 2  # events that say nothing: created, in progress
ERROR = b'event: error\ndata: {"type":"error","code":"server_error","message":"Sorry."}\n\n'


@asynccontextmanager
async def breaking(fault: str) -> AsyncIterator[str]:
    """The nth request gets n events of the recording and then the fault."""
    number = -1

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal number
        number += 1
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        promised = "content-length: 999999" if fault == "reset" else "connection: close"
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{promised}\r\n\r\n".encode())
        half = EVENTS[number][:-20] if number < len(EVENTS) else b""
        last = {"cut": b"", "reset": b"", "garbage": b"data: {oops\n\n", "error": ERROR, "half": half}
        writer.write(b"".join(EVENTS[:number]) + last[fault])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def expected(fault: str, place: int) -> str:
    if fault in ("reset", "error"):
        return "overloaded"
    return "no_response" if fault == "cut" and place <= FIRST_SIGN else "malformed_stream"


@pytest.mark.parametrize("fault", ["cut", "reset", "garbage", "error", "half"])
async def test_a_fault_after_any_event_is_never_an_answer_a5_c2(fault: str) -> None:
    async with breaking(fault) as address, vendor("responses", address) as provider:
        for place in range(LAST + 1):
            with pytest.raises(ProviderFailure) as failure:
                await collect(provider, request())
            assert (place, failure.value.code) == (place, expected(fault, place))
            assert not failure.value.refused_before_work


@pytest.mark.parametrize("fault", ["cut", "reset"])
async def test_a_break_after_the_completed_response_costs_nothing(fault: str) -> None:
    async with breaking(fault) as address, vendor("responses", address) as provider:
        for _ in range(LAST + 1):
            with pytest.raises(ProviderFailure):
                await collect(provider, request())
        assert logical(await collect(provider, request())) == LOGICAL


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("kind", ["cut", "reset", "garbage"])
async def test_faults_after_any_token_have_their_class_a6_1(
    kind: str, after: int, fake: FakeProvider
) -> None:
    async with vendor("openai_responses", fake.address) as provider:
        with pytest.raises(ProviderFailure) as failure:
            await collect(provider, request(f"fake:thinking=2,tokens=4,{kind}_after={after}"))
    nothing = "no_response" if after == 0 else "malformed_stream"
    assert failure.value.code == {"cut": nothing, "reset": "overloaded", "garbage": "malformed_stream"}[kind]


@pytest.mark.parametrize("place", range(6))
async def test_a_stop_at_any_token_closes_the_connection(place: int, fake: FakeProvider) -> None:
    """While it thinks as well as while it speaks."""
    before = (await fake.until(lambda s: s["open_streams"] == 0))["disconnects"]
    arrived = asyncio.Event()

    async def read(provider: Provider) -> None:
        seen = 0
        async for _ in provider.stream(request("fake:thinking=3,tokens=1000,gap_ms=20")):
            seen += 1
            if seen > place:
                arrived.set()

    async with vendor("openai_responses", fake.address) as provider:
        task = asyncio.create_task(read(provider))
        await asyncio.wait_for(arrived.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.until(lambda s: s["disconnects"] == before + 1 and s["open_streams"] == 0)


# --- the fake's tongue -------------------------------------------------------------------------------


async def test_the_fake_ends_incomplete_and_without_counts(fake: FakeProvider) -> None:
    async with vendor("openai_responses", fake.address) as provider:
        items = await collect(provider, request("fake:tokens=2,finish=max_output_tokens,usage=0"))
    assert logical(items) == [("text", "t0 t1 "), ("finish", "length")]
    assert not [item for item in items if isinstance(item, UsageReported)]


async def test_malformed_arguments_come_through_as_they_were_a8_2(fake: FakeProvider) -> None:
    told = 'fake:{"tools": [{"name": "read_file", "arguments": "{\\"name\\": "}]}'
    async with vendor("openai_responses", fake.address) as provider:
        items = await collect(provider, request("fake:", told))
    assert logical(items)[0] == ("calls", [("read_file", None)])


def test_a_silent_thinker_is_no_silent_provider_a5_2() -> None:
    """A reasoning item without a visible word ends the wait for the first item."""
    reply = ResponsesReplyDecoder()
    reply.feed(
        b'{"type":"response.output_item.added","output_index":0,"item":{"type":"reasoning","id":"rs_1"}}'
    )
    assert reply.started
