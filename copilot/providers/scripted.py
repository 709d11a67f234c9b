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

from copilot.events import JSON, Tokens
from copilot.providers import failures, strict
from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    FailureCode,
    Finished,
    FinishReason,
    Item,
    ModelMessage,
    Provider,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    Request,
    ToolGroup,
    UsageReported,
    UserMessage,
)
from copilot.providers.clean import Cleaner
from copilot.providers.messages import continues


class Clock(Protocol):
    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# --- what a reply is made of -------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    text: str
    size: int = 0  # characters per delta; 0 = all at once


@dataclass(frozen=True)
class Reasoning:
    text: str
    signature: str = ""  # signed thoughts must come back inside the tool loop


@dataclass(frozen=True)
class Call:
    tool: str
    arguments: Mapping[str, JSON] | str = field(default_factory=dict)
    call_id: str = ""
    pieces: int = 1  # into how many fragments the arguments are cut


@dataclass(frozen=True)
class Usage:
    tokens: Tokens
    cost: str | None = None


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Hang:
    """Say nothing more, for ever."""


@dataclass(frozen=True)
class Cut:
    """End the stream cleanly, without a finish reason."""


@dataclass(frozen=True)
class Fail:
    """Without a code, status, body and headers are classified as a vendor's would be."""

    code: FailureCode | None = None
    status: int | None = None
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Finish:
    reason: FinishReason = "stop"


ScriptItem = Text | Reasoning | Call | CallFragment | Usage | Pause | Hang | Cut | Fail | Finish
Predicate = Callable[[Request], str | None]  # None when satisfied, else what is wrong


@dataclass(frozen=True)
class Reply:
    """One answer. Without `Finish` it finishes as its items suggest."""

    items: Sequence[ScriptItem]
    requires: Sequence[Predicate] = ()


class Script:
    """The replies to come, and the requests that came."""

    def __init__(self, *replies: Reply | Sequence[ScriptItem]) -> None:
        self.replies = [reply if isinstance(reply, Reply) else Reply(reply) for reply in replies]
        self.requests: list[Request] = []
        self.mismatches: list[str] = []

    def next(self, request: Request) -> Reply:
        self.requests.append(request)
        if problems := strict.problems(request):
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


def last_text_contains(expected: str) -> Predicate:
    def check(request: Request) -> str | None:
        text = last_text(request)
        if expected in text:
            return None
        return "\n".join(
            difflib.unified_diff([expected], [text], "expected to contain", "last text", lineterm="")
        )

    return check


def offers(tool: str) -> Predicate:
    def check(request: Request) -> str | None:
        names = [specification.name for specification in request.tools]
        return None if tool in names else f"expected tool {tool!r}, offered are {names}"

    return check


def has_image(request: Request) -> str | None:
    seen = any(_pictures(message) for message in request.messages)
    return None if seen else "expected an image, there is none"


def _pictures(message: ModelMessage) -> bool:
    match message:
        case UserMessage():
            return bool(message.images)
        case ToolGroup():
            return any(result.images for result in message.results)
        case AssistantMessage():
            return False


def last_text(request: Request) -> str:
    """What was said last, by whomever."""
    last = request.messages[-1]
    return "\n".join(r.content for r in last.results) if isinstance(last, ToolGroup) else last.text


# --- playing -----------------------------------------------------------------------------------------


class ScriptedProvider:
    def __init__(self, script: Script, clock: Clock | None = None) -> None:
        self.script = script
        self._clock = clock or WallClock()

    async def stream(self, request: Request) -> AsyncIterator[Item]:
        reply = self.script.next(request)
        number = len(self.script.requests)
        items = play(reply, self._clock, number=number, continued=continues(request.messages))
        async with aclosing(items):
            async for item in items:
                yield item


async def play(
    reply: Reply, clock: Clock, *, number: int, continued: bool = False
) -> AsyncGenerator[Item, None]:
    """The reply's items as a vendor would stream them, visible text filtered like everyone's."""
    cleaner = Cleaner(continues=continued)
    calls, said = 0, False
    for item in reply.items:
        match item:
            case Pause():
                await clock.sleep(item.seconds)
            case Hang():
                await asyncio.Event().wait()
            case Fail():
                raise _failure(item, said=said)
            case Cut():
                raise ProviderFailure(
                    "malformed_stream" if said else "no_response", details="the script cuts off"
                )
            case Text():
                for piece in _cut(item.text, item.size):
                    for visible in cleaner.feed(piece):
                        yield visible
            case Finish():
                for visible in cleaner.finish():
                    yield visible
                yield Finished(item.reason, f"scripted-{number}")
                return
            case _:
                for visible in cleaner.finish():
                    yield visible
                for made in _made(item, index=calls, call_id=f"call_{number}_{calls}"):
                    yield made
                calls += isinstance(item, Call | CallFragment)
        said = True
    for visible in cleaner.finish():
        yield visible
    yield Finished("tool_calls" if calls else "stop", f"scripted-{number}")


def _made(item: Reasoning | Call | CallFragment | Usage, *, index: int, call_id: str) -> Iterator[Item]:
    match item:
        case Reasoning():
            if item.text:
                yield ReasoningDelta(item.text)
            if item.signature:
                block = {"type": "thinking", "thinking": item.text, "signature": item.signature}
                yield ReasoningReplay(msgspec.json.encode(block).decode())
        case Call():
            yield from _fragments(item, index, item.call_id or call_id)
        case CallFragment():
            yield item
        case Usage():
            yield UsageReported(item.tokens, item.cost)
        case unreachable:
            assert_never(unreachable)


def _fragments(call: Call, index: int, call_id: str) -> Iterator[CallFragment]:
    given = call.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    yield CallFragment(index, call_id, call.tool)
    size = -(-len(arguments) // max(call.pieces, 1))
    for piece in _cut(arguments, size):
        yield CallFragment(index, arguments=piece)


def _cut(text: str, size: int) -> Iterator[str]:
    size = size or len(text) or 1
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _failure(fail: Fail, *, said: bool) -> ProviderFailure:
    status = fail.status
    if fail.code is None:
        return failures.from_response(status or 500, fail.body, fail.headers)
    return ProviderFailure(
        fail.code,
        details=failures.clean_details(fail.body),
        status=status,
        retry_after_seconds=failures.retry_after(fail.headers),
        refused_before_work=not said,
    )


# --- registry ----------------------------------------------------------------------------------------

_installed: dict[str, Provider] = {}


def install(model_id: str, script: Script | Provider, clock: Clock | None = None) -> None:
    """Let `model_id` be played from `script`, or by a provider of the test's own, in this process."""
    _installed[model_id] = ScriptedProvider(script, clock) if isinstance(script, Script) else script


def uninstall(model_id: str) -> None:
    _installed.pop(model_id, None)


def installed(model_id: str) -> Provider | None:
    return _installed.get(model_id)
