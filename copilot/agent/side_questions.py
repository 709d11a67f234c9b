"""Answer side questions from the session's history, without tools or rows, in an event log of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from uuid import UUID, uuid4

import structlog
from django.conf import settings

from billing.errors import LimitReached
from billing.selectors import plan_status
from billing.usage import limit_checks
from config.core.db import run_in_thread
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent import model_context
from copilot.agent.fallback import MODEL_FAILURES, FallbackChain, RequestNeeds
from copilot.agent.guards import RoundState
from copilot.agent.model_context import rebuild_conversation
from copilot.agent.model_stream import HaltStep, ModelAttempt, ModelStep, choose_next_step
from copilot.agent.outputs import LoopOutput, ModelCallEnded, ModelCallStarted
from copilot.agent.retry_policy import RetryBudget, RetryPolicy
from copilot.agent.token_meters import ModelCallMeter, count_request_characters, estimate_tokens
from copilot.agent.usage import build_usage_record, record_usage
from copilot.chat import message_history, model_calls
from copilot.chat.message_rows import MessageRow
from copilot.chat.notices import NOTICES
from copilot.providers import catalogue_store
from copilot.providers.base import CatalogueEntry, ModelMessage, ModelRequest, ProviderFailure, UserMessage
from copilot.providers.breakers import BREAKERS
from copilot.providers.clients import get_provider
from copilot.realtime import event_log, side_question_state
from copilot.realtime.events import Event, SideQuestionEnded, SideQuestionExtended, TextExtended
from copilot.realtime.side_question_state import PendingSideQuestion

log = structlog.get_logger(__name__)

ANSWER_TIMEOUT_SECONDS = 180.0
STOP_CHECK_SECONDS = 0.4  # how soon a stop is noticed
PUBLISH_INTERVAL_SECONDS = 0.1  # deltas within it are published together
MAX_TOOL_RESULT_CHARACTERS = 2_000  # of a tool's result in the context


@dataclass(kw_only=True)
class _SideAnswer:
    """The answer so far, published in pieces."""

    side_id: str
    text: str = ""
    published: int = 0  # characters
    published_at: float = 0.0  # long ago, so that the first text is published at once
    publish_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # keeps the pieces in order

    async def extend(self, delta: str) -> None:
        self.text += delta
        if time.monotonic() - self.published_at >= PUBLISH_INTERVAL_SECONDS:
            await self.publish_pending()

    async def publish_pending(self) -> None:
        async with self.publish_lock:
            if len(self.text) > self.published:
                offset, self.published, self.published_at = self.published, len(self.text), time.monotonic()
                await self.publish(SideQuestionExtended(offset=offset, delta=self.text[offset:]))

    async def publish(self, event: Event) -> None:
        try:
            await run_in_thread(event_log.append_events, self.side_id, [(event, None)])
        except REDIS_OUTAGE_ERRORS:
            log.warning("side_question_log_unreachable", side_id=self.side_id)


async def answer_side_question(session_id: UUID, side_id: str) -> None:
    pending = await run_in_thread(side_question_state.get_pending_side_question, str(session_id), side_id)
    if pending is None:
        return
    answer = _SideAnswer(side_id=side_id)
    streaming = asyncio.ensure_future(_stream_answer(session_id, pending, answer))
    try:
        await _wait_until_done(streaming, str(session_id), answer)
        await answer.publish(_build_ended_event(streaming, answer))
    finally:
        streaming.cancel()
        await run_in_thread(side_question_state.release_side_question, str(session_id), side_id)
        await run_in_thread(limit_checks.release_turn_hold, pending.user_id, side_id)


async def _wait_until_done(streaming: asyncio.Future[None], session_id: str, answer: _SideAnswer) -> None:
    """Wait for the answer, publishing what has arrived. A lost claim means a stop; an outage does not."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_SECONDS
    while True:
        await asyncio.wait({streaming}, timeout=STOP_CHECK_SECONDS)
        if streaming.done():
            return
        await answer.publish_pending()
        try:
            kept = await side_question_state.renew_side_question(session_id, answer.side_id)
        except REDIS_OUTAGE_ERRORS:
            kept = True
        if not kept or time.monotonic() > deadline:
            streaming.cancel()


def _build_ended_event(streaming: asyncio.Future[None], answer: _SideAnswer) -> SideQuestionEnded:
    if streaming.cancelled():
        return SideQuestionEnded(outcome="stopped", text=answer.text)
    match streaming.exception():
        case None:
            return SideQuestionEnded(outcome="answered", text=answer.text)
        case ProviderFailure() as failure:
            label = NOTICES[failure.code].label
            return SideQuestionEnded(outcome="failed", text=answer.text, code=failure.code, label=label)
        case problem:
            log.error("side_question_failed", side_id=answer.side_id, exc_info=problem)
            return SideQuestionEnded(
                outcome="failed", text=answer.text, code="unknown", label=NOTICES["unknown"].label
            )


async def _stream_answer(session_id: UUID, pending: PendingSideQuestion, answer: _SideAnswer) -> None:
    rows = await run_in_thread(message_history.list_rows_for_model, session_id)
    chain = await run_in_thread(catalogue_store.resolve_chain, "", "")
    needs = RequestNeeds(
        tools=False,
        prompt_tokens=estimate_tokens(count_request_characters(_build_request(chain[0], rows, pending))),
    )
    attempts = _SideRetries(chain, needs)
    while True:
        attempts.retries.count_request(attempts.entry.name)
        try:
            await _try_model(attempts.entry, rows, session_id, pending, answer)
        except ProviderFailure as failure:
            may_retry = not answer.text and await run_in_thread(
                _can_spend, pending.user_id
            )  # published text stays
            if not may_retry or not await attempts.wait_to_retry(failure):
                await _count_failure(attempts.entry, failure)
                if not may_retry or not attempts.fall_back(failure):
                    raise
        else:
            return


class _SideRetries:
    """Choose the model to ask, and what to do when it fails."""

    def __init__(self, chain: Sequence[CatalogueEntry], needs: RequestNeeds) -> None:
        self.retries = RetryBudget(policy=RetryPolicy.from_settings(settings))
        self._fallback = FallbackChain(chain, BREAKERS.open_breaker_code)
        self._needs = needs
        self._deadline = time.monotonic() + ANSWER_TIMEOUT_SECONDS
        self._renewed_keys: set[str] = set()  # models whose credential was read again after a refusal
        is_open = BREAKERS.open_breaker_code(chain[0]) is not None
        self.entry = (self._fallback.choose_instead_of_first(needs) if is_open else None) or chain[0]

    async def wait_to_retry(self, failure: ProviderFailure) -> bool:
        """Wait, or find another credential; return whether the same model may be asked again."""
        left = self._deadline - time.monotonic()
        wait = self.retries.next_wait(failure, model=self.entry.name, shown=False, seconds_left=left)
        if wait is not None:
            await asyncio.sleep(wait.delay_seconds)
            return True
        return failure.code == "auth_failed" and await self._renew_credential()

    async def _renew_credential(self) -> bool:
        if self.entry.name in self._renewed_keys:
            return False
        self._renewed_keys.add(self.entry.name)
        credential = await run_in_thread(catalogue_store.read_credential, self.entry)
        renewed = credential != self.entry.credential
        self.entry = replace(self.entry, credential=credential)
        return renewed

    def fall_back(self, failure: ProviderFailure) -> bool:
        following = self._fallback.choose_next(failure, self.entry, self._needs)
        if following is None:
            return False
        log.warning(
            "side_question_fallback", model=self.entry.name, code=failure.code, next_model=following.name
        )
        self.entry = following
        return True


def _can_spend(user_id: int) -> bool:
    """Check the limit before each call except the first, which admission has checked."""
    try:
        if plan_status.get_plan_terms(user_id).limit_binds_running_turns:
            limit_checks.check_limits(user_id)
    except LimitReached:
        return False
    return True


async def _count_failure(entry: CatalogueEntry, failure: ProviderFailure) -> None:
    if settings.MODEL_BREAKER_FAILURES and failure.code in MODEL_FAILURES:
        await run_in_thread(catalogue_store.count_model_failure, entry, failure.code)


@dataclass(kw_only=True)
class _SideCall:
    """Take the output of one model call: publish its text and keep its end."""

    session_id: UUID
    answer: _SideAnswer
    ended: ModelCallEnded | None = None

    async def emit(self, part: LoopOutput) -> None:
        if isinstance(part, TextExtended):
            await self.answer.extend(part.delta)
        elif isinstance(part, ModelCallStarted):
            entry = part.entry
            await run_in_thread(
                model_calls.start_side_question_call, part.id, self.session_id, entry.provider, entry.model
            )
        elif isinstance(part, ModelCallEnded):
            self.ended = part


async def _try_model(
    entry: CatalogueEntry,
    rows: list[MessageRow],
    session_id: UUID,
    pending: PendingSideQuestion,
    answer: _SideAnswer,
) -> None:
    request = _build_request(entry, rows, pending)
    meter = ModelCallMeter(request, call_id=uuid4(), number=0, now=time.monotonic)
    side_call = _SideCall(session_id=session_id, answer=answer)
    attempt = ModelAttempt(request, output=side_call, step=ModelStep(round=1), meter=meter)
    try:
        await attempt.stream(get_provider)
        await answer.publish_pending()
    finally:
        if (call := side_call.ended or meter.unrecorded_end()) is not None:
            await asyncio.shield(_record_call(call, session_id, pending.user_id))
    if attempt.reply is None:
        raise attempt.failure or ProviderFailure("unknown")
    step = choose_next_step(attempt.reply, RoundState())
    if isinstance(step, HaltStep) and step.code != "round_limit":
        raise ProviderFailure(step.code)
    if not answer.text:
        raise ProviderFailure("no_response")


async def _record_call(call: ModelCallEnded, session_id: UUID, user_id: int) -> None:
    usage = build_usage_record(
        call, turn_id=None, session_id=session_id, user_id=user_id, purpose=model_calls.SIDE_QUESTION_PURPOSE
    )
    await record_usage(usage)


def _build_request(
    entry: CatalogueEntry, rows: list[MessageRow], pending: PendingSideQuestion
) -> ModelRequest:
    return ModelRequest(
        entry=entry, system=model_context.read_system_prompt(), messages=_build_messages(rows, pending, entry)
    )


def _build_messages(
    rows: Iterable[MessageRow], pending: PendingSideQuestion, entry: CatalogueEntry
) -> tuple[ModelMessage, ...]:
    messages = rebuild_conversation(
        _rows_as_text(rows), turn_id="", entry=entry, images=model_context.NO_IMAGES
    )
    if messages and not isinstance(messages[0], UserMessage):
        messages.insert(0, model_context.build_note(model_context.ASSISTANT_FIRST_NOTE))
    question = UserMessage(
        text=f"{model_context.build_note(_read_instructions()).text}\n\n{pending.question}"
    )
    model_context.append_message(messages, question)
    return tuple(messages)


def _rows_as_text(rows: Iterable[MessageRow]) -> Iterable[MessageRow]:
    for row in rows:
        if row.kind == "tool_result":
            text = f"A tool, {row.data.get('tool')}, answered: {row.content[:MAX_TOOL_RESULT_CHARACTERS]}"
            yield replace(row, kind="note", content=text, call_id=None, data={})
        elif row.kind not in ("tool_call", "reasoning"):
            yield replace(row, replay=())


@cache
def _read_instructions() -> str:
    return (model_context.PROMPTS_DIRECTORY / "side.md").read_text(encoding="utf-8").strip()
