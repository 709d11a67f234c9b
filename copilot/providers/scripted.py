"""A provider that streams a script, for tests and for the demo.

A script is a list of replies; a reply is a list of items. Requests are checked as the strictest vendor would
check them, and every one is recorded.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import msgspec

from config.core.json_values import JSON
from copilot.providers import failures, request_validation
from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    FailureCode,
    FinishReason,
    ModelMessage,
    ModelRequest,
    Provider,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    StreamItem,
    ToolResultsMessage,
    UsageReported,
    UserMessage,
    is_continuation,
)
from copilot.providers.text_filter import TextFilter
from copilot.realtime.payloads import Tokens


class SleepClock(Protocol):
    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# --- Items of a reply ---


@dataclass(frozen=True)
class ScriptedText:
    text: str
    size: int = 0  # characters per delta; 0 = all at once


@dataclass(frozen=True)
class ScriptedReasoning:
    text: str
    signature: str = ""  # signed reasoning must be sent back inside the tool loop


@dataclass(frozen=True)
class ScriptedCall:
    tool: str
    arguments: Mapping[str, JSON] | str = field(default_factory=dict)
    call_id: str = ""
    pieces: int = 1  # the number of fragments that the arguments are split into


@dataclass(frozen=True)
class ScriptedUsage:
    tokens: Tokens
    cost: str | None = None


@dataclass(frozen=True)
class ScriptedPause:
    seconds: float


@dataclass(frozen=True)
class ScriptedHang:
    """Send nothing more, forever."""


@dataclass(frozen=True)
class ScriptedCut:
    """End the stream cleanly, without a finish reason."""


@dataclass(frozen=True)
class ScriptedFailure:
    """A failure; without a code, status, body and headers are classified like a vendor's."""

    code: FailureCode | None = None
    status: int | None = None
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptedFinish:
    reason: FinishReason = "stop"


ScriptItem = (
    ScriptedText
    | ScriptedReasoning
    | ScriptedCall
    | CallFragment
    | ScriptedUsage
    | ScriptedPause
    | ScriptedHang
    | ScriptedCut
    | ScriptedFailure
    | ScriptedFinish
)
RequestPredicate = Callable[[ModelRequest], str | None]  # None when satisfied, else the problem


@dataclass(frozen=True)
class ScriptedReply:
    """One answer. Without `ScriptedFinish`, it finishes as its items suggest."""

    items: Sequence[ScriptItem]
    requires: Sequence[RequestPredicate] = ()


class Script:
    """The replies of a script, and the requests received."""

    def __init__(self, *replies: ScriptedReply | Sequence[ScriptItem]) -> None:
        self.replies = [
            reply if isinstance(reply, ScriptedReply) else ScriptedReply(reply) for reply in replies
        ]
        self.requests: list[ModelRequest] = []
        self.mismatches: list[str] = []

    def next_reply(self, request: ModelRequest) -> ScriptedReply:
        self.requests.append(request)
        if problems := request_validation.find_request_problems(request):
            self.mismatches += problems
            raise ProviderFailure("bad_request", details="; ".join(problems)[:1000], refused_before_work=True)
        number = len(self.requests)
        if number > len(self.replies):
            details = f"the script has {len(self.replies)} replies, but this is request {number}"
            raise ProviderFailure("bad_request", details=details, refused_before_work=True)
        reply = self.replies[number - 1]
        if wrong := [problem for predicate in reply.requires if (problem := predicate(request))]:
            self.mismatches += wrong
            raise AssertionError(f"request {number} does not match the script:\n" + "\n".join(wrong))
        return reply


# --- Predicates ---


def expect_last_text(expected: str) -> RequestPredicate:
    def check(request: ModelRequest) -> str | None:
        text = get_last_text(request)
        if expected in text:
            return None
        return "\n".join(
            difflib.unified_diff([expected], [text], "expected to contain", "last text", lineterm="")
        )

    return check


def expect_tool(tool: str) -> RequestPredicate:
    def check(request: ModelRequest) -> str | None:
        names = [specification.name for specification in request.tools]
        return None if tool in names else f"expected tool {tool!r}, but got {names}"

    return check


def expect_image(request: ModelRequest) -> str | None:
    seen = any(_has_images(message) for message in request.messages)
    return None if seen else "expected an image, but there is none"


def _has_images(message: ModelMessage) -> bool:
    match message:
        case UserMessage():
            return bool(message.images)
        case ToolResultsMessage():
            return any(result.images for result in message.results)
        case AssistantMessage():
            return False


def get_last_text(request: ModelRequest) -> str:
    last = request.messages[-1]
    return "\n".join(r.content for r in last.results) if isinstance(last, ToolResultsMessage) else last.text


# --- Streaming ---


class ScriptedProvider:
    def __init__(self, script: Script, clock: SleepClock | None = None) -> None:
        self.script = script
        self._clock = clock or WallClock()

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        reply = self.script.next_reply(request)
        number = len(self.script.requests)
        items = stream_script(reply, self._clock, number=number, continued=is_continuation(request.messages))
        async with aclosing(items):
            async for item in items:
                yield item


async def stream_script(
    reply: ScriptedReply, clock: SleepClock, *, number: int, continued: bool = False
) -> AsyncGenerator[StreamItem, None]:
    """Yield the reply's items as a vendor would stream them, with the usual filter for visible text."""
    text_filter = TextFilter(continues=continued)
    calls, has_content = 0, False
    for item in reply.items:
        match item:
            case ScriptedPause():
                await clock.sleep(item.seconds)
            case ScriptedHang():
                await asyncio.Event().wait()
            case ScriptedFailure():
                raise _build_failure(item, has_content=has_content)
            case ScriptedCut():
                raise ProviderFailure(
                    "malformed_stream" if has_content else "no_response", details="the script stops here"
                )
            case ScriptedText():
                for piece in _split_text(item.text, item.size):
                    for visible in text_filter.feed(piece):
                        yield visible
            case ScriptedFinish():
                for visible in text_filter.finish():
                    yield visible
                yield ReplyFinished(item.reason, f"scripted-{number}")
                return
            case _:
                for visible in text_filter.finish():
                    yield visible
                for output in _stream_item(item, index=calls, call_id=f"call_{number}_{calls}"):
                    yield output
                calls += isinstance(item, ScriptedCall | CallFragment)
        has_content = True
    for visible in text_filter.finish():
        yield visible
    yield ReplyFinished("tool_calls" if calls else "stop", f"scripted-{number}")


def _stream_item(
    item: ScriptedReasoning | ScriptedCall | CallFragment | ScriptedUsage, *, index: int, call_id: str
) -> Iterator[StreamItem]:
    match item:
        case ScriptedReasoning():
            if item.text:
                yield ReasoningDelta(item.text)
            if item.signature:
                block = {"type": "thinking", "thinking": item.text, "signature": item.signature}
                yield ReasoningReplay(msgspec.json.encode(block).decode())
        case ScriptedCall():
            yield from _call_fragments(item, index, item.call_id or call_id)
        case CallFragment():
            yield item
        case ScriptedUsage():
            yield UsageReported(item.tokens, item.cost)
        case unreachable:
            assert_never(unreachable)


def _call_fragments(call: ScriptedCall, index: int, call_id: str) -> Iterator[CallFragment]:
    value = call.arguments
    arguments = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    yield CallFragment(index, call_id, call.tool)
    size = -(-len(arguments) // max(call.pieces, 1))
    for piece in _split_text(arguments, size):
        yield CallFragment(index, arguments=piece)


def _split_text(text: str, size: int) -> Iterator[str]:
    size = size or len(text) or 1
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _build_failure(failure: ScriptedFailure, *, has_content: bool) -> ProviderFailure:
    status = failure.status
    if failure.code is None:
        return failures.classify_response(status or 500, failure.body, failure.headers)
    return ProviderFailure(
        failure.code,
        details=failures.clean_details(failure.body),
        status=status,
        retry_after_seconds=failures.parse_retry_after(failure.headers),
        refused_before_work=not has_content,
    )


# --- Registry ---

_installed: dict[str, Provider] = {}


def install_script(model_id: str, script: Script | Provider, clock: SleepClock | None = None) -> None:
    """Stream `model_id` from `script`, or from a test's own provider, in this process."""
    _installed[model_id] = ScriptedProvider(script, clock) if isinstance(script, Script) else script


def uninstall_script(model_id: str) -> None:
    _installed.pop(model_id, None)


def find_installed(model_id: str) -> Provider | None:
    return _installed.get(model_id)
