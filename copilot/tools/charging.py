"""What a call of a priced tool costs its user in credits: once, and only for something delivered (B9.8)."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid5

from billing import ledger
from billing import queries as billing
from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.tools.base import AnyTool, ToolFailed

_charging: set[asyncio.Task[bool]] = set()  # a stop does not undo what was delivered: nobody cancels these


class Charge:
    """One call's. A tool that streams says `delivered` at its first output; for others their answer says so."""

    def __init__(self, tool: AnyTool, context: TurnContext, call_id: str) -> None:
        self._tool = tool
        self._context = context
        self._key = f"tool:{uuid5(UUID(context.turn_id), f'tool {call_id}')}"
        self._delivered = False
        self._handled = False

    def delivered(self) -> None:
        self._delivered = True

    async def can_be_paid(self) -> None:
        """Refused before it starts, rather than given away."""
        if self._tool.price_cents:
            have = await in_thread(billing.balance, self._context.user_id)
            if have.balance_cents < self._tool.price_cents:
                raise ToolFailed("insufficient_credits", "The user has not enough credits for this tool.")

    async def settle(self) -> None:
        """After the call, however it ended. Marked before it is charged: a second try would not know of the first."""
        if self._handled or not self._delivered or not self._tool.price_cents:
            return
        self._handled = True
        work = asyncio.ensure_future(in_thread(self._charge))
        _charging.add(work)
        work.add_done_callback(_charging.discard)
        await asyncio.shield(work)

    def _charge(self) -> bool:
        return ledger.charge_delivered(
            self._context.user_id,
            self._tool.price_cents,
            key=self._key,
            reason=f"Tool {self._tool.name}",
            reference=self._context.turn_id,
        )
