"""A provider that plays a script: for tests, and for the demo that needs no key (A5.6).

A script is a list of replies; a reply is a list of items. Requests are checked as the strictest vendor
would check them, and every one is recorded whole.
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


# --- what a reply is made of -------------------------------------------------------------------------


@dataclass(frozen=True)
class ScriptedText:
    text: str
    size: int = 0  # characters per delta; 0 = all at once


@dataclass(frozen=True)
class ScriptedReasoning:
    text: str
    signature: str = ""  # signed thoughts must come back inside the tool loop


@dataclass(frozen=True)
class ScriptedCall:
    tool: str
    arguments: Mapping[str, JSON] | str = field(default_factory=dict)
    call_id: str = ""
    pieces: int = 1  # into how many fragments the arguments are cut


@dataclass(frozen=True)
class ScriptedUsage:
    tokens: Tokens
    cost: str | None = None


@dataclass(frozen=True)
class ScriptedPause:
    seconds: float


@dataclass(frozen=True)
class ScriptedHang:
    """Say nothing more, for ever."""


@dataclass(frozen=True)
class ScriptedCut:
    """End the stream cleanly, without a finish reason."""


@dataclass(frozen=True)
class ScriptedFailure:
    """Without a code, status, body and headers are classified as a vendor's would be."""

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
RequestPredicate = Callable[[ModelRequest], str | None]  # None when satisfied, else what is wrong


@dataclass(frozen=True)
class ScriptedReply:
    """One answer. Without `Finish` it finishes as its items suggest."""

    items: Sequence[ScriptItem]
    requires: Sequence[RequestPredicate] = ()


class Script:
    """The replies to come, and the requests that came."""

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
            details = f"the script has {len(self.replies)} replies; this is request {number}"
            raise ProviderFailure("bad_request", details=details, refused_before_work=True)
        reply = self.replies[number - 1]
        if wrong := [problem for predicate in reply.requires if (problem := predicate(request))]:
            self.mismatches += wrong
            raise AssertionError(f"request {number} is not what the script expects:\n" + "\n".join(wrong))
        return reply


# --- predicates --------------------------------------------------------------------------------------


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
        return None if tool in names else f"expected tool {tool!r}, offered are {names}"

    return check


def expect_image(request: ModelRequest) -> str | None:
    seen = any(_has_images(message) for message in request.messages)
    return None if seen else "expected an image, there is none"


def _has_images(message: ModelMessage) -> bool:
    match message:
        case UserMessage():
            return bool(message.images)
        case ToolResultsMessage():
            return any(result.images for result in message.results)
        case AssistantMessage():
            return False


def get_last_text(request: ModelRequest) -> str:
    """What was said last, by whomever."""
    last = request.messages[-1]
    return "\n".join(r.content for r in last.results) if isinstance(last, ToolResultsMessage) else last.text


# --- playing -----------------------------------------------------------------------------------------


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
    """The reply's items as a vendor would stream them, visible text filtered like everyone's."""
    cleaner = TextFilter(continues=continued)
    calls, said = 0, False
    for item in reply.items:
        match item:
            case ScriptedPause():
                await clock.sleep(item.seconds)
            case ScriptedHang():
                await asyncio.Event().wait()
            case ScriptedFailure():
                raise _build_failure(item, said=said)
            case ScriptedCut():
                raise ProviderFailure(
                    "malformed_stream" if said else "no_response", details="the script cuts off"
                )
            case ScriptedText():
                for piece in _split_text(item.text, item.size):
                    for visible in cleaner.feed(piece):
                        yield visible
            case ScriptedFinish():
                for visible in cleaner.finish():
                    yield visible
                yield ReplyFinished(item.reason, f"scripted-{number}")
                return
            case _:
                for visible in cleaner.finish():
                    yield visible
                for made in _stream_item(item, index=calls, call_id=f"call_{number}_{calls}"):
                    yield made
                calls += isinstance(item, ScriptedCall | CallFragment)
        said = True
    for visible in cleaner.finish():
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
    given = call.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    yield CallFragment(index, call_id, call.tool)
    size = -(-len(arguments) // max(call.pieces, 1))
    for piece in _split_text(arguments, size):
        yield CallFragment(index, arguments=piece)


def _split_text(text: str, size: int) -> Iterator[str]:
    size = size or len(text) or 1
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _build_failure(fail: ScriptedFailure, *, said: bool) -> ProviderFailure:
    status = fail.status
    if fail.code is None:
        return failures.classify_response(status or 500, fail.body, fail.headers)
    return ProviderFailure(
        fail.code,
        details=failures.clean_details(fail.body),
        status=status,
        retry_after_seconds=failures.parse_retry_after(fail.headers),
        refused_before_work=not said,
    )


# --- registry ----------------------------------------------------------------------------------------

_installed: dict[str, Provider] = {}


def install_script(model_id: str, script: Script | Provider, clock: SleepClock | None = None) -> None:
    """Let `model_id` be played from `script`, or by a provider of the test's own, in this process."""
    _installed[model_id] = ScriptedProvider(script, clock) if isinstance(script, Script) else script


def uninstall_script(model_id: str) -> None:
    _installed.pop(model_id, None)


def find_installed(model_id: str) -> Provider | None:
    return _installed.get(model_id)
