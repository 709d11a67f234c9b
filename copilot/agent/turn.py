"""Runs one turn: begin, play the loop, record and publish; then it ends, pauses or is interrupted (A3, T5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import assert_never

from django.conf import settings

from copilot import context, offering, traces, usage
from copilot.agent import conversation, endings, interruptions, pausing, prefixes, prompt, taking
from copilot.agent.approving import TurnApprovals
from copilot.agent.budgets import LimitUsed, TurnBudget
from copilot.agent.commits import uncut
from copilot.agent.compaction import TurnCompactor
from copilot.agent.fullness import remembered
from copilot.agent.guards import Limits
from copilot.agent.learning import TurnHealth, TurnLessons
from copilot.agent.live_metering import LiveMeter
from copilot.agent.loop import Loop
from copilot.agent.mending import row_uuid
from copilot.agent.outside import gathered
from copilot.agent.parts import Answered, Ending, Failed, Paused, Produced, ResultMade
from copilot.agent.ports import Ports, SystemClock
from copilot.agent.preparing import Prepared, prepare
from copilot.agent.replies import Continuing
from copilot.agent.retries import Policy
from copilot.agent.runs import Interruption, Run
from copilot.agent.services import Services
from copilot.agent.suffix import suffix_text
from copilot.agent.toolbox import TurnToolbox
from copilot.bridge import in_thread, retried
from copilot.errors import FenceLost
from copilot.events import (
    ReasoningEnded,
    TextEnded,
    TurnHeartbeat,
    TurnStarted,
)
from copilot.providers import provider_for
from copilot.providers.base import Entry
from copilot.rows import Row
from copilot.tools.outside import Outside
from copilot.turns import Claimed


class TurnRun(Run):
    """One run of a turn; a takeover, a hand-over or a decision makes another."""

    def __init__(
        self,
        turn: Claimed,
        services: Services,
        prepared: Prepared | None = None,
        lasts: asyncio.Future[bool] | None = None,
    ) -> None:
        super().__init__(turn, services)
        self.recorder.claim_lasts = lasts
        self._prepared = prepared
        self.began_at = time.monotonic()
        self._live_meter = LiveMeter()
        self._limit_used = LimitUsed(turn, self.recorder, services)
        self.progressed_at = self.told_at = self.began_at

    # --- from outside ----------------------------------------------------------------------------

    def interrupt(self, why: Interruption) -> None:
        """End this run soon; the first reason given counts, but a lost fence overrides any other."""
        if self.over or (self.interruption is not None and why != "lost"):
            return
        self.interruption = why
        self.interrupted_at = time.monotonic()
        if self.task is not None and not self.deciding:
            self.task.cancel()

    def watch(self, now: float) -> None:
        """Called every second: a sign of life in silence, an end to one that lasts, and to a round that does (A3.3, A3.4, A10.5)."""
        if self.loop is None or self.over:
            return
        if now - self.progressed_at > settings.STREAM_IDLE_SECONDS:
            self.interrupt("idle_timeout")
        elif self.loop.is_out_of_time:
            self.interrupt("time_limit")
        elif now - self.told_at >= settings.HEARTBEAT_SECONDS:
            self.told_at = now
            self.recorder.publish(
                TurnHeartbeat(phase=self.loop.phase, elapsed_seconds=int(now - self.began_at))
            )

    def meter(self, now: float) -> None:
        """Called twice a second; the figures go out with whatever goes out next (A19.7)."""
        if self.loop is None or self.over:
            return
        used = self._limit_used.percent(now)
        if (figures := self._live_meter.look(self.loop.asker, now, limit_used_percent=used)) is not None:
            self.services.publisher.add(self.outbox, figures)

    # --- the run ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Exactly one ending, or none of ours: a hand-over and a lost fence leave it to the next run."""
        self.task = asyncio.current_task()
        with context.bound(self._context()), self._span():
            try:
                await self._play()
            except asyncio.CancelledError:
                if self.interruption is None:
                    raise
                await interruptions.obey(self)
            except FenceLost:
                self.leave()
            finally:
                self.over = True

    def _span(self) -> AbstractContextManager[traces.Span]:
        """In the trace of the message that began the turn; a later run names the one it goes on from (D18)."""
        turn = self.turn
        return traces.span(
            "turn",
            parent=turn.arrival.traceparent,
            seed=f"{turn.turn_id}:{turn.fence}",
            follows=f"{turn.turn_id}:{turn.fence - 1}" if turn.resumed else "",
            turn_id=str(turn.turn_id),
            session_id=str(turn.session_id),
            fence=turn.fence,
            attempt=turn.attempts,
            origin=turn.origin,
        )

    def _context(self) -> context.TurnContext:
        turn = self.turn
        return context.TurnContext(
            user_id=turn.user_id,
            session_id=str(turn.session_id),
            turn_id=str(turn.turn_id),
            fence=turn.fence,
            origin=turn.origin,
            permissions=turn.permissions,
            channel=turn.channel,
            arrival=turn.arrival,
            deadline=datetime.now(UTC) + timedelta(seconds=settings.TURN_MAX_SECONDS - turn.running_seconds),
            timezone=turn.shaping.timezone,
        )

    async def _play(self) -> None:
        if self.interruption is None or self._prepared is not None:
            prepared = await (self._begin() if self._begins_at_once() else uncut(self._begin()))
        if self.interruption is not None:
            raise asyncio.CancelledError
        if prepared.mended.answered:
            await endings.succeed(self, Answered())
            return
        outside = await gathered(prepared.servers, self.recorder)
        self.loop = loop = self._loop(prepared, outside)
        if self.turn.purpose == "compaction":
            await self._shorten(loop)
            return
        while True:
            ending = await self._play_once(loop.play())
            match ending:
                case Failed():
                    await endings.fail(self, ending.code, ending.details, ending.source)
                    return
                case Paused():
                    await pausing.pause(self, ending)
                    return
                case Answered():
                    if await endings.succeed(self, ending):
                        return
                case unreachable:
                    assert_never(unreachable)

    def _begins_at_once(self) -> bool:
        """Nothing has to be read or written: the request goes out before anybody else has his turn on the loop."""
        prepared = self._prepared
        if prepared is None or prepared.taken:
            return False
        return not prepared.mended.finished and not prepared.mended.results

    async def _begin(self) -> Prepared:
        """What waited has its place and is told of, whatever comes between."""
        prepared = self._prepared
        if prepared is None:
            prepared = await retried(prepare, self.turn)
        self.earlier = prepared.earlier
        self.recorder.model = prepared.chain[0].name
        self.recorder.calls.begun = prepared.calls_begun
        self.approved.add(prepared.mended.approved)
        self.approved.add(prepared.mended.begun, begun=True)
        await self._announce(prepared)
        return prepared

    async def _shorten(self, loop: Loop) -> None:
        """What a turn without a message is for (A17.6)."""
        if loop.checks_first_call and not await loop.can_pay():
            await endings.fail(self, "limit_reached")
            return
        ending = await self._play_once(loop.shortening.alone(loop.messages, self.turn.focus))
        if isinstance(ending, Failed):
            await endings.fail(self, ending.code, ending.details)
        else:
            await endings.succeed(self, Answered())

    async def _play_once(self, played: AsyncGenerator[Produced, None]) -> Ending:
        async with aclosing(played) as parts:
            async for part in parts:
                if isinstance(part, Answered | Failed | Paused):
                    return part
                self.progressed_at = self.told_at = time.monotonic()
                if self.recorder.is_instant(part):
                    await self.recorder.record(part)
                else:
                    await uncut(self._record(part))
        raise AssertionError("the loop ended without saying how")

    async def _record(self, part: Produced) -> None:
        await self.recorder.record(part)
        if self.approved and isinstance(part, ResultMade):
            await self.approved.finish(part.outcome)

    def _loop(self, prepared: Prepared, outside: Outside) -> Loop:
        mended = prepared.mended
        entry = prepared.chain[0]
        continuing = None
        if mended.continuing is not None:
            self.recorder.resume(row_uuid(mended.continuing), mended.continuing.content)
            continuing = Continuing(row_id=row_uuid(mended.continuing), length=len(mended.continuing.content))
        toolbox = TurnToolbox(
            context.current(), outside.tools, starting=self.approved.start, checking=self.approved.check
        )
        build = prompt.build if self.turn.purpose == "reply" else prompt.conversation_of
        messages = list(
            build(mended.rows, turn_id=str(self.turn.turn_id), entry=entry, images=prepared.images)
        )
        call_id, clock = partial(usage.call_id, self.turn.turn_id), SystemClock()
        suffix = suffix_text(self.turn.shaping, mcp_instructions=outside.instructions)
        self._look_for_a_break(entry, suffix, toolbox)
        return Loop(
            system=prompt.system_text(),
            checks_first_call=self.turn.limit_may_be_used_up,
            suffix=suffix,
            messages=messages,
            chain=prepared.chain,
            ports=Ports(
                provider=provider_for,
                toolbox=toolbox,
                approvals=TurnApprovals(self.recorder, context.current(), toolbox.get, self.approved),
                follow_ups=taking.Boundary(self.turn, self.recorder, prepared.chain),
                clock=clock,
                budget=TurnBudget(self.turn, self.recorder),
                compactor=TurnCompactor(
                    self.turn,
                    provider=provider_for,
                    call_id=call_id,
                    clock=clock,
                    images=prepared.images,
                ),
                call_id=call_id,
                learned=TurnLessons(self.services),
                health=TurnHealth(self.services),
                credential=_credential_now,
            ),
            fullness=remembered(self.turn.context, mended.rows),
            limits=Limits.of(settings),
            retrying=Policy.of(settings),
            thinking_tokens=settings.THINKING_TOKENS if self.turn.mode != "fast" else 0,
            first_call_number=self.turn.calls + 1,
            first_round=self.earlier.rounds + 1,
            tokens_before=self.earlier.tokens,
            generation_seconds_before=self.earlier.generation_seconds,
            cut_texts=self.earlier.cut_texts,
            carried=prepared.carried,
            elapsed_seconds=self.turn.running_seconds,
            pending_calls=mended.pending_calls,
            pending_notes=mended.notes,
            continuing=continuing,
            resumes_text=messages[-1:] == [conversation.interrupted_note()],
        )

    def _look_for_a_break(self, entry: Entry, suffix: str, toolbox: TurnToolbox) -> None:
        """Whether the first request can begin as the session's last one did (A15.9)."""
        self.shape = prefixes.shape_of(suffix, toolbox.specifications())
        if not self.turn.resumed:
            prefixes.compare(self.turn.session_id, self.turn.context, model=entry.name, shape=self.shape)

    async def _announce(self, prepared: Prepared) -> None:
        """The start, what joined it, and what an earlier run left to be mended."""
        publish = self.recorder.publish
        if prepared.taken:
            await taking.tell(self.turn, self.recorder, prepared.taken)
        publish(
            TurnStarted(
                model=prepared.chain[0].name,
                tier=self.turn.tier or "standard",
                mode=self.turn.mode,
                resumed=self.turn.resumed,
                run_ids=self.turn.run_ids,
            )
        )
        for row in prepared.mended.finished:
            await self._finish_row(row)
        for result in prepared.mended.results:
            await self._record(result)

    async def _finish_row(self, row: Row) -> None:
        self.recorder.resume(row_uuid(row), row.content)
        kind = ReasoningEnded if row.kind == "reasoning" else TextEnded
        await self.recorder.record(kind(block_id=row.id, row_id=row.id))

    async def break_off(self) -> None:
        """Something of ours failed: the turn still gets its one ending (T5.4)."""
        with context.bound(self._context()):
            await interruptions.break_off(self)


async def _credential_now(entry: Entry) -> str:
    return await in_thread(offering.credential_of, entry)
