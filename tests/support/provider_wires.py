"""Run providers over real sockets: recorded streams, the fake provider, and their items."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from copilot.providers.anthropic import AnthropicProvider
from copilot.providers.base import (
    CallFragment,
    CatalogueEntry,
    ModelRequest,
    Provider,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    ResponseIdReceived,
    StreamItem,
    TextDelta,
    ToolSpecification,
    UsageReported,
    UserMessage,
)
from copilot.providers.openai_chat import OpenAIChatProvider
from copilot.providers.openai_responses import OpenAIResponsesProvider
from copilot.realtime.payloads import Tokens
from copilot.tools.calls import ToolCallAssembler
from tests.support.paths import ROOT
from tests.support.timeouts import PATIENCE_SECONDS

STREAMS = ROOT / "tests" / "wire" / "streams"
Vendor = OpenAIChatProvider | OpenAIResponsesProvider | AnthropicProvider
VENDORS: dict[str, type[Vendor]] = {
    "openai_chat": OpenAIChatProvider,
    "openai_responses": OpenAIResponsesProvider,
    "anthropic": AnthropicProvider,
}
RECORDED_FROM = {"chat": "openai_chat", "responses": "openai_responses", "messages": "anthropic"}
TOOLS = (
    ToolSpecification(name="read_file", description="Reads.", parameters={"type": "object"}),
    ToolSpecification(name="current_time", description="Tells.", parameters={"type": "object"}),
)
LOGICAL = [
    ("reasoning", "I should look."),
    ("text", "Let me see."),
    ("calls", [("read_file", {"name": "a.txt"}), ("current_time", {})]),
    ("finish", "tool_calls"),
]
COUNTED = Tokens(input=100, cache_read=900, output=42, reasoning=7)


def request(model: str = "recorded", text: str = "hi", *, first_seconds: float = 30.0) -> ModelRequest:
    entry = CatalogueEntry(
        name=model, provider="openai_chat", model=model, first_token_timeout_seconds=first_seconds
    )
    return ModelRequest(entry=entry, system="Be brief.", messages=(UserMessage(text=text),), tools=TOOLS)


async def collect(provider: Provider, asked: ModelRequest) -> list[StreamItem]:
    return [item async for item in provider.stream(asked)]


async def collect_into(items: list[StreamItem], provider: Provider) -> None:
    """Collect into a list, so that a test can read what arrived before a failure."""
    async for item in provider.stream(request()):
        items.append(item)


def logical(items: list[StreamItem]) -> list[tuple[str, object]]:
    """Join deltas to text, however they were split; counts are compared separately."""
    parts: list[tuple[str, object]] = []
    calls = ToolCallAssembler()
    for item in items:
        match item:
            case TextDelta(text) | ReasoningDelta(text):
                kind = "text" if isinstance(item, TextDelta) else "reasoning"
                if parts and parts[-1][0] == kind:
                    text = f"{parts.pop()[1]}{text}"
                parts.append((kind, text))
            case CallFragment():
                calls.add_fragment(item)
            case ReplyFinished(reason):
                if made := calls.complete():
                    parts.append(("calls", [(call.tool, call.arguments) for call in made]))
                parts.append(("finish", reason))
            case ReasoningReplay() | UsageReported() | ResponseIdReceived():
                pass
    return parts


@asynccontextmanager
async def replaying(*names: str, size: int = 1_000_000) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """Answer the nth request with the nth recording, split into pieces of `size` bytes."""
    bodies: list[dict[str, Any]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        bodies.append(json.loads(await reader.readexactly(length)))
        recording = (STREAMS / f"{names[min(len(bodies), len(names)) - 1]}.sse").read_bytes()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for start in range(0, len(recording), size):
            writer.write(recording[start : start + size])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


async def replayed(*names: str, size: int = 1_000_000) -> list[StreamItem]:
    async with replaying(*names, size=size) as (address, _), vendor(names[0], address) as provider:
        return await collect(provider, request())


@asynccontextmanager
async def vendor(kind: str, address: str, *, idle_seconds: float = 600.0) -> AsyncIterator[Provider]:
    """Open a provider by its name or by the name of a recording."""
    kind = RECORDED_FROM.get(kind.split("_", maxsplit=1)[0], kind)
    base_url = address if kind == "anthropic" else f"{address}/v1"
    made = VENDORS[kind](credential="k", base_url=base_url, idle_seconds=idle_seconds)
    try:
        yield made
    finally:
        await made.aclose()


class FakeProvider:
    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.address + path, timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition(stats := await asyncio.to_thread(self.get, "/stats")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return stats
