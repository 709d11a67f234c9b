"""Which calls of a turn wait for a person, and the rows of those that run because somebody agreed (A11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from django.conf import settings
from pydantic import ValidationError

from config.core.batching import run_shielded
from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.errors import RequestRefused
from config.core.json_values import JSON
from copilot.agent.outputs import ApprovalNeeded
from copilot.agent.recorder import TurnRecorder
from copilot.chat import approvals, turn_context
from copilot.chat.approvals import ApprovalCandidate, AutoApprovalResult
from copilot.chat.permissions import SCOPE_TOOLS
from copilot.chat.provenance import ReadSources, describe_sources
from copilot.chat.turn_context import TurnContext
from copilot.chat.turns import ClaimedTurn
from copilot.providers.base import ToolCall
from copilot.realtime.events import ApprovalDecided
from copilot.tools.base import BaseTool, ToolCallOutcome, ToolError

ADMINISTRATOR_REASON = "The administrators of this installation want people to be asked first."
GUEST_REASON = "Somebody else asks for this at your cost."
NOBODY_TO_ASK_RESULT = (
    "Not executed: {read} After that a person has to agree to this call, and nobody follows this conversation who could. "
    "Go on without it, or say in your answer what you would have done."
)
TARGET_CHANGED_RESULT = (
    "Not executed: what this call names has changed since a person was asked about it. "
    "If it is still needed, call the tool again: the person will be asked about it as it is now."
)


class ApprovedCalls:
    """Calls that were agreed to: a row says `running` before its tool does anything, and `done` after its result."""

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
        """An approved call with the ids it was approved with, or why it does not run: it means something else now."""
        if call.call_id not in self._open:
            return call
        return await run_in_thread(
            _restore_approved_call, self._turn, call, tool, turn_context.get_turn_context()
        )

    async def mark_finished(self, outcome: ToolCallOutcome) -> None:
        """After the result's row: one that never started gives back what it had reserved."""
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
        now = tool.pin_arguments(call.arguments or {}, current)
    except (ValidationError, RequestRefused, ToolError):
        return TARGET_CHANGED_RESULT
    if now != pinned:
        return TARGET_CHANGED_RESULT
    ids = pinned.get("arguments")
    return replace(call, arguments={**(call.arguments or {}), **ids}) if isinstance(ids, dict) else call


class TurnApprovalPolicy:
    """The loop's approvals. Most replies hold no call that could ask, and cost nothing here."""

    def __init__(
        self,
        recorder: TurnRecorder,
        turn: TurnContext,
        tool: Callable[[str], BaseTool | None],
        approved: ApprovedCalls,
    ) -> None:
        self._turn = recorder.turn
        self._recorder = recorder
        self._context = turn
        self._tool = tool
        self._approved = approved
        # Somebody else asks at the owner's cost: nothing that was allowed for good holds for them (L8).
        self._for_a_guest = turn.reply is not None and not turn.reply.of_payer

    async def select_calls_to_approve(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        weighty = [call for call in calls if self._may_need_approval(call)]
        return await run_shielded(self._request_approvals(weighty)) if weighty else ()

    def _may_need_approval(self, call: ToolCall) -> bool:
        tool = self._tool(call.tool)
        asks = tool is not None and (
            tool.may_need_approval
            or tool.guard is not None
            or tool.name in settings.ASK_BEFORE_TOOLS
            or (self._for_a_guest and _costs_money(tool))
        )
        return asks and call.call_id not in self._approved

    def _can_be_asked(self) -> bool:
        """A person follows the channel, or the conversation that this one works for (A21.9)."""
        turn = self._context
        return not turn.arrival.unattended and (turn.channel.interactive or turn.origin == "parent")

    async def _request_approvals(self, calls: Sequence[ToolCall]) -> tuple[ApprovalNeeded, ...]:
        wanted, refusals, admitted = await run_in_thread(self._admit, calls)
        self._approved.add(admitted.approved)
        for approval_id in admitted.approved.values():
            self._recorder.publish(
                ApprovalDecided(approval_id=str(approval_id), state="approved", by="automatic")
            )
        asked = {
            call.call_id: _build_approval_needed(call, wanted[call.call_id], admitted.refused[call.call_id])
            for call in calls
            if call.call_id in admitted.refused
        }
        for call in calls:
            if call.call_id in refusals:
                asked[call.call_id] = ApprovalNeeded(call=call, reason="", refusal=refusals[call.call_id])
        return tuple(asked[call.call_id] for call in calls if call.call_id in asked)

    def _admit(
        self, calls: Sequence[ToolCall]
    ) -> tuple[dict[str, ApprovalCandidate], dict[str, str], AutoApprovalResult]:
        """By call id: what needs a word, and what is refused without asking for one."""
        wanted: dict[str, ApprovalCandidate] = {}
        refusals: dict[str, str] = {}
        read = None
        for call in calls:
            tool = self._tool(call.tool)
            assert tool is not None
            if read is None and tool.guard is not None:
                read = ReadSources.for_session(self._turn.session_id)
            weighed = self._weigh_call(call, tool, read)
            if isinstance(weighed, ApprovalCandidate):
                wanted[call.call_id] = weighed
            elif weighed is not None:
                refusals[call.call_id] = weighed
        admitted = AutoApprovalResult(approved={}, refused={})
        if wanted:
            admitted = approvals.approve_automatically(
                self._turn.turn_id, self._turn.fence, list(wanted.values())
            )
        return wanted, refusals, admitted

    def _weigh_call(
        self, call: ToolCall, tool: BaseTool, read: ReadSources | None
    ) -> ApprovalCandidate | str | None:
        """None when it may run at once; so may one that cannot run: the tool's own answer says why (A8.6).

        A text is the model's answer to a call that does not run and that nobody is asked about.
        """
        arguments = call.arguments or {}
        try:
            weighed = tool.assess_call(arguments, self._context)
        except ValidationError:
            return None
        guarded = _guard_question(tool, arguments, read)
        if guarded and not self._can_be_asked():
            return NOBODY_TO_ASK_RESULT.format(read=describe_sources(read.sources if read else ()))
        reason = guarded or weighed.reason
        reason = reason or (ADMINISTRATOR_REASON if tool.name in settings.ASK_BEFORE_TOOLS else "")
        if self._for_a_guest and _costs_money(tool):
            reason = reason or GUEST_REASON
        if not reason:
            return None
        try:
            pinned = tool.pin_arguments(arguments, self._context)
        except (RequestRefused, ToolError) as problem:  # it names nothing: there is nothing to decide
            return f"Error {problem.code}: {problem.message}"
        return ApprovalCandidate(
            call_id=call.call_id,
            tool=tool.name,
            arguments=arguments,
            reason=reason,
            # What strangers may have talked the model into is never approved by itself; nor is what needs more than the
            # scope with which a key may switch that on.
            manual_only=tool.approval == "manual_only"
            or self._for_a_guest
            or bool(guarded)
            or tool.name in SCOPE_TOOLS["manage"],
            pinned=pinned,
            billable=tool.billable,
            estimate=weighed.estimate,
        )


def _guard_question(tool: BaseTool, arguments: Mapping[str, JSON], read: ReadSources | None) -> str:
    """What a person is asked because of what the conversation has read, or nothing."""
    if tool.guard is None or read is None or not read.sources:
        return ""
    question = tool.guard(arguments, read)
    return f"{describe_sources(read.sources)} {question}" if question else ""


def _costs_money(tool: BaseTool) -> bool:
    return tool.billable or tool.price_cents > 0 or tool.call_cost() > 0


def _build_approval_needed(call: ToolCall, wanted: ApprovalCandidate, block_reason: str) -> ApprovalNeeded:
    return ApprovalNeeded(
        call=call,
        reason=wanted.reason,
        block_reason=block_reason,
        manual_only=wanted.manual_only,
        billable=wanted.billable,
        estimate=wanted.estimate,
        pinned=wanted.pinned,
    )
