"""The same providers before a chaos server that nobody here wrote: every fault is seen and named (A5.7, A6.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from copilot.providers.base import (
    CatalogueEntry,
    ModelRequest,
    Provider,
    ProviderFailure,
    ReplyFinished,
    StreamItem,
    UserMessage,
)
from tests.support.provider_wires import TOOLS, VENDORS, collect, logical

Fault = Callable[[Any], object]


def request(*, tools: bool = False) -> ModelRequest:
    entry = CatalogueEntry(name="m", provider="openai_chat", model="gpt-4o-mini")
    return ModelRequest(
        entry=entry, system="", messages=(UserMessage(text="hi"),), tools=TOOLS if tools else ()
    )


@asynccontextmanager
async def vendor(kind: str, llmock: Any) -> AsyncIterator[Provider]:
    made = VENDORS[kind](credential="k", base_url=llmock.base_url(kind.split("_", maxsplit=1)[0]))
    try:
        yield made
    finally:
        await made.aclose()


async def ask(kind: str, llmock: Any, *, tools: bool = False) -> list[StreamItem]:
    async with vendor(kind, llmock) as provider:
        return await collect(provider, request(tools=tools))


FAULTS: list[tuple[Fault, str]] = [
    (lambda judge: judge.rate_limit(retry_after=3), "rate_limited"),
    (lambda judge: judge.fail(500), "overloaded"),
    (lambda judge: judge.fail(503), "overloaded"),
    (lambda judge: judge.fail(401), "auth_failed"),
    (lambda judge: judge.context_overflow(), "context_overflow"),
    (lambda judge: judge.disconnect(after_chunks=3), "overloaded"),
    (lambda judge: judge.reply("word " * 40).truncate(after_chunks=8), "malformed_stream"),
    (lambda judge: judge.corrupt(after_chunks=3), "malformed_stream"),
]


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize(("fault", "code"), FAULTS)
async def test_faults_of_a_compatible_provider_have_their_class(
    kind: str, fault: Fault, code: str, llmock: Any
) -> None:
    """A5.7, A6.1"""
    fault(llmock)
    with pytest.raises(ProviderFailure) as failure:
        await ask(kind, llmock)
    assert failure.value.code == code
    if code == "rate_limited":
        assert failure.value.retry_after_seconds == 3.0


@pytest.mark.parametrize("kind", VENDORS)
async def test_an_answer_of_a_compatible_provider_is_read_whole(kind: str, llmock: Any) -> None:
    llmock.reply("Hello there, general reader.")
    items = await ask(kind, llmock)
    assert logical(items) == [("text", "Hello there, general reader."), ("finish", "stop")]


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_tool_call_of_a_compatible_provider_is_read_whole(kind: str, llmock: Any) -> None:
    llmock.call_tool("read_file", {"name": "a.txt"})
    items = await ask(kind, llmock, tools=True)
    assert ("calls", [("read_file", {"name": "a.txt"})]) in logical(items)
    assert isinstance(items[-1], ReplyFinished)
    assert items[-1].reason == "tool_calls"
