"""Runs the calls of one reply: some at once, each within its time, each with exactly one result (A9)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from django.conf import settings
from pydantic import ValidationError

from copilot import metrics, queries, traces
from copilot.bridge import retried
from copilot.context import TurnContext
from copilot.errors import FenceLost, Refused
from copilot.events import Event, ToolProgressed, ToolStateChanged
from copilot.providers.base import ToolCall
from copilot.redaction import redact, redact_user_text
from copilot.tools import calls as answers
from copilot.tools import registry, results
from copilot.tools.base import AnyTool, Bound, CallOutcome, Invocation, ToolFailed, ToolOutput
from copilot.tools.charging import Charge

ABANDONED_AFTER_SECONDS = 0.5  # a stop must end the turn within 1 s, its last writes included (A1.7, A1.c5)

Starting = Callable[[str], Awaitable[None]]
Checking = Callable[
    [ToolCall, AnyTool], Awaitable[ToolCall | str]
]  # as it was approved, or why it does not run

_log = logging.getLogger(__name__)
_abandoned: set[asyncio.Task[ToolOutput]] = set()  # nobody waits for them; the loop alone would not keep them


async def at_once(call_id: str) -> None:
    """Nothing has to be known before a call starts."""


async def as_it_is(call: ToolCall, tool: AnyTool) -> ToolCall | str:
    """Nothing was approved that could mean something else by now."""
    return call


async def run_group(
    calls: Sequence[ToolCall],
    *,
    context: TurnContext,
    emit: Callable[[Event], None],
    outside: Sequence[AnyTool] = (),
    starting: Starting = at_once,
    checking: Checking = as_it_is,
    taken: int = 0,
) -> AsyncGenerator[CallOutcome, None]:
    """One outcome per call, as they finish. Closing the iterator cancels what still runs.

    `starting` is awaited with a call's id when its turn has come, and before anything happens; `checking` gives
    an approved call as it was approved, or says why it does not run; `taken` characters
    of the group's room are not for these calls (A9.6).
    """
    offered = registry.offered(context.permissions, context.channel, outside)
    group = _Group(offered, context, emit, starting, checking, results.Room(len(calls), taken=taken))
    tasks = [asyncio.create_task(group.run(call)) for call in calls]
    try:
        for finished in asyncio.as_completed(tasks):
            yield await finished
    finally:
        group.open = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Group:
    """What the calls of one reply share: the places to run in, the order of exclusive ones, the room for output."""

    def __init__(
        self,
        offered: Sequence[AnyTool],
        context: TurnContext,
        emit: Callable[[Event], None],
        starting: Starting,
        checking: Checking,
        room: results.Room,
    ) -> None:
        self.open = True
        self._context = context
        self._emit = emit
        self._starting = starting
        self._checking = checking
        self._offered = {tool.name: tool for tool in offered}
        self._places = asyncio.Semaphore(settings.TOOL_CALLS_AT_ONCE)
        self._exclusive = asyncio.Lock()  # first come, first served: call order, because tasks start in it
        self._room = room
        self._asking = False  # a question of this group is on its way to a person (A12.1)

    async def run(self, call: ToolCall) -> CallOutcome:
        prepared = self._prepare(
            call
        )  # nothing is awaited before the places are asked for: they are given in call order
        if isinstance(prepared, results.Result):
            return await self._conclude(call, prepared, duration_ms=0)
        async with contextlib.AsyncExitStack() as turn:
            if prepared.tool.exclusive:
                await turn.enter_async_context(self._exclusive)
            await turn.enter_async_context(self._places)
            prepared = await self._check_approval(call, prepared)
            if isinstance(prepared, results.Result):
                return await self._conclude(call, prepared, duration_ms=0)
            await self._starting(call.call_id)
            self._send(ToolStateChanged(call_id=call.call_id, state="running"))
            started = time.monotonic()
            with traces.span("tool", tool=self._counted_as(call.tool), call_id=call.call_id) as span:
                result = await self._perform(call, prepared)
                span.note(success=result.success)
            duration_ms = round((time.monotonic() - started) * 1000)
        return await self._conclude(call, result, duration_ms=duration_ms)

    async def _check_approval(self, call: ToolCall, prepared: _Prepared) -> _Prepared | results.Result:
        """Look right before a call runs whether it is what a person approved, and, where only a person may allow it, that one did."""
        checked = await self._checking(call, prepared.tool)
        if isinstance(checked, str):
            return results.failure(checked)
        if prepared.tool.approval == "manual_only" and not await retried(
            partial(queries.was_approved, UUID(self._context.turn_id)), call.call_id
        ):
            return results.failure("Not executed: a person has to approve this call, and nobody has.")
        return prepared if checked is call else _bind(prepared.tool, checked)

    def _prepare(self, call: ToolCall) -> _Prepared | results.Result:
        """The tool with validated arguments, or why the call cannot run. Hidden tools are unknown ones."""
        tool = self._offered.get(call.tool)
        if tool is None:
            return results.failure(answers.unknown_tool(call.tool, self._offered))
        prepared = _bind(tool, call)
        if isinstance(prepared, results.Result):
            return prepared
        if tool.interactive and self._asking:
            return results.failure(
                "Not executed: one question at a time. Ask again after the first is answered."
            )
        self._asking = self._asking or tool.interactive
        return prepared

    async def _perform(self, call: ToolCall, prepared: _Prepared) -> results.Result:
        limit = min(prepared.tool.timeout_seconds, settings.MAX_TOOL_WAIT_SECONDS)
        charge = Charge(prepared.tool, self._context, call.call_id)
        try:
            await charge.can_be_paid()
        except ToolFailed as refusal:
            return results.failure(f"Error {refusal.code}: {refusal.message}")
        invocation = Invocation(
            context=self._context,
            call_id=call.call_id,
            emit=partial(self._send, user_text=prepared.tool.returns_user_text),
            delivered=charge.delivered,
        )
        work = asyncio.create_task(_awaited(prepared.bound, invocation))
        try:
            await asyncio.wait({work}, timeout=limit)
        finally:
            finished = work.done()
            try:
                if not finished:
                    await _let_go(work)
                elif _has_delivered(work):
                    charge.delivered()
            finally:  # whoever is stopped twice pays for what he has
                await charge.settle()
        if not finished:
            return results.failure(_too_slow(limit))
        result = _judged(call, prepared.tool, work)
        untrusted = prepared.tool.untrusted
        return replace(result, sources=(*result.sources, untrusted)) if untrusted else result

    async def _conclude(self, call: ToolCall, result: results.Result, *, duration_ms: int) -> CallOutcome:
        metrics.tool_calls.labels(self._counted_as(call.tool), "ok" if result.success else "error").inc()
        return await results.conclude(
            call, result, session_id=self._context.session_id, room=self._room, duration_ms=duration_ms
        )

    def _counted_as(self, name: str) -> str:
        """From a closed set: what others name their tools, or a model makes up, is no label (D16)."""
        if registry.get(name) is not None:
            return name
        return "mcp" if name in self._offered else "unknown"

    def _send(self, event: Event, *, user_text: bool = False) -> None:
        """What a tool tells clients meanwhile; one that was given up on says nothing any more."""
        if not self.open:
            return
        if isinstance(event, ToolProgressed):
            event = replace(event, message=(redact_user_text if user_text else redact)(event.message))
        self._emit(event)


@dataclass(frozen=True)
class _Prepared:
    tool: AnyTool
    bound: Bound


def _bind(tool: AnyTool, call: ToolCall) -> _Prepared | results.Result:
    """The tool with validated arguments, or what is wrong with them."""
    if call.arguments is None:
        return results.failure(answers.MALFORMED)
    try:
        return _Prepared(tool, tool.bind(call.arguments))
    except ValidationError as problem:
        short = answers.invalid_arguments(problem)
        return results.Result(
            text=results.problems(problem),
            short=short,
            abridged=problem.error_count() > answers.PROBLEMS_NAMED or short.endswith("…"),
            success=False,
            user_text=True,
        )


async def _awaited(bound: Bound, invocation: Invocation) -> ToolOutput:
    return await bound(invocation)


async def _let_go(work: asyncio.Task[ToolOutput]) -> None:
    """Cancel; a tool that does not listen is left to itself, and what it answers later is thrown away."""
    work.cancel()
    await asyncio.wait({work}, timeout=ABANDONED_AFTER_SECONDS)
    if not work.done():
        _abandoned.add(work)
        work.add_done_callback(_abandoned.discard)
        work.add_done_callback(_look_away)


def _has_delivered(work: asyncio.Task[ToolOutput]) -> bool:
    if work.cancelled() or work.exception() is not None:
        return False
    output = work.result()
    return output.success and not output.dry_run


def _look_away(work: asyncio.Task[ToolOutput]) -> None:
    """Mark a late exception as seen; without this the loop would report it."""
    if not work.cancelled():
        work.exception()


def _judged(call: ToolCall, tool: AnyTool, work: asyncio.Task[ToolOutput]) -> results.Result:
    """A finished tool's output, or its exception as an error result; losing the turn is nobody's result."""
    if work.cancelled():
        return results.failure("The tool was interrupted.")
    match work.exception():
        case None:
            return results.of_output(work.result(), user_text=tool.returns_user_text)
        case FenceLost() as lost:
            raise lost
        case ToolFailed() | Refused() as refusal:
            message = f"Error {refusal.code}: {refusal.message}"
            return results.failure(message, user_text=tool.returns_user_text)
        case problem:
            trace = "".join(traceback.format_exception(problem))
            _log.warning("the tool %s raised an exception: %s", call.tool, redact(trace))
            return results.failure(f"Error {type(problem).__name__}: {problem}", user_text=False)


def _too_slow(limit: float) -> str:
    return (
        f"Error timeout: the tool was stopped after {limit:g} s. For long work, start it with one call "
        "and look for its result with another, or ask for a smaller piece."
    )
