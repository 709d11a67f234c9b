"""One contract for every provider, over real sockets: recorded streams, the fake provider, and the scripts (A5.7)."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from contextlib import aclosing
from dataclasses import replace

import pytest

from copilot.providers.base import (
    AssistantMessage,
    ModelRequest,
    Provider,
    ProviderFailure,
    ReasoningReplay,
    ReplyFinished,
    ResponseIdReceived,
    StreamItem,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    UsageReported,
    UserMessage,
)
from copilot.providers.scripted import (
    Script,
    ScriptedCall,
    ScriptedProvider,
    ScriptedReasoning,
    ScriptedText,
    ScriptedUsage,
)
from tests.support.provider_wires import (
    COUNTED,
    LOGICAL,
    VENDORS,
    FakeProvider,
    collect,
    collect_into,
    logical,
    replayed,
    replaying,
    request,
    vendor,
)

FULL_RECORDINGS = [
    "chat_reasoning_content",
    "chat_openrouter",
    "chat_reasoning_details",
    "chat_calls_without_index",
    "chat_calls_without_ids",
    "chat_names_repeated",
    "chat_calls_interleaved",
    "chat_one_index_crlf",
    "chat_think_tags",
    "responses_tools",
    "responses_calls_interleaved",
    "responses_calls_whole",
    "messages_tools",
]


def last_usage(items: list[StreamItem]) -> UsageReported | None:
    return next((item for item in reversed(items) if isinstance(item, UsageReported)), None)


# --- the same reply from every provider ----------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1_000_000])
@pytest.mark.parametrize("name", FULL_RECORDINGS)
async def test_the_same_logical_reply_gives_the_same_items_a5_c1(name: str, size: int) -> None:
    """A5.7, A5.c1"""
    items = await replayed(name, size=size)
    assert logical(items) == LOGICAL
    usage = last_usage(items)
    assert usage is not None
    assert usage.tokens == COUNTED


async def test_a_script_speaks_like_the_vendors_a5_c1() -> None:
    script = Script(
        [
            ScriptedReasoning("I should look."),
            ScriptedText("Let me see.", size=3),
            ScriptedCall("read_file", {"name": "a.txt"}, pieces=5),
            ScriptedCall("current_time"),
            ScriptedUsage(COUNTED),
        ]
    )
    items = await collect(ScriptedProvider(script), request())
    assert logical(items) == LOGICAL
    assert last_usage(items) == UsageReported(COUNTED)


@pytest.mark.parametrize("kind", VENDORS)
async def test_the_fake_provider_speaks_every_vendors_tongue(kind: str, fake: FakeProvider) -> None:
    asked = request(
        "fake:thinking=2", 'fake:{"tools": [{"name": "read_file", "arguments": {"name": "a,b.txt"}}]}'
    )
    async with vendor(kind, fake.address) as provider:
        items = await collect(provider, asked)
    calls = [("read_file", {"name": "a,b.txt"})]
    assert logical(items) == [("reasoning", "r0 r1 "), ("calls", calls), ("finish", "tool_calls")]


async def test_a_stream_without_usage_is_a_whole_answer_a5_c2() -> None:
    items = await replayed("chat_ollama_no_usage")
    assert logical(items) == [("text", "Hello there"), ("finish", "stop")]
    assert last_usage(items) is None


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("chat_no_finish", "malformed_stream"),
        ("chat_nothing", "no_response"),
        ("chat_error_mid_stream", "overloaded"),
        ("chat_call_without_name", "malformed_stream"),
        ("responses_no_completed", "malformed_stream"),
        ("responses_nothing", "no_response"),
        ("responses_failed", "overloaded"),
        ("responses_failed_with_usage", "rate_limited"),
        ("responses_failed_without_reason", "unknown"),
        ("responses_error_event", "overloaded"),
        ("responses_error_object", "context_overflow"),
        ("responses_call_without_name", "malformed_stream"),
        ("messages_no_stop", "malformed_stream"),
        ("messages_nothing", "no_response"),
        ("messages_error_mid_stream", "overloaded"),
    ],
)
async def test_a_stream_that_breaks_off_is_never_an_answer_a5_c2(name: str, code: str) -> None:
    with pytest.raises(ProviderFailure) as failure:
        await replayed(name)
    assert failure.value.code == code
    assert not failure.value.refused_before_work


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("chat_refusal", "refused"),
        ("chat_content_filter", "refused"),
        ("chat_length", "length"),
        ("chat_unknown_finish", "stop"),
        ("chat_nan_cost", "stop"),
        ("responses_text", "stop"),
        ("responses_refusal", "refused"),
        ("responses_content_filter", "refused"),
        ("responses_length", "length"),
        ("responses_unknown_incomplete", "length"),
        ("messages_refusal", "refused"),
        ("messages_window", "overflow"),
        ("messages_length", "length"),
    ],
)
async def test_finish_reasons_are_ours_a5_3_a5_4_a5_5(name: str, reason: str) -> None:
    items = await replayed(name)
    assert isinstance(items[-1], ReplyFinished)
    assert items[-1].reason == reason


# --- Anthropic's own ---------------------------------------------------------------------------------


async def test_signed_and_redacted_thoughts_are_handed_out_for_replay_a14_3() -> None:
    signed = [item for item in await replayed("messages_tools") if isinstance(item, ReasoningReplay)]
    redacted = [item for item in await replayed("messages_redacted") if isinstance(item, ReasoningReplay)]
    block = {"type": "thinking", "thinking": "I should look.", "signature": "EqQBCgIYAhIM"}
    assert [json.loads(item.data) for item in signed] == [block]
    assert [json.loads(item.data) for item in redacted] == [
        {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"}
    ]


async def test_thoughts_go_back_to_a_chat_server_that_wants_them() -> None:
    """A14.3: in the same turn's tool loop, word for word"""
    asked = request()
    asked = replace(asked, entry=replace(asked.entry, replays_reasoning=True))
    recordings = replaying("chat_reasoning_content", "chat_ollama_no_usage")
    async with recordings as (address, bodies), vendor("chat", address) as provider:
        items = await collect(provider, asked)
        [thought] = [item for item in items if isinstance(item, ReasoningReplay)]
        call = ToolCall(call_id="c", tool="read_file", arguments={})
        reply = AssistantMessage(text="Let me see.", calls=(call,), replay=(thought.data,))
        results = ToolResultsMessage(results=(ToolResult(call_id="c", tool="read_file", content="x"),))
        await collect(provider, replace(asked, messages=(*asked.messages, reply, results)))
    assert bodies[1]["messages"][2]["reasoning_content"] == "I should look."
    assert isinstance(items[-1], ReplyFinished)


async def test_a_paused_reply_continues_as_one_a5_5() -> None:
    recordings = replaying("messages_paused", "messages_text")
    async with recordings as (address, bodies), vendor("messages", address) as provider:
        items = await collect(provider, request())
    assert logical(items) == [("text", "First half, second half."), ("finish", "stop")]
    resent = bodies[1]["messages"][-1]
    assert resent["role"] == "assistant"
    assert [block["type"] for block in resent["content"]] == ["text", "server_tool_use"]
    assert resent["content"][1]["input"] == {"query": "x"}
    usage = last_usage(items)
    assert usage is not None
    assert usage.tokens.output == 84


async def test_a_reply_that_pauses_for_ever_ends_after_three_continuations_a5_5() -> None:
    async with replaying("messages_paused") as (address, bodies), vendor("messages", address) as provider:
        items = await collect(provider, request())
    assert len(bodies) == 4
    assert logical(items)[-1] == ("finish", "stop")


async def test_a_reply_that_pauses_again_is_sent_back_once_and_whole() -> None:
    """A5.5"""
    recordings = replaying("messages_paused", "messages_paused", "messages_text")
    async with recordings as (address, bodies), vendor("messages", address) as provider:
        await collect(provider, request())
    assert [message["role"] for message in bodies[2]["messages"]] == ["user", "assistant"]
    assert [block["type"] for block in bodies[2]["messages"][1]["content"]] == ["text", "server_tool_use"] * 2


@pytest.mark.parametrize(
    ("recording", "named"),
    [
        ("chat_no_finish", "chatcmpl-recorded"),
        ("messages_no_stop", "msg_recorded"),
        ("responses_no_completed", "resp_recorded"),
    ],
)
async def test_a_stream_that_breaks_off_still_says_which_request_it_was(recording: str, named: str) -> None:
    """A6.2, A5.1: its name comes before anything is said"""
    items: list[StreamItem] = []
    async with replaying(recording) as (address, _), vendor(recording, address) as provider:
        with pytest.raises(ProviderFailure) as failure:
            await collect_into(items, provider)
    assert failure.value.request_id == named
    assert items[0] == ResponseIdReceived(named)
    assert len([item for item in items if isinstance(item, ResponseIdReceived)]) == 1


# --- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize(
    ("plan", "code"),
    [
        ("cut_after=3", "malformed_stream"),
        ("reset_after=3", "overloaded"),
        ("garbage_after=3", "malformed_stream"),
        ("status=500", "overloaded"),
        ("status=529", "overloaded"),
        ("status=401", "auth_failed"),
        ("status=404", "model_not_found"),
        ("status=413", "context_overflow"),
        ("status=400", "bad_request"),
        ("status=400,body=prompt is too long", "context_overflow"),
    ],
)
async def test_faults_become_classes_a6_1(kind: str, plan: str, code: str, fake: FakeProvider) -> None:
    async with vendor(kind, fake.address) as provider:
        with pytest.raises(ProviderFailure) as failure:
            await collect(provider, request(f"fake:{plan}"))
    assert failure.value.code == code
    assert failure.value.refused_before_work == plan.startswith("status")


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_rate_limit_says_how_long_to_wait_a7_1(kind: str, fake: FakeProvider) -> None:
    async with vendor(kind, fake.address) as provider:
        with pytest.raises(ProviderFailure) as failure:
            await collect(provider, request("fake:status=429,retry_after=2"))
    assert (failure.value.code, failure.value.retry_after_seconds) == ("rate_limited", 2.0)


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_failed_request_is_sent_once_a5_2(kind: str, fake: FakeProvider) -> None:
    before = fake.get("/stats")["requests"]
    async with vendor(kind, fake.address) as provider:
        with pytest.raises(ProviderFailure):
            await collect(provider, request("fake:status=500"))
    assert fake.get("/stats")["requests"] == before + 1


@pytest.mark.parametrize("kind", VENDORS)
async def test_nothing_listening_is_overloaded_and_free(kind: str) -> None:
    async with vendor(kind, "http://127.0.0.1:1") as provider:
        with pytest.raises(ProviderFailure) as failure:
            await collect(provider, request())
    assert failure.value.code == "overloaded"
    assert failure.value.refused_before_work


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("plan", ["hang=1", "silent_after=0", "first_ms=60000"])
async def test_silence_before_the_first_item_is_no_response_a5_2(
    kind: str, plan: str, fake: FakeProvider
) -> None:
    async with vendor(kind, fake.address) as provider:
        with pytest.raises(ProviderFailure) as failure:
            await collect(provider, request(f"fake:{plan}", first_seconds=0.1))
    assert failure.value.code == "no_response"
    await fake.until(lambda stats: stats["open_streams"] == 0)


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_stream_that_falls_silent_ends_a5_2(kind: str, fake: FakeProvider) -> None:
    async with vendor(kind, fake.address, idle_seconds=0.2) as provider:
        with pytest.raises(ProviderFailure) as failure:
            await collect(provider, request("fake:silent_after=3"))
    assert failure.value.code == "overloaded"


@pytest.mark.parametrize("kind", VENDORS)
async def test_cancelling_closes_the_connection_at_once(kind: str, fake: FakeProvider) -> None:
    before = fake.get("/stats")["disconnects"]
    arrived = asyncio.Event()

    async def read(provider: Provider) -> None:
        async for item in provider.stream(request("fake:tokens=1000,gap_ms=20")):
            if isinstance(item, TextDelta):
                arrived.set()

    async with vendor(kind, fake.address) as provider:
        task = asyncio.create_task(read(provider))
        await asyncio.wait_for(arrived.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.until(lambda s: s["disconnects"] == before + 1 and s["open_streams"] == 0)


@pytest.mark.parametrize("kind", VENDORS)
async def test_closing_the_stream_early_closes_the_connection(kind: str, fake: FakeProvider) -> None:
    before = fake.get("/stats")["disconnects"]
    async with vendor(kind, fake.address) as provider:
        async with aclosing(provider.stream(request("fake:tokens=1000,gap_ms=20"))) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, TextDelta):
                    break
        await fake.until(lambda s: s["disconnects"] == before + 1)


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_reply_that_streams_does_not_keep_its_requests_body_p6(kind: str, fake: FakeProvider) -> None:
    said = "word " * 150_000
    asked = request("fake:tokens=1000,gap_ms=20", said)
    async with vendor(kind, fake.address) as provider, aclosing(provider.stream(asked)) as items:  # type: ignore[type-var]
        tracemalloc.start()
        try:
            async for item in items:
                if isinstance(item, TextDelta):
                    break
            gc.collect()
            kept, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most > len(said) > 4 * kept


# --- many at once, and going on ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_hundred_streams_share_a_client_and_lose_nothing(kind: str, fake: FakeProvider) -> None:
    expected = "".join(f"t{i} " for i in range(50))
    async with vendor(kind, fake.address) as provider:
        asked = request("fake:tokens=50,gap_ms=5,first_ms=20")
        replies = await asyncio.gather(*(collect(provider, asked) for _ in range(100)))
    assert {logical(items)[0] for items in replies} == {("text", expected)}


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_interrupted_answer_continues_without_gap_t9_1(kind: str, fake: FakeProvider) -> None:
    first = request("fake:tokens=9")
    note = UserMessage(text="<system_note>Continue.</system_note>")
    partial = AssistantMessage(text="t0 t1 t2 t3 ")
    again = ModelRequest(entry=first.entry, system="", messages=(*first.messages, partial, note))
    async with vendor(kind, fake.address) as provider:
        items = await collect(provider, again)
    assert logical(items)[0] == ("text", "t4 t5 t6 t7 t8 ")
