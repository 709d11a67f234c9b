"""Asks a model one thing for a turn that has ended; what it takes is recorded with its purpose (A19.6)."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from uuid import UUID

from config.core.redis import REDIS_OUTAGE_ERRORS
from copilot.agent.interfaces import aclosing_iterator
from copilot.agent.model_stream import ModelAttempt, ModelStep
from copilot.agent.outputs import ModelCallEnded
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

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OneShotCause:
    """The ended turn on whose behalf a model is asked, and who pays."""

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
    most_tokens: int
    seconds: float
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True)
class OneShotReply:
    text: str
    unfinished: bool  # the room went on something else: cut off by length, or nothing but thoughts


def list_models_to_ask() -> tuple[CatalogueEntry, ...]:
    """The small ones, then the standard ones, each once, those that keep failing last; the demo has nothing to say to this."""
    chain = (*catalogue_store.find_chain("small"), *catalogue_store.find_chain("standard"))
    asked = [entry for entry in dict.fromkeys(chain) if not entry.demo]
    return tuple(sorted(asked, key=lambda entry: BREAKERS.open_breaker_code(entry) is not None))


def ask_model(entry: CatalogueEntry, question: OneShotQuestion, cause: OneShotCause) -> OneShotReply:
    """One reply without tools or thinking; raises ProviderFailure. From synchronous code alone."""
    if (
        entry.max_output_tokens or entry.provider == "anthropic"
    ):  # 0: others take no such field, this one must have it
        most = min(question.most_tokens, entry.max_output_tokens or question.most_tokens)
        entry = replace(entry, max_output_tokens=most)
    request = ModelRequest(
        entry=entry,
        system=question.system,
        messages=(UserMessage(text=question.text),),
        temperature=question.temperature,
    )
    call_id = model_calls.start_call_after_turn(cause.turn_id, cause.purpose, entry.provider, entry.model)
    attempt = ModelAttempt(
        request,
        step=ModelStep(round=1),
        meter=ModelCallMeter(request, call_id=call_id, number=0, now=time.monotonic),
    )
    _record_call(asyncio.run(_run_attempt(attempt, question.seconds)), cause)
    if attempt.reply is None:
        raise attempt.failure or ProviderFailure("unknown")
    if attempt.reply.finish == "refused":
        raise ProviderFailure("refused")  # its words are about the refusal
    thought = any(block.kind == "reasoning" for block in attempt.blocks)
    text = attempt.reply.text.strip()
    return OneShotReply(text=text, unfinished=attempt.reply.finish == "length" or (thought and not text))


async def _run_attempt(attempt: ModelAttempt, seconds: float) -> ModelCallEnded | None:
    """The call's end, however it came. Connections belong to this loop, which ends with the call."""
    ended: ModelCallEnded | None = None
    try:
        async with asyncio.timeout(seconds), aclosing_iterator(attempt.stream(get_provider)) as parts:
            async for part in parts:
                if isinstance(part, ModelCallEnded):
                    ended = part
    except TimeoutError:
        attempt.failure = ProviderFailure("overloaded", details="it took too long")
    finally:
        await close_all_clients()
    return ended or attempt.meter.unrecorded_end()


def _record_call(call: ModelCallEnded | None, cause: OneShotCause) -> None:
    if call is None:
        return
    spent = build_usage_record(
        call,
        turn_id=cause.turn_id,
        session_id=cause.session_id,
        user_id=cause.user_id,
        purpose=cause.purpose,
    )
    model_calls.finish_model_call(spent)
    recorded = UsageRecorded(purpose=cause.purpose, tokens=call.tokens)
    try:
        event_log.append_events(str(cause.session_id), [(recorded, str(cause.turn_id))])
    except REDIS_OUTAGE_ERRORS:
        log.warning("the event log is unreachable; a cost was recorded without being told")
