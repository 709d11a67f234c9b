"""Select the tool calls that need a person's approval, and track the approved ones while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from django.conf import settings
from pydantic import ValidationError

from config.core.batching import run_shielded
from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.errors import RequestRefused
from config.core.json_values import JSON
from copilot.agent.outputs import ApprovalNeeded
from copilot.chat import approvals, turn_context
from copilot.chat.approvals import ApprovalCandidate, AutoApprovalResult
from copilot.chat.permissions import SCOPE_TOOLS
from copilot.chat.provenance import ReadSources, describe_sources
from copilot.chat.turn_context import TurnContext
from copilot.chat.turns import ClaimedTurn
from copilot.providers.base import ToolCall
from copilot.realtime.events import ApprovalDecided
from copilot.tools.base import BaseTool, ToolCallOutcome, ToolError

if TYPE_CHECKING:
    from copilot.agent.recorder import TurnRecorder

ADMINISTRATOR_REASON = "Your administrator requires approval for this tool."
GUEST_REASON = "Someone else asked for this, and you would pay for it."
NOBODY_TO_ASK_RESULT = (
    "Not executed: {read} After that a person has to agree to this call, and nobody follows this conversation who could. "
    "Go on without it, or say in your answer what you would have done."
)
TARGET_CHANGED_RESULT = (
    "Not executed: what this call names has changed since a person was asked about it. "
    "If it is still needed, call the tool again: the person will be asked about it as it is now."
)


class ApprovedCalls:
    """Track approved calls: a row is `running` before its tool starts, and `done` after its result."""

    def __init__(self, turn: ClaimedTurn) -> None:
        self._turn = turn
        self._ready: set[str] = set()
        self._open: set[str] = set()

    def add(self, call_ids: Iterable[str], *, begun: bool = False) -> None:
        call_ids = set(call_ids)
        self._open |= call_ids
        if not begun:
            self._ready |= call_ids

    def __bool__(self) -> bool:
        return bool(self._open)

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._open

    async def mark_started(self, call_id: str) -> None:
        if call_id in self._ready:
            self._ready.discard(call_id)
            await run_shielded(
                run_in_thread(approvals.start_approved_call, self._turn.turn_id, self._turn.fence, call_id)
            )

    async def check_target(self, call: ToolCall, tool: BaseTool) -> ToolCall | str:
        """Return an approved call with its pinned ids, or why it no longer refers to the same things."""
        if call.call_id not in self._open:
            return call
        return await run_in_thread(
            _restore_approved_call, self._turn, call, tool, turn_context.get_turn_context()
        )

    async def mark_finished(self, outcome: ToolCallOutcome) -> None:
        """Finish the approval after the result's row; a call that never started releases its hold."""
        if outcome.call_id in self._open:
            self._open.discard(outcome.call_id)
            await run_in_thread_with_retry(partial(_finish_approval, self._turn), outcome)


def _finish_approval(turn: ClaimedTurn, outcome: ToolCallOutcome) -> None:
    approvals.finish_approved_call(turn.turn_id, outcome.call_id, cost_microdollars=outcome.cost_microdollars)


def _restore_approved_call(
    turn: ClaimedTurn, call: ToolCall, tool: BaseTool, current: TurnContext
) -> ToolCall | str:
    pinned = approvals.get_pinned_target(turn.turn_id, call.call_id)
    if pinned is None:
        return call
    try:
        target = tool.pin_arguments(call.arguments or {}, current)
    except (ValidationError, RequestRefused, ToolError):
        return TARGET_CHANGED_RESULT
    if target != pinned:
        return TARGET_CHANGED_RESULT
    ids = pinned.get("arguments")
    return replace(call, arguments={**(call.arguments or {}), **ids}) if isinstance(ids, dict) else call


class TurnApprovalPolicy:
    """Select calls that need approval. Most replies contain none that could, and cost nothing here."""

    def __init__(
        self,
        recorder: TurnRecorder,
        turn: TurnContext,
        tool: Callable[[str], BaseTool | None],
    ) -> None:
        self._turn = recorder.turn
        self._recorder = recorder
        self._context = turn
        self._tool = tool
        self._approved = recorder.approved_calls
        # Somebody else asks at the owner's cost, so the owner's standing approvals do not apply.
        self._is_guest_turn = turn.reply is not None and not turn.reply.of_payer

    async def select_calls_to_approve(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        candidates = [call for call in calls if self._may_need_approval(call)]
        return await run_shielded(self._request_approvals(candidates)) if candidates else ()

    def _may_need_approval(self, call: ToolCall) -> bool:
        tool = self._tool(call.tool)
        asks = tool is not None and (
            tool.may_need_approval
            or tool.guard is not None
            or tool.name in settings.ASK_BEFORE_TOOLS
            or (self._is_guest_turn and _costs_money(tool))
        )
        return asks and call.call_id not in self._approved

    def _can_be_asked(self) -> bool:
        turn = self._context
        return not turn.inbound_context.unattended and (turn.channel.interactive or turn.origin == "parent")

    async def _request_approvals(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        candidates, refusals, automatic = await run_in_thread(self._assess_calls, calls)
        self._approved.add(automatic.approved)
        for approval_id in automatic.approved.values():
            self._recorder.publish(
                ApprovalDecided(approval_id=str(approval_id), state="approved", by="automatic")
            )
        needed = {
            call.call_id: _build_approval_needed(
                call, candidates[call.call_id], automatic.refused[call.call_id]
            )
            for call in calls
            if call.call_id in automatic.refused
        }
        for call in calls:
            if call.call_id in refusals:
                needed[call.call_id] = ApprovalNeeded(call=call, reason="", refusal=refusals[call.call_id])
        return tuple(needed[call.call_id] for call in calls if call.call_id in needed)

    def _assess_calls(
        self, calls: Sequence[ToolCall]
    ) -> tuple[dict[str, ApprovalCandidate], dict[str, str], AutoApprovalResult]:
        """Return candidates and refusals by call id, and what was approved automatically."""
        candidates: dict[str, ApprovalCandidate] = {}
        refusals: dict[str, str] = {}
        read = None
        for call in calls:
            tool = self._tool(call.tool)
            assert tool is not None
            if read is None and tool.guard is not None:
                read = ReadSources.for_session(self._turn.session_id)
            assessment = self._assess_call(call, tool, read)
            if isinstance(assessment, ApprovalCandidate):
                candidates[call.call_id] = assessment
            elif assessment is not None:
                refusals[call.call_id] = assessment
        automatic = AutoApprovalResult(approved={}, refused={})
        if candidates:
            automatic = approvals.approve_automatically(
                self._turn.turn_id, self._turn.fence, list(candidates.values())
            )
        return candidates, refusals, automatic

    def _assess_call(
        self, call: ToolCall, tool: BaseTool, read: ReadSources | None
    ) -> ApprovalCandidate | str | None:
        """Return what needs approval, a refusal for the model, or None if the call may run at once.

        A call with invalid arguments may run, because the tool's own answer explains the problem.
        """
        arguments = call.arguments or {}
        try:
            assessment = tool.assess_call(arguments, self._context)
        except ValidationError:
            return None
        guard_reason = _guard_reason(tool, arguments, read)
        if guard_reason and not self._can_be_asked():
            return NOBODY_TO_ASK_RESULT.format(read=describe_sources(read.sources if read else ()))
        reason = guard_reason or assessment.reason
        reason = reason or (ADMINISTRATOR_REASON if tool.name in settings.ASK_BEFORE_TOOLS else "")
        if self._is_guest_turn and _costs_money(tool):
            reason = reason or GUEST_REASON
        if not reason:
            return None
        try:
            pinned = tool.pin_arguments(arguments, self._context)
        except (
            RequestRefused,
            ToolError,
        ) as problem:  # its target does not exist, so there is nothing to decide
            return f"Error {problem.code}: {problem.message}"
        return ApprovalCandidate(
            call_id=call.call_id,
            tool=tool.name,
            arguments=arguments,
            reason=reason,
            # Never approve automatically what untrusted sources may have caused, nor what needs a wider scope
            # than the one that can turn automatic approval on.
            manual_only=tool.approval == "manual_only"
            or self._is_guest_turn
            or bool(guard_reason)
            or tool.name in SCOPE_TOOLS["manage"],
            pinned=pinned,
            billable=tool.billable,
            estimate=assessment.estimate,
        )


def _guard_reason(tool: BaseTool, arguments: Mapping[str, JSON], read: ReadSources | None) -> str:
    if tool.guard is None or read is None or not read.sources:
        return ""
    question = tool.guard(arguments, read)
    return f"{describe_sources(read.sources)} {question}" if question else ""


def _costs_money(tool: BaseTool) -> bool:
    return tool.billable or tool.price_cents > 0 or tool.call_cost() > 0


def _build_approval_needed(call: ToolCall, candidate: ApprovalCandidate, block_reason: str) -> ApprovalNeeded:
    return ApprovalNeeded(
        call=call,
        reason=candidate.reason,
        block_reason=block_reason,
        manual_only=candidate.manual_only,
        billable=candidate.billable,
        estimate=candidate.estimate,
        pinned=candidate.pinned,
    )
