"""Ask a model a single question on behalf of a turn that has ended, and record its usage by purpose."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from config.core.db import run_in_thread
from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent.model_stream import ModelAttempt, ModelStep
from copilot.agent.outputs import LoopOutput, ModelCallEnded
from copilot.agent.token_meters import ModelCallMeter
from copilot.agent.usage import build_usage_record
from copilot.chat import model_calls
from copilot.models import Turn
from copilot.providers import catalogue_store
from copilot.providers.base import CatalogueEntry, ModelRequest, ProviderFailure, UserMessage
from copilot.providers.breakers import BREAKERS
from copilot.providers.clients import close_all_clients, get_provider
from copilot.realtime import event_log
from copilot.realtime.events import UsageRecorded

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class OneShotCause:
    """The ended turn that a question is asked for, and who pays."""

    turn_id: UUID
    session_id: UUID
    user_id: int
    purpose: str

    @classmethod
    def for_turn(cls, turn: Turn, purpose: str) -> OneShotCause:
        return cls(
            turn_id=turn.pk, session_id=turn.session_id, user_id=turn.session.owner_id, purpose=purpose
        )


@dataclass(frozen=True, kw_only=True)
class OneShotQuestion:
    system: str
    text: str
    max_tokens: int
    timeout_seconds: float
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True)
class OneShotReply:
    text: str
    unfinished: bool  # cut off by the output limit, or nothing but reasoning


def list_models_to_ask() -> tuple[CatalogueEntry, ...]:
    """List small models, then standard ones, without duplicates or the demo; open breakers come last."""
    chain = (*catalogue_store.find_chain("small"), *catalogue_store.find_chain("standard"))
    entries = [entry for entry in dict.fromkeys(chain) if not entry.demo]
    return tuple(sorted(entries, key=lambda entry: BREAKERS.open_breaker_code(entry) is not None))


async def ask_model(entry: CatalogueEntry, question: OneShotQuestion, cause: OneShotCause) -> OneShotReply:
    """Request one reply without tools or thinking, or raise ProviderFailure."""
    call_id = await run_in_thread(_start_call, entry, cause)
    attempt, output = _begin_attempt(entry, question, call_id)
    try:
        await _run_attempt(attempt, question.timeout_seconds)
    finally:  # a worker that shuts down cancels this, and what was used is paid for
        ended = output.ended or attempt.meter.unrecorded_end()
        await asyncio.shield(run_in_thread(_record_call, ended, cause))
    return _read_reply(attempt)


def ask_model_and_wait(entry: CatalogueEntry, question: OneShotQuestion, cause: OneShotCause) -> OneShotReply:
    """Like ask_model, for synchronous code. Connections belong to the event loop, which ends with the call."""
    attempt, output = _begin_attempt(entry, question, _start_call(entry, cause))
    asyncio.run(_run_attempt_and_close(attempt, question.timeout_seconds))
    _record_call(output.ended or attempt.meter.unrecorded_end(), cause)
    return _read_reply(attempt)


def _start_call(entry: CatalogueEntry, cause: OneShotCause) -> UUID:
    return model_calls.start_call_after_turn(cause.turn_id, cause.purpose, entry.provider, entry.model)


class _LastCall:
    """Keep only the end of the model call."""

    def __init__(self) -> None:
        self.ended: ModelCallEnded | None = None

    async def emit(self, part: LoopOutput) -> None:
        if isinstance(part, ModelCallEnded):
            self.ended = part


def _begin_attempt(
    entry: CatalogueEntry, question: OneShotQuestion, call_id: UUID
) -> tuple[ModelAttempt, _LastCall]:
    # 0 means that the provider takes no such field; Anthropic requires it.
    if entry.max_output_tokens or entry.provider == "anthropic":
        max_tokens = min(question.max_tokens, entry.max_output_tokens or question.max_tokens)
        entry = replace(entry, max_output_tokens=max_tokens)
    request = ModelRequest(
        entry=entry,
        system=question.system,
        messages=(UserMessage(text=question.text),),
        temperature=question.temperature,
    )
    meter = ModelCallMeter(request, call_id=call_id, number=0, now=time.monotonic)
    output = _LastCall()
    return ModelAttempt(request, output=output, step=ModelStep(round=1), meter=meter), output


async def _run_attempt(attempt: ModelAttempt, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await attempt.stream(get_provider)
    except TimeoutError:
        attempt.failure = ProviderFailure("overloaded", details="the request timed out")


async def _run_attempt_and_close(attempt: ModelAttempt, seconds: float) -> None:
    try:
        await _run_attempt(attempt, seconds)
    finally:
        await close_all_clients()


def _read_reply(attempt: ModelAttempt) -> OneShotReply:
    if attempt.reply is None:
        raise attempt.failure or ProviderFailure("unknown")
    if attempt.reply.finish == "refused":
        raise ProviderFailure("refused")  # the text is only about the refusal
    has_reasoning = any(block.kind == "reasoning" for block in attempt.blocks)
    text = attempt.reply.text.strip()
    unfinished = attempt.reply.finish == "length" or (has_reasoning and not text)
    return OneShotReply(text=text, unfinished=unfinished)


def _record_call(call: ModelCallEnded | None, cause: OneShotCause) -> None:
    if call is None:
        return
    usage = build_usage_record(
        call,
        turn_id=cause.turn_id,
        session_id=cause.session_id,
        user_id=cause.user_id,
        purpose=cause.purpose,
    )
    model_calls.finish_model_call(usage)
    recorded = UsageRecorded(purpose=cause.purpose, tokens=call.tokens)
    try:
        event_log.append_events(str(cause.session_id), [(recorded, str(cause.turn_id))])
    except REDIS_OUTAGE_ERRORS:
        log.warning("usage_event_not_published", session_id=str(cause.session_id), purpose=cause.purpose)
