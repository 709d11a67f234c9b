"""Answers a question aside from the history as it stands: no tools, no rows, a stream of its own (A30.3)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from uuid import UUID, uuid4

from django.conf import settings

from billing.errors import LimitReached
from billing.selectors import plan_status
from billing.usage import limit_checks
from config.core.db import run_in_thread
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent import model_context
from copilot.agent.fallback import MODEL_FAILURES, FallbackChain, RequestNeeds
from copilot.agent.guards import RoundState
from copilot.agent.interfaces import aclosing_iterator
from copilot.agent.model_context import rebuild_conversation
from copilot.agent.model_stream import HaltStep, ModelAttempt, ModelStep, choose_next_step
from copilot.agent.outputs import ModelCallEnded, ModelCallStarted
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

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_SECONDS = 180.0
STOP_CHECK_SECONDS = 0.4  # how soon a stop is noticed
PUBLISH_INTERVAL_SECONDS = 0.1  # deltas that come closer are told together
MAX_TOOL_RESULT_CHARACTERS = 2_000  # of a tool's result; calls themselves need tools, which there are none of


@dataclass(kw_only=True)
class _SideAnswer:
    """What has come of it so far; told in pieces."""

    side_id: str
    text: str = ""
    told: int = 0
    told_at: float = 0.0  # the first words go out at once
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)  # pieces in their order

    async def extend(self, delta: str) -> None:
        self.text += delta
        if time.monotonic() - self.told_at >= PUBLISH_INTERVAL_SECONDS:
            await self.publish_pending()

    async def publish_pending(self) -> None:
        async with self.telling:
            if len(self.text) > self.told:
                offset, self.told, self.told_at = self.told, len(self.text), time.monotonic()
                await self.publish(SideQuestionExtended(offset=offset, delta=self.text[offset:]))

    async def publish(self, event: Event) -> None:
        try:
            await run_in_thread(event_log.append_events, self.side_id, [(event, None)])
        except REDIS_OUTAGE_ERRORS:
            log.warning("the log of a question aside is unreachable")


async def answer_side_question(session_id: UUID, side_id: str) -> None:
    """Until it is answered, fails, or is stopped; then the session may ask another."""
    asked = await run_in_thread(side_question_state.get_pending_side_question, str(session_id), side_id)
    if asked is None:
        return
    said = _SideAnswer(side_id=side_id)
    streaming = asyncio.ensure_future(_stream_answer(session_id, asked, said))
    try:
        await _wait_until_done(streaming, str(session_id), said)
        await said.publish(_build_ended_event(streaming, said))
    finally:
        streaming.cancel()
        await run_in_thread(side_question_state.release_side_question, str(session_id), side_id)
        await run_in_thread(limit_checks.release_turn_hold, asked.user_id, side_id)


async def _wait_until_done(streaming: asyncio.Future[None], session_id: str, said: _SideAnswer) -> None:
    """A stop is the loss of our place; a Redis that is away takes nobody's. A pause tells what waits."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_SECONDS
    while True:
        await asyncio.wait({streaming}, timeout=STOP_CHECK_SECONDS)
        if streaming.done():
            return
        await said.publish_pending()
        try:
            kept = await side_question_state.renew_side_question(session_id, said.side_id)
        except REDIS_OUTAGE_ERRORS:
            kept = True
        if not kept or time.monotonic() > deadline:
            streaming.cancel()


def _build_ended_event(streaming: asyncio.Future[None], said: _SideAnswer) -> SideQuestionEnded:
    if streaming.cancelled():
        return SideQuestionEnded(outcome="stopped", text=said.text)
    match streaming.exception():
        case None:
            return SideQuestionEnded(outcome="answered", text=said.text)
        case ProviderFailure() as failure:
            label = NOTICES[failure.code].label
            return SideQuestionEnded(outcome="failed", text=said.text, code=failure.code, label=label)
        case problem:
            log.error("a question aside broke", exc_info=problem)
            return SideQuestionEnded(
                outcome="failed", text=said.text, code="unknown", label=NOTICES["unknown"].label
            )


async def _stream_answer(session_id: UUID, asked: PendingSideQuestion, said: _SideAnswer) -> None:
    """The models of the standard tier, tried again as a turn would, until one has begun to answer (A7)."""
    rows = await run_in_thread(message_history.list_rows_for_model, session_id)
    chain = await run_in_thread(catalogue_store.resolve_chain, "", "")
    needs = RequestNeeds(
        tools=False,
        prompt_tokens=estimate_tokens(count_request_characters(_build_request(chain[0], rows, asked))),
    )
    trying = _SideRetries(chain, needs)
    while True:
        trying.retries.count_request(trying.entry.name)
        try:
            await _try_model(trying.entry, rows, session_id, asked, said)
        except ProviderFailure as failure:
            again = not said.text and await run_in_thread(
                _can_spend, asked.user_id
            )  # nothing told is taken back
            if not again or not await trying.wait_to_retry(failure):
                await _count_failure(trying.entry, failure)
                if not again or not trying.fall_back(failure):
                    raise
        else:
            return


class _SideRetries:
    """Which model is asked, and what may still be done when it fails."""

    def __init__(self, chain: Sequence[CatalogueEntry], needs: RequestNeeds) -> None:
        self.retries = RetryBudget(policy=RetryPolicy.from_settings(settings))
        self._fallback = FallbackChain(chain, BREAKERS.open_breaker_code)
        self._needs = needs
        self._deadline = time.monotonic() + ANSWER_TIMEOUT_SECONDS
        self._keys_read: set[str] = set()  # by model: anew, after a refusal
        tripped = BREAKERS.open_breaker_code(chain[0]) is not None
        self.entry = (self._fallback.choose_instead_of_first(needs) if tripped else None) or chain[0]

    async def wait_to_retry(self, failure: ProviderFailure) -> bool:
        """Whether the same model may be asked again; by then the wait is over, or another key was found (A7.1, A7.4)."""
        left = self._deadline - time.monotonic()
        wait = self.retries.next_wait(failure, model=self.entry.name, shown=False, seconds_left=left)
        if wait is not None:
            await asyncio.sleep(wait.delay_seconds)
            return True
        return failure.code == "auth_failed" and await self._renew_credential()

    async def _renew_credential(self) -> bool:
        if self.entry.name in self._keys_read:
            return False
        self._keys_read.add(self.entry.name)
        credential = await run_in_thread(catalogue_store.read_credential, self.entry)
        renewed = credential != self.entry.credential
        self.entry = replace(self.entry, credential=credential)
        return renewed

    def fall_back(self, failure: ProviderFailure) -> bool:
        """Whether another model goes on (A7.6)."""
        following = self._fallback.choose_next(failure, self.entry, self._needs)
        if following is None:
            return False
        log.warning("%s could not answer aside: %s", self.entry.name, failure.code)
        self.entry = following
        return True


def _can_spend(user_id: int) -> bool:
    """Asked before each call but the first, which the door has asked for (B6.10)."""
    try:
        if plan_status.get_plan_terms(user_id).limit_binds_running_turns:
            limit_checks.check_limits(user_id)
    except LimitReached:
        return False
    return True


async def _count_failure(entry: CatalogueEntry, failure: ProviderFailure) -> None:
    """So that the turns of every process hear of it (A7.7)."""
    if settings.MODEL_BREAKER_FAILURES and failure.code in MODEL_FAILURES:
        await run_in_thread(catalogue_store.count_model_failure, entry, failure.code)


async def _try_model(
    entry: CatalogueEntry,
    rows: list[MessageRow],
    session_id: UUID,
    asked: PendingSideQuestion,
    said: _SideAnswer,
) -> None:
    request = _build_request(entry, rows, asked)
    meter = ModelCallMeter(request, call_id=uuid4(), number=0, now=time.monotonic)
    attempt = ModelAttempt(request, step=ModelStep(round=1), meter=meter)
    ended: ModelCallEnded | None = None
    try:
        async with aclosing_iterator(attempt.stream(get_provider)) as parts:
            async for part in parts:
                if isinstance(part, TextExtended):
                    await said.extend(part.delta)
                elif isinstance(part, ModelCallStarted):
                    await run_in_thread(
                        model_calls.start_side_question_call, part.id, session_id, entry.provider, entry.model
                    )
                elif isinstance(part, ModelCallEnded):
                    ended = part
        await said.publish_pending()
    finally:
        if (call := ended or meter.unrecorded_end()) is not None:
            await asyncio.shield(_record_call(call, session_id, asked.user_id))
    if attempt.reply is None:
        raise attempt.failure or ProviderFailure("unknown")
    step = choose_next_step(attempt.reply, RoundState())
    if isinstance(step, HaltStep) and step.code != "round_limit":
        raise ProviderFailure(step.code)
    if not said.text:
        raise ProviderFailure("no_response")


async def _record_call(call: ModelCallEnded, session_id: UUID, user_id: int) -> None:
    """Paid for like any other (A19.1)."""
    spent = build_usage_record(
        call, turn_id=None, session_id=session_id, user_id=user_id, purpose=model_calls.SIDE_QUESTION_PURPOSE
    )
    await record_usage(spent)


def _build_request(entry: CatalogueEntry, rows: list[MessageRow], asked: PendingSideQuestion) -> ModelRequest:
    return ModelRequest(
        entry=entry, system=model_context.read_system_prompt(), messages=_build_messages(rows, asked, entry)
    )


def _build_messages(
    rows: Iterable[MessageRow], asked: PendingSideQuestion, entry: CatalogueEntry
) -> tuple[ModelMessage, ...]:
    messages = rebuild_conversation(
        _rows_as_text(rows), turn_id="", entry=entry, images=model_context.NO_IMAGES
    )
    if messages and not isinstance(messages[0], UserMessage):
        messages.insert(0, model_context.build_note(model_context.ASSISTANT_FIRST_NOTE))
    question = UserMessage(text=f"{model_context.build_note(_read_instructions()).text}\n\n{asked.question}")
    model_context.append_message(messages, question)
    return tuple(messages)


def _rows_as_text(rows: Iterable[MessageRow]) -> Iterable[MessageRow]:
    """The rows as words alone: what tools answered becomes notes, calls and thoughts are left out."""
    for row in rows:
        if row.kind == "tool_result":
            text = f"A tool, {row.data.get('tool')}, answered: {row.content[:MAX_TOOL_RESULT_CHARACTERS]}"
            yield replace(row, kind="note", content=text, call_id=None, data={})
        elif row.kind not in ("tool_call", "reasoning"):
            yield replace(row, replay=())


@cache
def _read_instructions() -> str:
    return (model_context.PROMPTS_DIRECTORY / "side.md").read_text(encoding="utf-8").strip()
