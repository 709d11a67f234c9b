"""Which calls of a turn wait for a person, and the rows of those that run because somebody agreed (A11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from django.conf import settings
from pydantic import ValidationError

from copilot import approvals, context
from copilot.agent.commits import uncut
from copilot.agent.parts import Asked
from copilot.agent.recorder import Recorder
from copilot.approvals import Admitted, Wanted
from copilot.bridge import in_thread, retried
from copilot.context import TurnContext
from copilot.errors import Refused
from copilot.events import JSON, ApprovalDecided
from copilot.permissions import SCOPE_TOOLS
from copilot.provenance import Readings, describe_sources
from copilot.providers.base import ToolCall
from copilot.tools.base import AnyTool, CallOutcome, ToolFailed
from copilot.turns import Claimed

ADMINISTRATORS_ASK = "The administrators of this installation want people to be asked first."
GUESTS_ASK = "Somebody else asks for this at your cost."
NOBODY_TO_ASK = (
    "Not executed: {read} After that a person has to agree to this call, and nobody follows this conversation who could. "
    "Go on without it, or say in your answer what you would have done."
)
CHANGED_SINCE = (
    "Not executed: what this call names has changed since a person was asked about it. "
    "If it is still needed, call the tool again: the person will be asked about it as it is now."
)


class Approved:
    """Calls that were agreed to: a row says `running` before its tool does anything, and `done` after its result."""

    def __init__(self, turn: Claimed) -> None:
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

    async def start(self, call_id: str) -> None:
        if call_id in self._ready:
            self._ready.discard(call_id)
            await uncut(in_thread(approvals.begin, self._turn.turn_id, self._turn.fence, call_id))

    async def check(self, call: ToolCall, tool: AnyTool) -> ToolCall | str:
        """An approved call with the ids it was approved with, or why it does not run: it means something else now."""
        if call.call_id not in self._open:
            return call
        return await in_thread(_as_approved, self._turn, call, tool, context.current())

    async def finish(self, outcome: CallOutcome) -> None:
        """After the result's row: one that never started gives back what it had reserved."""
        if outcome.call_id in self._open:
            self._open.discard(outcome.call_id)
            await retried(partial(_finish, self._turn), outcome)


def _finish(turn: Claimed, outcome: CallOutcome) -> None:
    approvals.finish(turn.turn_id, outcome.call_id, cost_microdollars=outcome.cost_microdollars)


def _as_approved(turn: Claimed, call: ToolCall, tool: AnyTool, current: TurnContext) -> ToolCall | str:
    pinned = approvals.pinned_target(turn.turn_id, call.call_id)
    if pinned is None:
        return call
    try:
        now = tool.pin(call.arguments or {}, current)
    except (ValidationError, Refused, ToolFailed):
        return CHANGED_SINCE
    if now != pinned:
        return CHANGED_SINCE
    ids = pinned.get("arguments")
    return replace(call, arguments={**(call.arguments or {}), **ids}) if isinstance(ids, dict) else call


class TurnApprovals:
    """The loop's approvals. Most replies hold no call that could ask, and cost nothing here."""

    def __init__(
        self,
        recorder: Recorder,
        turn: TurnContext,
        tool: Callable[[str], AnyTool | None],
        approved: Approved,
    ) -> None:
        self._turn = recorder.turn
        self._recorder = recorder
        self._context = turn
        self._tool = tool
        self._approved = approved
        # Somebody else asks at the owner's cost: nothing that was allowed for good holds for them (L8).
        self._for_a_guest = turn.reply is not None and not turn.reply.of_payer

    async def judge(self, calls: Sequence[ToolCall]) -> tuple[Asked, ...]:
        weighty = [call for call in calls if self._may_ask(call)]
        return await uncut(self._ask(weighty)) if weighty else ()

    def _may_ask(self, call: ToolCall) -> bool:
        tool = self._tool(call.tool)
        asks = tool is not None and (
            tool.may_ask
            or tool.guard is not None
            or tool.name in settings.ASK_BEFORE_TOOLS
            or (self._for_a_guest and _spends(tool))
        )
        return asks and call.call_id not in self._approved

    def _can_be_asked(self) -> bool:
        """A person follows the channel, or the conversation that this one works for (A21.9)."""
        turn = self._context
        return not turn.arrival.unattended and (turn.channel.interactive or turn.origin == "parent")

    async def _ask(self, calls: Sequence[ToolCall]) -> tuple[Asked, ...]:
        wanted, refusals, admitted = await in_thread(self._admit, calls)
        self._approved.add(admitted.approved)
        for approval_id in admitted.approved.values():
            self._recorder.publish(
                ApprovalDecided(approval_id=str(approval_id), state="approved", by="automatic")
            )
        asked = {
            call.call_id: _asked(call, wanted[call.call_id], admitted.refused[call.call_id])
            for call in calls
            if call.call_id in admitted.refused
        }
        for call in calls:
            if call.call_id in refusals:
                asked[call.call_id] = Asked(call=call, reason="", refusal=refusals[call.call_id])
        return tuple(asked[call.call_id] for call in calls if call.call_id in asked)

    def _admit(self, calls: Sequence[ToolCall]) -> tuple[dict[str, Wanted], dict[str, str], Admitted]:
        """By call id: what needs a word, and what is refused without asking for one."""
        wanted: dict[str, Wanted] = {}
        refusals: dict[str, str] = {}
        read = None
        for call in calls:
            tool = self._tool(call.tool)
            assert tool is not None
            if read is None and tool.guard is not None:
                read = Readings.of_session(self._turn.session_id)
            weighed = self._weigh(call, tool, read)
            if isinstance(weighed, Wanted):
                wanted[call.call_id] = weighed
            elif weighed is not None:
                refusals[call.call_id] = weighed
        admitted = Admitted(approved={}, refused={})
        if wanted:
            admitted = approvals.admit(self._turn.turn_id, self._turn.fence, list(wanted.values()))
        return wanted, refusals, admitted

    def _weigh(self, call: ToolCall, tool: AnyTool, read: Readings | None) -> Wanted | str | None:
        """None when it may run at once; so may one that cannot run: the tool's own answer says why (A8.6).

        A text is the model's answer to a call that does not run and that nobody is asked about.
        """
        arguments = call.arguments or {}
        try:
            weighed = tool.weigh(arguments, self._context)
        except ValidationError:
            return None
        guarded = _guarded(tool, arguments, read)
        if guarded and not self._can_be_asked():
            return NOBODY_TO_ASK.format(read=describe_sources(read.sources if read else ()))
        reason = guarded or weighed.reason
        reason = reason or (ADMINISTRATORS_ASK if tool.name in settings.ASK_BEFORE_TOOLS else "")
        if self._for_a_guest and _spends(tool):
            reason = reason or GUESTS_ASK
        if not reason:
            return None
        try:
            pinned = tool.pin(arguments, self._context)
        except (Refused, ToolFailed) as problem:  # it names nothing: there is nothing to decide
            return f"Error {problem.code}: {problem.message}"
        return Wanted(
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


def _guarded(tool: AnyTool, arguments: Mapping[str, JSON], read: Readings | None) -> str:
    """What a person is asked because of what the conversation has read, or nothing."""
    if tool.guard is None or read is None or not read.sources:
        return ""
    question = tool.guard(arguments, read)
    return f"{describe_sources(read.sources)} {question}" if question else ""


def _spends(tool: AnyTool) -> bool:
    return tool.billable or tool.price_cents > 0 or tool.costs() > 0


def _asked(call: ToolCall, wanted: Wanted, block_reason: str) -> Asked:
    return Asked(
        call=call,
        reason=wanted.reason,
        block_reason=block_reason,
        manual_only=wanted.manual_only,
        billable=wanted.billable,
        estimate=wanted.estimate,
        pinned=wanted.pinned,
    )
