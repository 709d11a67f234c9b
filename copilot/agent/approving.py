"""Which calls of a turn wait for a person, and the rows of those that run because somebody agreed (A11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from django.conf import settings
from pydantic import ValidationError

from copilot import approvals
from copilot.agent.commits import uncut
from copilot.agent.parts import Asked
from copilot.agent.recorder import Recorder
from copilot.approvals import Admitted, Wanted
from copilot.bridge import in_thread, retried
from copilot.context import TurnContext
from copilot.events import ApprovalDecided
from copilot.providers.base import ToolCall
from copilot.tools.base import AnyTool, CallOutcome
from copilot.turns import Claimed

ADMINISTRATORS_ASK = "The administrators of this installation want people to be asked first."
GUESTS_ASK = "Somebody else asks for this at your cost."


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

    async def finish(self, outcome: CallOutcome) -> None:
        """After the result's row: one that never started gives back what it had reserved."""
        if outcome.call_id in self._open:
            self._open.discard(outcome.call_id)
            await retried(partial(_finish, self._turn), outcome)


def _finish(turn: Claimed, outcome: CallOutcome) -> None:
    approvals.finish(turn.turn_id, outcome.call_id, cost_microdollars=outcome.cost_microdollars)


class TurnApprovals:
    """The loop's approvals. Most replies hold no call that could ask, and cost nothing here."""

    def __init__(
        self,
        recorder: Recorder,
        context: TurnContext,
        tool: Callable[[str], AnyTool | None],
        approved: Approved,
    ) -> None:
        self._turn = recorder.turn
        self._recorder = recorder
        self._context = context
        self._tool = tool
        self._approved = approved
        # Somebody else asks at the owner's cost: nothing that was allowed for good holds for them (L8).
        self._for_a_guest = context.reply is not None and not context.reply.of_payer

    async def judge(self, calls: Sequence[ToolCall]) -> tuple[Asked, ...]:
        weighty = [call for call in calls if self._may_ask(call)]
        return await uncut(self._ask(weighty)) if weighty else ()

    def _may_ask(self, call: ToolCall) -> bool:
        tool = self._tool(call.tool)
        asks = tool is not None and (
            tool.may_ask or tool.name in settings.ASK_BEFORE_TOOLS or (self._for_a_guest and _spends(tool))
        )
        return asks and call.call_id not in self._approved

    async def _ask(self, calls: Sequence[ToolCall]) -> tuple[Asked, ...]:
        wanted, admitted = await in_thread(self._admit, calls)
        self._approved.add(admitted.approved)
        for approval_id in admitted.approved.values():
            self._recorder.publish(
                ApprovalDecided(approval_id=str(approval_id), state="approved", by="automatic")
            )
        return tuple(
            _asked(call, wanted[call.call_id], admitted.refused[call.call_id])
            for call in calls
            if call.call_id in admitted.refused
        )

    def _admit(self, calls: Sequence[ToolCall]) -> tuple[dict[str, Wanted], Admitted]:
        wanted = {call.call_id: one for call in calls if (one := self._weigh(call)) is not None}
        if not wanted:
            return wanted, Admitted(approved={}, refused={})
        return wanted, approvals.admit(self._turn.turn_id, self._turn.fence, list(wanted.values()))

    def _weigh(self, call: ToolCall) -> Wanted | None:
        """None when it may run at once; so may one that cannot run: the tool's own answer says why (A8.6)."""
        tool = self._tool(call.tool)
        assert tool is not None
        try:
            weighed = tool.weigh(call.arguments or {}, self._context)
        except ValidationError:
            return None
        reason = weighed.reason or (ADMINISTRATORS_ASK if tool.name in settings.ASK_BEFORE_TOOLS else "")
        if self._for_a_guest and _spends(tool):
            reason = reason or GUESTS_ASK
        if not reason:
            return None
        return Wanted(
            call_id=call.call_id,
            tool=tool.name,
            arguments=call.arguments or {},
            reason=reason,
            manual_only=tool.approval == "manual_only" or self._for_a_guest,
            billable=tool.billable,
            estimate=weighed.estimate,
        )


def _spends(tool: AnyTool) -> bool:
    return tool.billable or tool.price_cents > 0 or tool.costs() > 0


def _asked(call: ToolCall, wanted: Wanted, block_reason: str) -> Asked:
    return Asked(
        call=call,
        reason=wanted.reason,
        block_reason=block_reason,
        billable=wanted.billable,
        estimate=wanted.estimate,
    )
