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

from billing import queries as billing_queries
from billing import usage as billing_usage
from billing.errors import LimitReached
from copilot import history, offering, usage
from copilot.agent import conversation, prompt
from copilot.agent.fallback import MODELS_OWN, Fallback, Needs
from copilot.agent.guards import State
from copilot.agent.metering import Meter, estimate, size
from copilot.agent.parts import ModelCallEnded, ModelCallStarted
from copilot.agent.ports import closed
from copilot.agent.rebuilding import rebuilt
from copilot.agent.replies import Attempt, Step
from copilot.agent.retries import Policy, Retries
from copilot.agent.spending import recorded, spent_on
from copilot.agent.steps import Halt, next_step
from copilot.bridge import in_thread
from copilot.events import Event, SideEnded, SideExtended, TextExtended
from copilot.live import asides, stream
from copilot.live.asides import Asked
from copilot.live.client import RedisDown
from copilot.notices import NOTICES
from copilot.providers import provider_for
from copilot.providers.base import Entry, ModelMessage, ProviderFailure, Request, UserMessage
from copilot.providers.breakers import BREAKERS
from copilot.rows import Row

log = logging.getLogger(__name__)

SECONDS = 180.0
LOOK_SECONDS = 0.4  # how soon a stop is noticed
TELL_SECONDS = 0.1  # deltas that come closer are told together
RESULT_CHARACTERS = 2_000  # of a tool's result; calls themselves need tools, which there are none of


@dataclass(kw_only=True)
class _Answer:
    """What has come of it so far; told in pieces."""

    side_id: str
    text: str = ""
    told: int = 0
    told_at: float = 0.0  # the first words go out at once
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)  # pieces in their order

    async def extend(self, delta: str) -> None:
        self.text += delta
        if time.monotonic() - self.told_at >= TELL_SECONDS:
            await self.tell()

    async def tell(self) -> None:
        async with self.telling:
            if len(self.text) > self.told:
                offset, self.told, self.told_at = self.told, len(self.text), time.monotonic()
                await self.publish(SideExtended(offset=offset, delta=self.text[offset:]))

    async def publish(self, event: Event) -> None:
        try:
            await in_thread(stream.publish_now, self.side_id, [(event, None)])
        except RedisDown:
            log.warning("the log of a question aside is unreachable")


async def answer(session_id: UUID, side_id: str) -> None:
    """Until it is answered, fails, or is stopped; then the session may ask another."""
    asked = await in_thread(asides.asked, str(session_id), side_id)
    if asked is None:
        return
    said = _Answer(side_id=side_id)
    streaming = asyncio.ensure_future(_stream(session_id, asked, said))
    try:
        await _watched(streaming, str(session_id), said)
        await said.publish(_ending(streaming, said))
    finally:
        streaming.cancel()
        await in_thread(asides.let_go, str(session_id), side_id)
        await in_thread(billing_usage.settle, asked.user_id, side_id)


async def _watched(streaming: asyncio.Future[None], session_id: str, said: _Answer) -> None:
    """A stop is the loss of our place; a Redis that is away takes nobody's. A pause tells what waits."""
    deadline = time.monotonic() + SECONDS
    while True:
        await asyncio.wait({streaming}, timeout=LOOK_SECONDS)
        if streaming.done():
            return
        await said.tell()
        try:
            kept = await asides.keep(session_id, said.side_id)
        except RedisDown:
            kept = True
        if not kept or time.monotonic() > deadline:
            streaming.cancel()


def _ending(streaming: asyncio.Future[None], said: _Answer) -> SideEnded:
    if streaming.cancelled():
        return SideEnded(outcome="stopped", text=said.text)
    match streaming.exception():
        case None:
            return SideEnded(outcome="answered", text=said.text)
        case ProviderFailure() as failure:
            label = NOTICES[failure.code].label
            return SideEnded(outcome="failed", text=said.text, code=failure.code, label=label)
        case problem:
            log.error("a question aside broke", exc_info=problem)
            return SideEnded(outcome="failed", text=said.text, code="unknown", label=NOTICES["unknown"].label)


async def _stream(session_id: UUID, asked: Asked, said: _Answer) -> None:
    """The models of the standard tier, tried again as a turn would, until one has begun to answer (A7)."""
    rows = await in_thread(history.rows_for_model, session_id)
    chain = await in_thread(offering.resolve, "", "")
    needs = Needs(tools=False, prompt_tokens=estimate(size(_request(chain[0], rows, asked))))
    trying = _Trying(chain, needs)
    while True:
        trying.retries.count_request(trying.entry.name)
        try:
            await _try(trying.entry, rows, session_id, asked, said)
        except ProviderFailure as failure:
            again = not said.text and await in_thread(_may_spend, asked.user_id)  # nothing told is taken back
            if not again or not await trying.again_after(failure):
                await _counted(trying.entry, failure)
                if not again or not trying.switch(failure):
                    raise
        else:
            return


class _Trying:
    """Which model is asked, and what may still be done when it fails."""

    def __init__(self, chain: Sequence[Entry], needs: Needs) -> None:
        self.retries = Retries(policy=Policy.of(settings))
        self._fallback = Fallback(chain, BREAKERS.tripped)
        self._needs = needs
        self._deadline = time.monotonic() + SECONDS
        self._keys_read: set[str] = set()  # by model: anew, after a refusal
        tripped = BREAKERS.tripped(chain[0]) is not None
        self.entry = (self._fallback.instead_of_first(needs) if tripped else None) or chain[0]

    async def again_after(self, failure: ProviderFailure) -> bool:
        """Whether the same model may be asked again; by then the wait is over, or another key was found (A7.1, A7.4)."""
        left = self._deadline - time.monotonic()
        wait = self.retries.after(failure, model=self.entry.name, shown=False, seconds_left=left)
        if wait is not None:
            await asyncio.sleep(wait.delay_seconds)
            return True
        return failure.code == "auth_failed" and await self._renew_credential()

    async def _renew_credential(self) -> bool:
        if self.entry.name in self._keys_read:
            return False
        self._keys_read.add(self.entry.name)
        credential = await in_thread(offering.credential_of, self.entry)
        renewed = credential != self.entry.credential
        self.entry = replace(self.entry, credential=credential)
        return renewed

    def switch(self, failure: ProviderFailure) -> bool:
        """Whether another model goes on (A7.6)."""
        following = self._fallback.next(failure, self.entry, self._needs)
        if following is None:
            return False
        log.warning("%s could not answer aside: %s", self.entry.name, failure.code)
        self.entry = following
        return True


def _may_spend(user_id: int) -> bool:
    """Asked before each call but the first, which the door has asked for (B6.10)."""
    try:
        if billing_queries.plan(user_id).limit_binds_running_turns:
            billing_usage.check(user_id)
    except LimitReached:
        return False
    return True


async def _counted(entry: Entry, failure: ProviderFailure) -> None:
    """So that the turns of every process hear of it (A7.7)."""
    if settings.MODEL_BREAKER_FAILURES and failure.code in MODELS_OWN:
        await in_thread(offering.count_failure, entry, failure.code)


async def _try(entry: Entry, rows: list[Row], session_id: UUID, asked: Asked, said: _Answer) -> None:
    request = _request(entry, rows, asked)
    meter = Meter(request, call_id=uuid4(), number=0, now=time.monotonic)
    attempt = Attempt(request, step=Step(round=1), meter=meter)
    ended: ModelCallEnded | None = None
    try:
        async with closed(attempt.play(provider_for)) as parts:
            async for part in parts:
                if isinstance(part, TextExtended):
                    await said.extend(part.delta)
                elif isinstance(part, ModelCallStarted):
                    await in_thread(usage.begin_aside, part.id, session_id, entry.provider, entry.model)
                elif isinstance(part, ModelCallEnded):
                    ended = part
        await said.tell()
    finally:
        if (call := ended or meter.left_open()) is not None:
            await asyncio.shield(_recorded(call, session_id, asked.user_id))
    if attempt.reply is None:
        raise attempt.failure or ProviderFailure("unknown")
    step = next_step(attempt.reply, State())
    if isinstance(step, Halt) and step.code != "round_limit":
        raise ProviderFailure(step.code)
    if not said.text:
        raise ProviderFailure("no_response")


async def _recorded(call: ModelCallEnded, session_id: UUID, user_id: int) -> None:
    """Paid for like any other (A19.1)."""
    spent = spent_on(call, turn_id=None, session_id=session_id, user_id=user_id, purpose=usage.SIDE)
    await recorded(spent)


def _request(entry: Entry, rows: list[Row], asked: Asked) -> Request:
    return Request(entry=entry, system=prompt.system_text(), messages=_messages(rows, asked, entry))


def _messages(rows: Iterable[Row], asked: Asked, entry: Entry) -> tuple[ModelMessage, ...]:
    messages = rebuilt(_told(rows), turn_id="", entry=entry, images=prompt.NO_IMAGES)
    if messages and not isinstance(messages[0], UserMessage):
        messages.insert(0, conversation.note(prompt.BEGINS_WITH_ASSISTANT))
    question = UserMessage(text=f"{conversation.note(_wording()).text}\n\n{asked.question}")
    conversation.append(messages, question)
    return tuple(messages)


def _told(rows: Iterable[Row]) -> Iterable[Row]:
    """The rows as words alone: what tools answered becomes notes, calls and thoughts are left out."""
    for row in rows:
        if row.kind == "tool_result":
            text = f"A tool, {row.data.get('tool')}, answered: {row.content[:RESULT_CHARACTERS]}"
            yield replace(row, kind="note", content=text, call_id=None, data={})
        elif row.kind not in ("tool_call", "reasoning"):
            yield replace(row, replay=())


@cache
def _wording() -> str:
    return (prompt.PROMPTS / "side.md").read_text(encoding="utf-8").strip()
