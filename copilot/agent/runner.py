"""Run one turn: prepare it, drive the loop, record and publish its output, and end, pause or interrupt it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import assert_never

from django.conf import settings

from config.core import trace_context
from config.core.batching import run_shielded
from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.errors import FenceLost
from copilot.agent import endings, model_context, queued_messages, system_prompt
from copilot.agent.budget import LimitUsage, TurnBudget
from copilot.agent.compaction import TurnCompactor
from copilot.agent.endings import Interruption, RunState
from copilot.agent.guards import TurnLimits
from copilot.agent.interfaces import LoopPorts, SystemClock
from copilot.agent.loop import AgentLoop, UnfinishedWork
from copilot.agent.model_client import ModelClient
from copilot.agent.model_stream import InterruptedText
from copilot.agent.outputs import LoopAnswered, LoopFailed, LoopPaused
from copilot.agent.preparation import PreparedTurn, prepare_turn
from copilot.agent.resume import parse_row_id
from copilot.agent.retry_policy import RetryPolicy
from copilot.agent.services import ProcessServices
from copilot.agent.system_prompt import build_session_prompt
from copilot.agent.token_meters import estimate_tokens, restore_window_meter
from copilot.agent.tool_approvals import TurnApprovalPolicy
from copilot.agent.toolbox import TurnToolbox, gather_mcp_tools
from copilot.chat import model_calls, turn_context
from copilot.chat.message_rows import MessageRow
from copilot.chat.turns import ClaimedTurn
from copilot.providers import catalogue_store
from copilot.providers.base import NO_PARAMETERS, CatalogueEntry, FailureCode
from copilot.providers.breakers import BREAKERS
from copilot.providers.clients import get_provider
from copilot.providers.learned_limits import LEARNED_LIMITS, LearnedLimits
from copilot.realtime.events import ReasoningEnded, TextEnded, TurnHeartbeat, TurnStarted, UsageMetered
from copilot.tools.base import McpToolset

RATE_WINDOW_SECONDS = 5.0  # how far back deltas count towards the rate
IDLE_REPORT_SECONDS = 1.0  # between two reports while nothing arrives


class LiveUsageMeter:
    """Measure the token rate of a running turn. A timer reads it, so that a delta only costs a counter."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()  # (time, characters generated so far)
        self._reported_at = float("-inf")

    def measure(
        self, client: ModelClient, now: float, *, limit_used_percent: float | None = None
    ) -> UsageMetered | None:
        """Return the figures, or None if they were reported recently and nothing has arrived since."""
        characters = client.characters
        grew = not self._samples or characters > self._samples[-1][1]
        self._samples.append((now, characters))
        while self._samples[0][0] < now - RATE_WINDOW_SECONDS:
            self._samples.popleft()
        if not grew and now - self._reported_at < IDLE_REPORT_SECONDS:
            return None
        self._reported_at = now
        return UsageMetered(
            tokens_per_second=self._rate(),
            context_used_percent=client.context_used_percent,
            tokens=replace(
                client.tokens,
                output=client.tokens.output + estimate_tokens(client.characters_under_way),
            ),
            estimated=True,
            limit_used_percent=limit_used_percent,
        )

    def _rate(self) -> float | None:
        (began, before), (now, after) = self._samples[0], self._samples[-1]
        return round(estimate_tokens(after - before) / (now - began), 1) if after > before else None


class TurnLearnedLimits:
    """Apply learned limits here at once; other processes see them at their next catalogue refresh."""

    def __init__(self, services: ProcessServices) -> None:
        self._services = services

    def recall(self, entry: CatalogueEntry) -> LearnedLimits:
        return LEARNED_LIMITS.recall(entry)

    def learn(self, entry: CatalogueEntry, lesson: LearnedLimits) -> None:
        LEARNED_LIMITS.learn(entry, lesson)
        self._services.run_in_background(run_in_thread(catalogue_store.store_learned_limits, entry, lesson))


class TurnModelHealth:
    """Report model failures to the breaker that all processes share, without delaying the turn."""

    def __init__(self, services: ProcessServices) -> None:
        self._services = services

    def open_breaker_code(self, entry: CatalogueEntry) -> FailureCode | None:
        return BREAKERS.open_breaker_code(entry)

    def report_failure(self, entry: CatalogueEntry, code: FailureCode) -> None:
        if settings.MODEL_BREAKER_FAILURES:
            self._services.run_in_background(run_in_thread(catalogue_store.count_model_failure, entry, code))


class TurnRunner(RunState):
    """Run a turn once. A takeover, a hand-over or an approval decision starts another run."""

    def __init__(
        self,
        turn: ClaimedTurn,
        services: ProcessServices,
        prepared: PreparedTurn | None = None,
        claim_confirmed: asyncio.Future[bool] | None = None,
    ) -> None:
        super().__init__(turn, services)
        self.recorder.claim_confirmed = claim_confirmed
        self._prepared = prepared
        self.began_at = time.monotonic()
        self._live_meter = LiveUsageMeter()
        self._limit_used = LimitUsage(turn, self.recorder, services)
        self._heartbeat_at = self.began_at

    # --- Called by the engine ---

    def interrupt(self, reason: Interruption) -> None:
        """End this run soon. The first reason counts, except that a lost fence overrides any other."""
        if self.is_over or (self.interruption is not None and reason != "lost"):
            return
        self.interruption = reason
        self.interrupted_at = time.monotonic()
        if self.task is not None and not self.is_deciding:
            self.task.cancel()

    def check_progress(self, now: float) -> None:
        """Publish a heartbeat in silence, and interrupt a turn that is silent or running for too long.

        The engine calls this every second.
        """
        if self.loop is None or self.is_over:
            return
        progressed_at = self.recorder.progressed_at
        if now - progressed_at > settings.STREAM_IDLE_SECONDS:
            self.interrupt("idle_timeout")
        elif self.loop.is_out_of_time:
            self.interrupt("time_limit")
        elif now - max(progressed_at, self._heartbeat_at) >= settings.HEARTBEAT_SECONDS:
            self._heartbeat_at = now
            self.recorder.publish(
                TurnHeartbeat(phase=self.loop.phase, elapsed_seconds=int(now - self.began_at))
            )

    def publish_live_usage(self, now: float) -> None:
        """Publish usage figures together with the next event. The engine calls this twice a second."""
        if self.loop is None or self.is_over:
            return
        used = self._limit_used.current_percent(now)
        if (figures := self._live_meter.measure(self.loop.client, now, limit_used_percent=used)) is not None:
            self.services.publisher.publish_with_next(self.outbox, figures)

    # --- The run ---

    async def run(self) -> None:
        """Run the turn to its one ending; after a hand-over or a lost fence, the next run ends it."""
        self.task = asyncio.current_task()
        with turn_context.bind_turn_context(self._context()), self._span():
            try:
                await self._run_turn()
            except asyncio.CancelledError:
                if self.interruption is None:
                    raise
                await endings.handle_interruption(self)
            except FenceLost:
                self.abandon()
            finally:
                self.is_over = True

    def _span(self) -> AbstractContextManager[trace_context.Span]:
        """Start a span in the trace of the turn's first message; a later run links to the run before it."""
        turn = self.turn
        return trace_context.start_span(
            "turn",
            parent=turn.inbound_context.traceparent,
            seed=f"{turn.turn_id}:{turn.fence}",
            follows=f"{turn.turn_id}:{turn.fence - 1}" if turn.resumed else "",
            turn_id=str(turn.turn_id),
            session_id=str(turn.session_id),
            fence=turn.fence,
            attempt=turn.attempts,
            origin=turn.origin,
        )

    def _context(self) -> turn_context.TurnContext:
        turn = self.turn
        return turn_context.TurnContext(
            user_id=turn.user_id,
            session_id=str(turn.session_id),
            turn_id=str(turn.turn_id),
            fence=turn.fence,
            origin=turn.origin,
            permissions=turn.permissions,
            channel=turn.channel,
            inbound_context=turn.inbound_context,
            deadline=datetime.now(UTC) + timedelta(seconds=settings.TURN_MAX_SECONDS - turn.running_seconds),
            timezone=turn.session_config.timezone,
        )

    async def _run_turn(self) -> None:
        if self.interruption is not None and self._prepared is None:
            raise asyncio.CancelledError
        prepared = await (self._begin() if self._can_begin_without_io() else run_shielded(self._begin()))
        if self.interruption is not None:
            raise asyncio.CancelledError
        if prepared.resume_plan.answered:
            await endings.end_succeeded(self, LoopAnswered())
            return
        mcp_tools = await gather_mcp_tools(prepared.mcp_servers, self.recorder)
        self.loop = loop = self._build_loop(prepared, mcp_tools)
        if self.turn.purpose == "compaction":
            await self._compact(loop)
            return
        while True:
            match ending := await loop.run():
                case LoopFailed():
                    await endings.end_failed(self, ending.code, ending.details, ending.source)
                    return
                case LoopPaused():
                    await endings.pause_turn(self, ending)
                    return
                case LoopAnswered():
                    if await endings.end_succeeded(self, ending):
                        return
                case unreachable:
                    assert_never(unreachable)

    def _can_begin_without_io(self) -> bool:
        prepared = self._prepared
        if prepared is None or prepared.taken_messages:
            return False
        return not prepared.resume_plan.finished and not prepared.resume_plan.results

    async def _begin(self) -> PreparedTurn:
        prepared = self._prepared
        if prepared is None:
            prepared = await run_in_thread_with_retry(prepare_turn, self.turn)
        self.earlier = prepared.earlier
        self.recorder.model = prepared.chain[0].name
        self.recorder.model_calls.last_started_number = prepared.calls_begun
        self.recorder.approved_calls.add(prepared.resume_plan.approved)
        self.recorder.approved_calls.add(prepared.resume_plan.begun, begun=True)
        await self._publish_start(prepared)
        return prepared

    async def _compact(self, loop: AgentLoop) -> None:
        if loop.checks_first_call and not await loop.can_pay():
            await endings.end_failed(self, "limit_reached")
            return
        ending = await loop.compaction.compact_on_request(loop.messages, self.turn.focus)
        if isinstance(ending, LoopFailed):
            await endings.end_failed(self, ending.code, ending.details)
        else:
            await endings.end_succeeded(self, LoopAnswered())

    def _build_loop(self, prepared: PreparedTurn, mcp_tools: McpToolset) -> AgentLoop:
        plan = prepared.resume_plan
        entry = prepared.chain[0]
        toolbox = TurnToolbox(
            turn_context.get_turn_context(),
            mcp_tools.tools,
            starting=self.recorder.approved_calls.mark_started,
            checking=self.recorder.approved_calls.check_target,
        )
        build = (
            model_context.build_context if self.turn.purpose == "reply" else model_context.build_conversation
        )
        messages = list(build(plan.rows, turn_id=str(self.turn.turn_id), entry=entry, images=prepared.images))
        request = self.turn.inbound_context.api_request
        suffix = build_session_prompt(
            self.turn.session_config,
            request_instructions=request.instructions if request is not None else "",
            mcp_instructions=mcp_tools.instructions,
        )
        self._detect_cache_break(entry, suffix, toolbox)
        return AgentLoop(
            system=model_context.read_system_prompt(),
            checks_first_call=self.turn.limit_may_be_used_up,
            suffix=suffix,
            messages=messages,
            chain=prepared.chain,
            ports=self._build_ports(prepared, toolbox),
            window_meter=restore_window_meter(self.turn.context, plan.rows),
            limits=TurnLimits.from_settings(settings),
            retry_policy=RetryPolicy.from_settings(settings),
            thinking_tokens=settings.THINKING_TOKENS if self.turn.mode != "fast" else 0,
            prior_runs=prepared.prior_runs,
            parameters=request.parameters if request is not None else NO_PARAMETERS,
            unfinished=UnfinishedWork(
                calls=plan.pending_calls,
                notes=plan.notes,
                text=self._resume_interrupted_text(plan.interrupted_row),
                ends_with_text=messages[-1:] == [model_context.build_interrupted_note()],
            ),
        )

    def _build_ports(self, prepared: PreparedTurn, toolbox: TurnToolbox) -> LoopPorts:
        call_id, clock = partial(model_calls.make_call_id, self.turn.turn_id), SystemClock()
        return LoopPorts(
            output=self.recorder,
            provider=get_provider,
            toolbox=toolbox,
            approvals=TurnApprovalPolicy(self.recorder, turn_context.get_turn_context(), toolbox.get),
            follow_ups=queued_messages.TurnFollowUps(self.turn, self.recorder, prepared.chain),
            clock=clock,
            budget=TurnBudget(self.turn, self.recorder),
            compactor=TurnCompactor(
                self.turn, provider=get_provider, call_id=call_id, clock=clock, images=prepared.images
            ),
            call_id=call_id,
            learned=TurnLearnedLimits(self.services),
            health=TurnModelHealth(self.services),
            credential=_read_credential,
        )

    def _resume_interrupted_text(self, row: MessageRow | None) -> InterruptedText | None:
        if row is None:
            return None
        self.recorder.resume_row(parse_row_id(row), row.content)
        return InterruptedText(row_id=parse_row_id(row), length=len(row.content))

    def _detect_cache_break(self, entry: CatalogueEntry, suffix: str, toolbox: TurnToolbox) -> None:
        self.prompt_digest = system_prompt.digest_prompt_prefix(suffix, toolbox.specifications())
        if not self.turn.resumed:
            system_prompt.detect_cache_break(
                self.turn.session_id, self.turn.context, model=entry.name, shape=self.prompt_digest
            )

    async def _publish_start(self, prepared: PreparedTurn) -> None:
        publish = self.recorder.publish
        if prepared.taken_messages:
            await queued_messages.publish_taken(self.turn, self.recorder, prepared.taken_messages)
        publish(
            TurnStarted(
                model=prepared.chain[0].name,
                tier=self.turn.tier or "standard",
                mode=self.turn.mode,
                resumed=self.turn.resumed,
                run_ids=self.turn.run_ids,
            )
        )
        for row in prepared.resume_plan.finished:
            await self._finish_row(row)
        for result in prepared.resume_plan.results:
            await self.recorder.emit(result)

    async def _finish_row(self, row: MessageRow) -> None:
        self.recorder.resume_row(parse_row_id(row), row.content)
        kind = ReasoningEnded if row.kind == "reasoning" else TextEnded
        await self.recorder.record(kind(block_id=row.id, row_id=row.id))

    async def end_after_error(self) -> None:
        with turn_context.bind_turn_context(self._context()):
            await endings.end_after_error(self)


async def _read_credential(entry: CatalogueEntry) -> str:
    return await run_in_thread(catalogue_store.read_credential, entry)
