"""Run the tool calls of one reply in parallel, each with a timeout and one result, and charge for priced tools."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid5

import structlog
from django.conf import settings
from pydantic import ValidationError

from billing import ledger
from billing.selectors import credit_statements
from config.core import trace_context
from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.errors import FenceLost, RequestRefused
from config.core.redaction import redact, redact_user_text
from copilot import metrics
from copilot.chat import selectors as chat_selectors
from copilot.chat.turn_context import TurnContext
from copilot.providers.base import ToolCall
from copilot.realtime.events import Event, ToolProgressed, ToolStateChanged
from copilot.tools import calls, registry, results
from copilot.tools.base import BaseTool, BoundTool, ToolCallOutcome, ToolError, ToolInvocation, ToolOutput

# Charges are never cancelled: stopping a turn does not undo what a tool delivered.
_running_charges: set[asyncio.Task[bool]] = set()


class ToolCharge:
    """The credits charged for one call of a priced tool: once, and only if it delivered something.

    A tool that streams calls `mark_delivered` at its first output; for the others a successful result counts
    as delivery.
    """

    def __init__(self, tool: BaseTool, context: TurnContext, call_id: str) -> None:
        self._tool = tool
        self._context = context
        self._key = f"tool:{uuid5(UUID(context.turn_id), f'tool {call_id}')}"
        self._delivered = False
        self._handled = False

    def mark_delivered(self) -> None:
        self._delivered = True

    async def check_balance(self) -> None:
        if self._tool.price_cents:
            account_credits = await run_in_thread(credit_statements.get_balance, self._context.user_id)
            if account_credits.balance_cents < self._tool.price_cents:
                raise ToolError(
                    "insufficient_credits", "The user does not have enough credits for this tool."
                )

    async def charge_if_delivered(self) -> None:
        """Charge after the call, however it ended.

        The call is marked as handled before it is charged, because a second attempt would not know of the
        first.
        """
        if self._handled or not self._delivered or not self._tool.price_cents:
            return
        self._handled = True
        work = asyncio.ensure_future(run_in_thread(self._charge))
        _running_charges.add(work)
        work.add_done_callback(_running_charges.discard)
        await asyncio.shield(work)

    def _charge(self) -> bool:
        return ledger.charge_after_delivery(
            self._context.user_id,
            self._tool.price_cents,
            key=self._key,
            reason=f"Tool {self._tool.name}",
            reference=self._context.turn_id,
        )


MAX_CONCURRENT_CALLS = 8  # of one reply
CANCEL_GRACE_SECONDS = 0.5  # a stop must end the turn within 1 s, its last writes included

StartHook = Callable[[str], Awaitable[None]]
# Returns the call as it was approved, or why it does not run.
ApprovalCheck = Callable[[ToolCall, BaseTool], Awaitable[ToolCall | str]]

log = structlog.get_logger(__name__)
# Tools that ignored their cancellation. The event loop holds only weak references to tasks.
_abandoned: set[asyncio.Task[ToolOutput]] = set()


async def start_immediately(call_id: str) -> None:
    pass


async def skip_approval_check(call: ToolCall, tool: BaseTool) -> ToolCall | str:
    return call


async def run_tool_calls(
    calls: Sequence[ToolCall],
    *,
    context: TurnContext,
    emit: Callable[[Event], None],
    outside: Sequence[BaseTool] = (),
    starting: StartHook = start_immediately,
    checking: ApprovalCheck = skip_approval_check,
    taken: int = 0,
) -> AsyncGenerator[ToolCallOutcome, None]:
    """Run calls and yield one outcome per call, as they finish. Closing the iterator cancels what still runs.

    `starting` is awaited with a call's id right before the call starts. `checking` returns an approved call
    as it was approved, or why it does not run. `taken` characters of the group's output budget are reserved
    for other calls.
    """
    offered = registry.list_offered_tools(context.permissions, context.channel, outside)
    group = _CallGroup(
        offered, context, emit, starting, checking, results.OutputBudget(len(calls), taken=taken)
    )
    tasks = [asyncio.create_task(group.run_call(call)) for call in calls]
    try:
        for finished in asyncio.as_completed(tasks):
            yield await finished
    finally:
        group.is_open = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _CallGroup:
    """Shared state of the calls of one reply: concurrency slots, the lock of exclusive tools, the output budget."""

    def __init__(
        self,
        offered: Sequence[BaseTool],
        context: TurnContext,
        emit: Callable[[Event], None],
        starting: StartHook,
        checking: ApprovalCheck,
        budget: results.OutputBudget,
    ) -> None:
        self.is_open = True
        self._context = context
        self._emit = emit
        self._starting = starting
        self._checking = checking
        self._offered = {tool.name: tool for tool in offered}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._exclusive = asyncio.Lock()  # fair, and tasks start in call order, so exclusive calls run in it
        self._budget = budget
        self._asking = False  # a call of this group is asking the user

    async def run_call(self, call: ToolCall) -> ToolCallOutcome:
        # Nothing is awaited before the slots are requested, so that they are given in call order.
        prepared = self._prepare_call(call)
        if isinstance(prepared, results.ToolRunResult):
            return await self._finish_call(call, prepared, duration_ms=0)
        async with contextlib.AsyncExitStack() as slots:
            if prepared.tool.exclusive:
                await slots.enter_async_context(self._exclusive)
            await slots.enter_async_context(self._slots)
            prepared = await self._check_approval(call, prepared)
            if isinstance(prepared, results.ToolRunResult):
                return await self._finish_call(call, prepared, duration_ms=0)
            await self._starting(call.call_id)
            self._emit_event(ToolStateChanged(call_id=call.call_id, state="running"))
            started = time.monotonic()
            with trace_context.start_span(
                "tool", tool=self._metric_label(call.tool), call_id=call.call_id
            ) as span:
                result = await self._perform_call(call, prepared)
                span.note(success=result.success)
            duration_ms = round((time.monotonic() - started) * 1000)
        return await self._finish_call(call, result, duration_ms=duration_ms)

    async def _check_approval(
        self, call: ToolCall, prepared: _PreparedCall
    ) -> _PreparedCall | results.ToolRunResult:
        """Check right before a call runs that it is what a person approved, if approval was needed."""
        checked = await self._checking(call, prepared.tool)
        if isinstance(checked, str):
            return results.make_failure(checked)
        if prepared.tool.approval == "manual_only" and not await run_in_thread_with_retry(
            partial(chat_selectors.was_approved, UUID(self._context.turn_id)), call.call_id
        ):
            return results.make_failure("Not executed: a person has to approve this call, and nobody has.")
        return prepared if checked is call else _bind_arguments(prepared.tool, checked)

    def _prepare_call(self, call: ToolCall) -> _PreparedCall | results.ToolRunResult:
        """Return the tool with validated arguments, or why the call cannot run.

        Hidden tools count as unknown.
        """
        tool = self._offered.get(call.tool)
        if tool is None:
            return results.make_failure(calls.describe_unknown_tool(call.tool, self._offered))
        prepared = _bind_arguments(tool, call)
        if isinstance(prepared, results.ToolRunResult):
            return prepared
        if tool.interactive and self._asking:
            return results.make_failure(
                "Not executed: one question at a time. Ask again after the first is answered."
            )
        self._asking = self._asking or tool.interactive
        return prepared

    async def _perform_call(self, call: ToolCall, prepared: _PreparedCall) -> results.ToolRunResult:
        limit = float(min(prepared.tool.timeout_seconds, settings.MAX_TOOL_WAIT_SECONDS))
        if prepared.tool.sub_sessions and not self._context.channel.async_delivery:
            limit = self._context.seconds_left(datetime.now(UTC))  # the result cannot be delivered later
        charge = ToolCharge(prepared.tool, self._context, call.call_id)
        try:
            await charge.check_balance()
        except ToolError as refusal:
            return results.make_failure(f"Error {refusal.code}: {refusal.message}")
        invocation = ToolInvocation(
            context=self._context,
            call_id=call.call_id,
            emit=partial(self._emit_event, user_text=prepared.tool.returns_user_text),
            mark_delivered=charge.mark_delivered,
        )
        work = asyncio.create_task(_await_tool(prepared.bound, invocation))
        try:
            await asyncio.wait({work}, timeout=limit)
        finally:
            finished = work.done()
            try:
                if not finished:
                    await _cancel_work(work)
                elif _has_delivered(work):
                    charge.mark_delivered()
            finally:  # a second cancellation must not skip the charge
                await charge.charge_if_delivered()
        if not finished:
            return results.make_failure(_timeout_message(limit))
        result = _result_of_work(call, prepared.tool, work)
        untrusted = prepared.tool.untrusted_source
        return replace(result, sources=(*result.sources, untrusted)) if untrusted else result

    async def _finish_call(
        self, call: ToolCall, result: results.ToolRunResult, *, duration_ms: int
    ) -> ToolCallOutcome:
        metrics.tool_calls.labels(self._metric_label(call.tool), "ok" if result.success else "error").inc()
        return await results.build_outcome(
            call, result, session_id=self._context.session_id, budget=self._budget, duration_ms=duration_ms
        )

    def _metric_label(self, name: str) -> str:
        """Return a label from a closed set: names that MCP servers or models choose must not become labels."""
        if registry.find_tool(name) is not None:
            return name
        return "mcp" if name in self._offered else "unknown"

    def _emit_event(self, event: Event, *, user_text: bool = False) -> None:
        """Publish an event of a running tool; a tool that was given up on is silenced."""
        if not self.is_open:
            return
        if isinstance(event, ToolProgressed):
            event = replace(event, message=(redact_user_text if user_text else redact)(event.message))
        self._emit(event)


@dataclass(frozen=True)
class _PreparedCall:
    tool: BaseTool
    bound: BoundTool


def _bind_arguments(tool: BaseTool, call: ToolCall) -> _PreparedCall | results.ToolRunResult:
    if call.arguments is None:
        return results.make_failure(calls.MALFORMED_ARGUMENTS_MESSAGE)
    try:
        return _PreparedCall(tool, tool.bind(call.arguments))
    except ValidationError as problem:
        short = calls.describe_invalid_arguments(problem)
        return results.ToolRunResult(
            text=results.list_argument_problems(problem),
            short=short,
            abridged=problem.error_count() > calls.MAX_LISTED_PROBLEMS or short.endswith("…"),
            success=False,
            user_text=True,
        )


async def _await_tool(bound: BoundTool, invocation: ToolInvocation) -> ToolOutput:
    return await bound(invocation)


async def _cancel_work(work: asyncio.Task[ToolOutput]) -> None:
    """Cancel a tool. One that does not react is abandoned, and its late answer is discarded."""
    work.cancel()
    await asyncio.wait({work}, timeout=CANCEL_GRACE_SECONDS)
    if not work.done():
        _abandoned.add(work)
        work.add_done_callback(_abandoned.discard)
        work.add_done_callback(_retrieve_exception)


def _has_delivered(work: asyncio.Task[ToolOutput]) -> bool:
    if work.cancelled() or work.exception() is not None:
        return False
    output = work.result()
    return output.success and not output.dry_run


def _retrieve_exception(work: asyncio.Task[ToolOutput]) -> None:
    """Mark a late exception as seen; otherwise the event loop would report it."""
    if not work.cancelled():
        work.exception()


def _result_of_work(call: ToolCall, tool: BaseTool, work: asyncio.Task[ToolOutput]) -> results.ToolRunResult:
    """Turn a finished tool's output or exception into a result. Losing the fence is raised to the turn."""
    if work.cancelled():
        return results.make_failure("The tool was interrupted.")
    match work.exception():
        case None:
            return results.make_result(work.result(), user_text=tool.returns_user_text)
        case FenceLost() as lost:
            raise lost
        case ToolError() | RequestRefused() as refusal:
            message = f"Error {refusal.code}: {refusal.message}"
            return results.make_failure(message, user_text=tool.returns_user_text)
        case problem:
            log.warning("tool_raised", tool=call.tool, exc_info=problem)
            return results.make_failure(f"Error {type(problem).__name__}: {problem}", user_text=False)


def _timeout_message(limit: float) -> str:
    return (
        f"Error timeout: the tool was stopped after {limit:g} s. For long work, start it with one call "
        "and look for its result with another, or ask for a smaller piece."
    )
