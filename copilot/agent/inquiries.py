"""Asks a model one thing for a turn that has ended; what it takes is recorded with its purpose (A19.6)."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from uuid import UUID

from copilot import offering, usage
from copilot.agent.metering import Meter
from copilot.agent.parts import ModelCallEnded
from copilot.agent.ports import closed
from copilot.agent.replies import Attempt, Step
from copilot.agent.spending import spent_on
from copilot.events import UsageRecorded
from copilot.live import stream
from copilot.live.client import RedisDown
from copilot.models import Turn
from copilot.providers import aclose_all, provider_for
from copilot.providers.base import Entry, ProviderFailure, Request, UserMessage
from copilot.providers.breakers import BREAKERS

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The ended turn on whose behalf a model is asked, and who pays."""

    turn_id: UUID
    session_id: UUID
    user_id: int
    purpose: str

    @classmethod
    def of(cls, turn: Turn, purpose: str) -> Cause:
        return cls(
            turn_id=turn.pk, session_id=turn.session_id, user_id=turn.session.owner_id, purpose=purpose
        )


@dataclass(frozen=True, kw_only=True)
class Question:
    system: str
    text: str
    most_tokens: int
    seconds: float
    temperature: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    text: str
    unfinished: bool  # the room went on something else: cut off by length, or nothing but thoughts


def models() -> tuple[Entry, ...]:
    """The small ones, then the standard ones, each once, those that keep failing last; the demo has nothing to say to this."""
    chain = (*offering.askable("small"), *offering.askable("standard"))
    asked = [entry for entry in dict.fromkeys(chain) if not entry.demo]
    return tuple(sorted(asked, key=lambda entry: BREAKERS.tripped(entry) is not None))


def ask(entry: Entry, question: Question, cause: Cause) -> Reply:
    """One reply without tools or thinking; raises ProviderFailure. From synchronous code alone."""
    if (
        entry.max_output_tokens or entry.provider == "anthropic"
    ):  # 0: others take no such field, this one must have it
        most = min(question.most_tokens, entry.max_output_tokens or question.most_tokens)
        entry = replace(entry, max_output_tokens=most)
    request = Request(
        entry=entry,
        system=question.system,
        messages=(UserMessage(text=question.text),),
        temperature=question.temperature,
    )
    call_id = usage.begin_afterwards(cause.turn_id, cause.purpose, entry.provider, entry.model)
    attempt = Attempt(
        request,
        step=Step(round=1),
        meter=Meter(request, call_id=call_id, number=0, now=time.monotonic),
    )
    _record(asyncio.run(_played(attempt, question.seconds)), cause)
    if attempt.reply is None:
        raise attempt.failure or ProviderFailure("unknown")
    if attempt.reply.finish == "refused":
        raise ProviderFailure("refused")  # its words are about the refusal
    thought = any(block.kind == "reasoning" for block in attempt.blocks)
    text = attempt.reply.text.strip()
    return Reply(text=text, unfinished=attempt.reply.finish == "length" or (thought and not text))


async def _played(attempt: Attempt, seconds: float) -> ModelCallEnded | None:
    """The call's end, however it came. Connections belong to this loop, which ends with the call."""
    ended: ModelCallEnded | None = None
    try:
        async with asyncio.timeout(seconds), closed(attempt.play(provider_for)) as parts:
            async for part in parts:
                if isinstance(part, ModelCallEnded):
                    ended = part
    except TimeoutError:
        attempt.failure = ProviderFailure("overloaded", details="it took too long")
    finally:
        await aclose_all()
    return ended or attempt.meter.left_open()


def _record(call: ModelCallEnded | None, cause: Cause) -> None:
    if call is None:
        return
    spent = spent_on(
        call,
        turn_id=cause.turn_id,
        session_id=cause.session_id,
        user_id=cause.user_id,
        purpose=cause.purpose,
    )
    usage.finish(spent)
    recorded = UsageRecorded(purpose=cause.purpose, tokens=call.tokens)
    try:
        stream.publish_now(str(cause.session_id), [(recorded, str(cause.turn_id))])
    except RedisDown:
        log.warning("the event log is unreachable; a cost was recorded without being told")
