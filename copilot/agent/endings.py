"""End, pause or interrupt a turn: decide it in Postgres, publish it, then release the session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal, TypeVar
from uuid import uuid4

import structlog
from django.conf import settings

from config.core.batching import run_shielded
from config.core.db import run_in_thread, run_in_thread_with_retry
from config.core.errors import FenceLost, TurnConflict
from copilot import signals
from copilot.agent import queued_messages, titles
from copilot.agent.budget import can_extend_turn
from copilot.agent.loop import AgentLoop
from copilot.agent.outputs import ApprovalNeeded, LoopAnswered, LoopPaused, ToolCallAdded, ToolResultAdded
from copilot.agent.recorder import TurnRecorder
from copilot.agent.resume import close_unfinished_work
from copilot.agent.services import ProcessServices
from copilot.chat import announcements, approvals, model_calls, questions, turn_transitions, turns
from copilot.chat import selectors as chat_selectors
from copilot.chat import serializers as chat_serializers
from copilot.chat.approvals import ApprovalCandidate
from copilot.chat.next_turn import start_kept_turn
from copilot.chat.notices import NO_SOURCE, FailureSource, LimitCode
from copilot.chat.turn_transitions import EndedTurn
from copilot.chat.turns import ClaimedTurn
from copilot.models import Turn
from copilot.realtime import lease
from copilot.realtime.events import (
    ApprovalDecided,
    ApprovalRequested,
    QuestionClosed,
    TurnCancelled,
    TurnEnding,
    TurnFailed,
    TurnPaused,
    TurnSucceeded,
    TurnSummary,
)
from copilot.realtime.lease import KEEP_WHOLE_QUEUE, SessionRelease
from copilot.realtime.payloads import ApprovalPayload, ContextPayload, ContextUsage
from copilot.tasks import BackgroundJob, enqueue_background_job, wake_worker
from copilot.tools.calls import STOPPED_MESSAGE, make_error_outcome


def requeue_turn(turn: ClaimedTurn, *, lost: bool) -> None:
    """Give the turn to another worker, under a higher fence."""
    requeued = turn_transitions.requeue_turn(turn.turn_id, turn.fence, lost=lost)
    if requeued is not None:
        lease.take_over_lease(
            str(turn.session_id), turn_id=str(turn.turn_id), token=str(turn.token), fence=requeued.fence
        )
        wake_worker(turn.turn_id)


log = structlog.get_logger(__name__)

FollowUpJob = BackgroundJob | Literal["title"]
Interruption = Literal["stop", "worker_shutdown", "outage", "lost", "idle_timeout", "time_limit"]


class RunState:
    """Hold one run of a turn. A takeover, a hand-over or the end of a pause creates another."""

    def __init__(self, turn: ClaimedTurn, services: ProcessServices) -> None:
        self.turn = turn
        self.services = services
        self.outbox = services.publisher.create_outbox(
            session_id=str(turn.session_id), turn_id=str(turn.turn_id), user_id=turn.user_id, fence=turn.fence
        )
        self.recorder = TurnRecorder(turn, services, self.outbox)
        self.earlier = model_calls.EarlierUsage()  # of the turn's earlier runs
        self.loop: AgentLoop | None = None
        self.prompt_digest = ""  # of the prompt prefix that its requests share
        self.interruption: Interruption | None = "stop" if turn.stopped else None
        self.interrupted_at: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_deciding = False  # a decision in Postgres is under way and may not be cancelled
        self.is_over = False
        self.is_closed = False  # the turn ended or paused here, and nothing is held for it any more

    def mark_closed(self) -> None:
        self.is_over = self.is_closed = True

    def abandon(self) -> None:
        log.warning("turn_lost", turn_id=str(self.turn.turn_id), fence=self.turn.fence)
        self.recorder.abandon()


def choose_follow_up_jobs(ended: EndedTurn, *, full: bool) -> Iterator[FollowUpJob]:
    """Choose follow-up jobs from what the ending's own statement returned, without another query.

    A sub-session is listed by its prompt, so that no model is paid for a title.
    """
    if not ended.child and titles.is_title_due(ended.title, ended.title_origin):
        yield "title"
    if full:
        yield "compaction"
    if ended.goal_state == "active":
        yield "goal"


# --- Endings ---

T = TypeVar("T")


async def end_succeeded(run: RunState, answered: LoopAnswered) -> bool:
    """End as succeeded; return False when queued messages continue this turn instead."""
    replies = run.turn.purpose == "reply"
    may_continue = (
        replies and run.loop is not None and run.loop.can_start_round and answered.limit_code is None
    )
    summary = build_turn_summary(run)  # shared by row and event, so that live and reloaded pages agree
    try:
        ended = await _end_turn(
            run,
            turns.SUCCEEDED,
            limit_code=answered.limit_code or "",
            unless_pending=may_continue,
            summary=summary,
        )
    except TurnConflict:
        if not may_continue:
            raise FenceLost(f"turn {run.turn.turn_id} was ended by another process") from None
        if await _can_continue(run) and await run_shielded(_take_queued(run)):
            return False
        ended = await _end_or_lose_fence(run, turns.SUCCEEDED, summary=summary)
    event = TurnSucceeded(
        run_ids=ended.run_ids,
        summary=summary,
        limit_code=answered.limit_code,
        context=_build_context_view(run),
    )
    await _publish_ending(run, event, ended, keep_through=None if replies else run.turn.accepted_through)
    full = run.loop is not None and run.loop.compaction.is_due()
    for job in choose_follow_up_jobs(ended, full=full) if replies else ():
        _start_job(run, job)
    return True


def _start_job(run: RunState, job: FollowUpJob) -> None:
    """Name the session on this event loop: another process and connection cost three times as much."""
    turn_id = run.turn.turn_id
    if job == "title":
        run.services.run_until_shutdown(titles.name_session(turn_id))
    else:
        run.services.run_in_background(run_in_thread(enqueue_background_job, job, turn_id))


async def _can_continue(run: RunState) -> bool:
    """Check money. A spent budget is this turn's; queued messages get a turn and budget of their own."""
    paid = run.loop is not None and await run.loop.can_pay()
    return paid and await run_in_thread(can_extend_turn, run.turn)


async def _take_queued(run: RunState) -> bool:
    taken = await run_in_thread(queued_messages.take_at_turn_end, run.turn)
    if not taken:
        return False
    await queued_messages.publish_taken(run.turn, run.recorder, taken)
    assert run.loop is not None
    run.loop.add_follow_ups(
        await run_in_thread(queued_messages.load_user_messages, run.turn, taken, run.loop.chain)
    )
    return True


async def end_failed(run: RunState, code: str, details: str = "", source: FailureSource = NO_SOURCE) -> None:
    notice_id = await run.recorder.post_notice(code, details, source=source)
    await _close_requests(run, by="automatic")
    ended = await _end_or_lose_fence(run, turns.FAILED, failure_code=code)
    event = TurnFailed(
        run_ids=ended.run_ids, code=code, notice_id=str(notice_id), context=_build_context_view(run)
    )
    await _publish_ending(run, event, ended, keep_through=KEEP_WHOLE_QUEUE)


async def end_at_limit(run: RunState, code: LimitCode) -> None:
    """End at a limit inside a round: as answered if the model said something, otherwise as failed."""
    if run.loop is None or not run.loop.has_spoken:
        await end_failed(run, code)
        return
    await run.recorder.post_notice(code)
    await _close_requests(run, by="automatic")
    await end_succeeded(run, LoopAnswered(limit_code=code))


async def end_stopped(run: RunState) -> None:
    """End as cancelled by its owner. Messages queued before the stop stay in the queue."""
    await _close_requests(run, by="user")
    await run.recorder.post_notice("stopped")
    ended = await _end_or_lose_fence(run, turns.CANCELLED, reason="user")
    keep_through = KEEP_WHOLE_QUEUE if ended.stop_through is None else ended.stop_through
    event = TurnCancelled(run_ids=ended.run_ids, reason=ended.cancel_reason, context=_build_context_view(run))
    await _publish_ending(run, event, ended, keep_through=keep_through)


async def _close_requests(run: RunState, by: Literal["user", "automatic"]) -> None:
    for question_id in await run_in_thread(questions.close_questions_of_turn, run.turn.turn_id, "cancelled"):
        run.recorder.publish(QuestionClosed(question_id=str(question_id), outcome="cancelled"))
    if run.recorder.approved_calls or run.turn.resumed:
        for row in await run_in_thread(approvals.close_approvals, run.turn.turn_id, "cancelled"):
            run.recorder.publish(ApprovalDecided(approval_id=str(row.pk), state="cancelled", by=by))


# --- The update of the turn ---


async def _end_or_lose_fence(
    run: RunState,
    to: Turn.Status,
    *,
    failure_code: str = "",
    reason: str = "",
    summary: TurnSummary | None = None,
) -> EndedTurn:
    try:
        return await _end_turn(run, to, failure_code=failure_code, reason=reason, summary=summary)
    except TurnConflict as conflict:
        raise FenceLost(f"turn {run.turn.turn_id} was ended by another process") from conflict


async def _end_turn(
    run: RunState,
    to: Turn.Status,
    *,
    failure_code: str = "",
    limit_code: str = "",
    reason: str = "",
    unless_pending: bool = False,
    summary: TurnSummary | None = None,
) -> EndedTurn:
    turn_id, fence = run.turn.turn_id, run.turn.fence
    summary = summary or build_turn_summary(run)
    context = _context_use(run)
    attempts = count(1)

    def end(_: None) -> EndedTurn:
        number = next(attempts)
        try:
            return turn_transitions.end_turn(
                turn_id,
                fence,
                to,
                failure_code=failure_code,
                limit_code=limit_code,
                reason=reason,
                summary=summary,
                context=context,
                unless_pending=unless_pending,
                send_signal=False,
            )
        except TurnConflict:  # the first try may have been committed before the connection broke
            ended = turn_transitions.find_own_ending(turn_id, fence, to) if number > 1 else None
            if ended is None:
                raise
            return ended

    ended = await run_decision(run, end)
    run.mark_closed()
    return ended


async def run_decision(run: RunState, act: Callable[[None], T]) -> T:
    """Run a change of the turn's status that no interruption may cancel.

    If the change fails and an interruption arrived meanwhile, raise that instead.
    """
    interruption, run.is_deciding = run.interruption, True
    try:
        return await run_in_thread_with_retry(act, None)
    except TurnConflict:
        if run.interruption != interruption and asyncio.current_task() is run.task:
            raise asyncio.CancelledError from None  # the interruption had to wait until now
        raise
    finally:
        run.is_deciding = False


async def _publish_ending(
    run: RunState, event: TurnEnding, ended: EndedTurn, *, keep_through: int | None
) -> None:
    await run.recorder.model_calls.wait_briefly()
    run.outbox.fence = None  # Postgres has decided, so no fence in Redis may refuse the event
    run.recorder.publish(event)
    for session_event in ended.build_session_events():
        run.recorder.publish(session_event)
    next_turn, next_token = uuid4(), uuid4()
    release = SessionRelease(
        session_id=str(run.turn.session_id),
        token=str(run.turn.token),
        keep_through=keep_through,
        next_turn_id=str(next_turn),
        next_token=str(next_token),
    )
    released = await run.services.publisher.publish_and_release(run.outbox, release)
    if not released.remembered:
        await run_in_thread(announcements.mark_unpublished, run.turn.session_id)  # the sweep publishes it
    if released.verdict == "kept":
        await run_in_thread(start_kept_turn, run.turn.session_id, next_turn, next_token, keep_through)
    if signals.concerns_other_apps(run.turn.origin):
        run.services.run_in_background(
            run_in_thread(signals.send_turn_signal, signals.turn_ended, run.turn.turn_id, run.turn.origin)
        )


# --- Figures ---


def _context_use(run: RunState) -> ContextUsage | None:
    """Return the context usage and prompt digest for the session's next turn; None if the loop never ran."""
    if run.loop is None:
        return None
    use = run.loop.context_use(through=run.recorder.last_sequence)
    return replace(use, model=run.loop.client.entry.name, shape=run.prompt_digest)


def _build_context_view(run: RunState) -> ContextPayload | None:
    use = _context_use(run)
    return None if use is None else use.to_payload()


def build_turn_summary(run: RunState) -> TurnSummary:
    loop = run.loop  # None: the loop did not run this time
    tokens = loop.client.tokens if loop else run.earlier.tokens
    seconds = loop.client.generation_seconds if loop else run.earlier.generation_seconds
    return TurnSummary(
        duration_ms=_since_accepted(run, datetime.now(UTC)),
        first_token_ms=_first_token_ms(run),
        tokens_per_second=round(tokens.output / seconds, 1) if seconds > 0 else None,
        rounds=loop.rounds if loop else run.earlier.rounds,
        tokens=tokens,
        model=loop.client.entry.name if loop else run.recorder.model,
    )


def _first_token_ms(run: RunState) -> int | None:
    if (first := run.earlier.first_token_at) is not None:
        return _since_accepted(run, first)
    if run.loop is None or run.loop.client.first_token_at is None:
        return None
    ago = timedelta(seconds=time.monotonic() - run.loop.client.first_token_at)
    return _since_accepted(run, datetime.now(UTC) - ago)


def _since_accepted(run: RunState, moment: datetime) -> int:
    return int((moment - run.turn.accepted_at).total_seconds() * 1000)


# --- Pausing ---


async def pause_turn(run: RunState, paused: LoopPaused) -> None:
    """Store the approval requests and pause the turn; a stop that came before takes precedence."""
    try:
        views = await _request_approvals(run, [_build_approval_request(need) for need in paused.calls])
    except TurnConflict as conflict:
        if not await run_in_thread(turns.list_still_running, [(run.turn.turn_id, run.turn.fence)]):
            raise FenceLost(f"turn {run.turn.turn_id} was ended by another process") from conflict
        run.interruption = "stop"
        raise asyncio.CancelledError from None
    run.mark_closed()
    await run.recorder.model_calls.wait_briefly()
    await _publish_pause(run, views)
    await run_in_thread(lease.release_lease, str(run.turn.session_id), str(run.turn.token))


async def _request_approvals(run: RunState, candidates: list[ApprovalCandidate]) -> list[ApprovalPayload]:
    turn_id, fence = run.turn.turn_id, run.turn.fence
    attempts = count(1)

    def request(_: None) -> list[ApprovalPayload]:
        number = next(attempts)
        try:
            rows = approvals.request_approvals(turn_id, fence, candidates)
        except TurnConflict:  # the first try may have been committed before the connection broke
            if number == 1 or not approvals.is_turn_paused(turn_id, fence):
                raise
            rows = approvals.list_requested_approvals(turn_id, fence)
        return chat_serializers.serialize_approvals(rows)

    return await run_decision(run, request)


async def _publish_pause(run: RunState, views: list[ApprovalPayload]) -> None:
    if views:
        run.recorder.publish(ApprovalRequested(approvals=views))
    run.recorder.publish(
        TurnPaused(approvals=[view.id for view in views], reason="approval" if views else "client_tool")
    )
    run.recorder.publish(
        await run_in_thread(chat_selectors.build_session_changed, run.turn.session_id, "waiting")
    )
    await run.services.publisher.flush(run.outbox)


def _build_approval_request(need: ApprovalNeeded) -> ApprovalCandidate:
    return ApprovalCandidate(
        call_id=need.call.call_id,
        tool=need.call.tool,
        arguments=need.call.arguments or {},
        reason=need.reason,
        block_reason=need.block_reason,
        manual_only=need.manual_only,
        billable=need.billable,
        estimate=need.estimate,
        pinned=need.pinned,
    )


# --- Interruptions ---

FINAL_WRITES_TIMEOUT_SECONDS = 5.0  # after that, the sweep ends the turn instead


async def handle_interruption(run: RunState) -> None:
    """Run the final writes in a task of their own, so that a second cancellation cannot interrupt them."""
    final = asyncio.ensure_future(_apply_interruption(run))
    await asyncio.wait([final], timeout=FINAL_WRITES_TIMEOUT_SECONDS)
    if not final.done():
        final.cancel()
        log.error("final_writes_timed_out", turn_id=str(run.turn.turn_id), interruption=run.interruption)
    elif (problem := final.exception()) is not None:
        if not isinstance(problem, FenceLost):
            raise problem
        run.abandon()


async def _apply_interruption(run: RunState) -> None:
    if run.interruption != "lost":
        await run.recorder.model_calls.withdraw_unsent()
    match run.interruption:
        case "stop":
            await _close_open_work(run, STOPPED_MESSAGE, cancelled=True)
            await end_stopped(run)
        case "idle_timeout":
            await _close_open_work(run, "Failed: no progress for too long.")
            await end_failed(run, "idle_timeout")
        case "time_limit":
            await _close_open_work(run, "Not finished: the turn reached its time limit.")
            await end_at_limit(run, "time_limit")
        case "worker_shutdown" | "outage":
            log.info("turn_handed_over", turn_id=str(run.turn.turn_id), reason=run.interruption)
            await _hand_over_turn(run)
        case "lost" | None:
            run.abandon()


async def end_after_error(run: RunState) -> None:
    """End the turn as failed after an internal error, and keep its output."""
    await run.recorder.model_calls.withdraw_unsent()
    await _close_open_work(run, "Failed before it finished.")
    await end_failed(run, "unknown")


async def _close_open_work(run: RunState, result: str, *, cancelled: bool = False) -> None:
    """Keep all output, and leave no block, call or step open."""
    loop = run.loop
    if loop is None:
        await _close_earlier_run(run, result, cancelled=cancelled)
        return
    if (block := loop.open_block) is not None:
        await run.recorder.record(block)
    for open_call in loop.open_calls:
        if not open_call.made:
            await run.recorder.record(ToolCallAdded(row_id=open_call.row_id, call=open_call.call))
        outcome = make_error_outcome(open_call.call, result, cancelled=cancelled)
        await run.recorder.record(ToolResultAdded(row_id=uuid4(), outcome=outcome))
    if (step := loop.open_step) is not None:
        run.recorder.publish(step)
    if (call := loop.unrecorded_call()) is not None:
        await run.recorder.record(call)


async def _close_earlier_run(run: RunState, result: str, *, cancelled: bool) -> None:
    turn = run.turn
    if turn.resumed:
        for event in await run_in_thread(
            close_unfinished_work,
            turn.session_id,
            turn.turn_id,
            result,
            fence=turn.fence,
            cancelled=cancelled,
        ):
            run.recorder.publish(event)


async def _hand_over_turn(run: RunState) -> None:
    """Checkpoint the turn and give it to another worker.

    Too many hand-overs count as a loss, and too many losses end the turn.
    """
    lost = run.turn.handovers >= turn_transitions.MAX_HANDOVERS
    if lost and run.turn.attempts >= settings.TURN_MAX_ATTEMPTS:
        await _close_open_work(
            run, "Interrupted, outcome unknown: too many workers were lost while this ran."
        )
        await end_failed(run, "worker_lost")
        return
    if run.loop is not None and (call := run.loop.unrecorded_call()) is not None:
        await run.recorder.record(call)
    await run.services.checkpoint_all()
    await run.services.publisher.flush(run.outbox)
    run.recorder.abandon()
    await run_in_thread(requeue_turn, run.turn, lost=lost)
