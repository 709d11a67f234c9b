"""Asks the model and does what it asks, round after round, until an answer, a limit or a failure (A2)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial

from copilot.agent.acting import act, end_at, run_pending
from copilot.agent.continuation import go_on
from copilot.agent.course import Course
from copilot.agent.guards import LAST_ROUND, SHORTENED, Limit, State
from copilot.agent.parts import Produced
from copilot.agent.ports import closed
from copilot.providers.base import UserMessage


class Loop(Course):
    """One turn's rounds. Cancelling the task that plays it stops it."""

    @property
    def can_go_on(self) -> bool:
        """Another round may begin, unless money is short; if not, what is queued needs its own turn (T6.3)."""
        return self._limit() is None

    async def can_pay(self) -> bool:
        return await self.purse.inside_round() is None

    def go_on(self, messages: Sequence[UserMessage]) -> None:
        """Take up what was said after the answer, so that `play` can be called again in the same turn."""
        for message in messages:
            self.add(message)
        self.ran_tools = False
        self.ending = None

    async def play(self) -> AsyncGenerator[Produced, None]:
        """Everything that happens, then exactly one ending of this run."""
        async with closed(run_pending(self)) as parts:
            async for part in parts:
                yield part
        while self.ending is None:
            limit = self._limit() or await self._short_of_money()
            async with closed(self._round() if limit is None else end_at(self, limit)) as parts:
                async for part in parts:
                    yield part
        yield self.ending

    def _limit(self) -> Limit | None:
        code = self.guards.limit(next_round=self.rounds + 1, seconds=self.seconds)
        return None if code is None else Limit(code=code)

    async def _short_of_money(self) -> Limit | None:
        if self.asker.call_number == 1 and not self.checks_first_call:
            return None
        return await self.purse.before_round()

    async def _round(self) -> AsyncIterator[Produced]:
        self.rounds += 1
        self.asker.retries.begin_round()
        for stage in (self._make_room, self._ask, partial(act, self)):
            async with closed(stage()) as parts:
                async for part in parts:
                    yield part
            if self.ending is not None:
                return

    async def _make_room(self) -> AsyncIterator[Produced]:
        """Before the model reads it, a conversation that fills its window becomes shorter (A17.1)."""
        if self.shortening.is_due():
            async with closed(self._shorten(forced=False)) as parts:
                async for part in parts:
                    yield part
            async with closed(self._end_if_short()) as parts:
                async for part in parts:
                    yield part
            if self.ending is not None:
                return
        await self._take_follow_ups()
        if self.guards.is_last(self.rounds):
            yield self.make_note(LAST_ROUND)

    async def _ask(self) -> AsyncIterator[Produced]:
        """One reply; a conversation that the model refuses as too long is shortened and sent again (A7.5)."""
        state = State(last_round=self.guards.is_last(self.rounds), ran_tools=self.ran_tools)
        while True:
            async with closed(self.asker.ask(self.messages, round_number=self.rounds, state=state)) as parts:
                async for part in parts:
                    yield part
            if not self.asker.overflowed:
                async with closed(go_on(self.asker, self.messages, state=state)) as parts:
                    async for part in parts:
                        yield part
                return
            shorten = self.shortening.may_force() and not await self.asker.is_short_of_money()
            if shorten:
                async with closed(self._shorten(forced=True)) as parts:
                    async for part in parts:
                        yield part
            if shorten and self.shortening.succeeded:
                async with closed(self._end_if_short()) as parts:
                    async for part in parts:
                        yield part
                if self.ending is not None:
                    return
                continue
            larger = await self.asker.go_larger(self.messages, in_tool_loop=self.ran_tools)
            for part in larger:
                yield part
            if not larger:
                return

    async def _shorten(self, *, forced: bool) -> AsyncIterator[Produced]:
        """Only at a complete tool group: that is where rounds begin (A17.2)."""
        async with closed(self.shortening.play(self.messages, forced=forced)) as parts:
            async for part in parts:
                yield part
        if not self.shortening.succeeded:
            for given_up in () if forced else (self.shortening.give_up(),):
                yield given_up
            return
        for left in self.asker.leave_step() if forced else ():
            yield left
        if self.ran_tools:
            yield self.make_note(SHORTENED)

    async def _end_if_short(self) -> AsyncIterator[Produced]:
        """A summary may have cost what was left (A10.4, B6.10)."""
        if (limit := await self.purse.inside_round()) is not None:
            async with closed(end_at(self, limit)) as parts:
                async for part in parts:
                    yield part

    async def _take_follow_ups(self) -> None:
        """At a tool boundary alone, and only when the turn goes on (A13.7)."""
        if self.at_boundary:
            self.at_boundary = False
            for message in await self.ports.follow_ups.take():
                self.add(message)
