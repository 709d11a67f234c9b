"""What is done after a failed call, so that its round can go on: a wait, a healing, another model (A7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from copilot.agent.carried import Sent
from copilot.agent.conversation import call_ids, last_replay, without_replay
from copilot.agent.fallback import MODELS_OWN, Fallback, Needs
from copilot.agent.healing import Healing
from copilot.agent.metering import estimate, size
from copilot.agent.parts import Produced
from copilot.agent.ports import Ports
from copilot.agent.replies import Attempt
from copilot.agent.retries import Retries, Wait
from copilot.events import ModelHealed, ModelRetrying, ModelSwitched, StepRetracted
from copilot.notices import NOTICES
from copilot.providers.base import Entry, FailureCode, ModelMessage, ProviderFailure, Request

Remedy = Wait | ModelHealed | ModelSwitched


class Remedies:
    """One turn's. `entry` is the model that is asked now, `healing` what requests to it look like by now."""

    def __init__(
        self,
        chain: tuple[Entry, ...],
        ports: Ports,
        retries: Retries,
        *,
        thinking_tokens: int,
        deadline: float,
    ) -> None:
        """`deadline`, on the ports' clock: no wait passes it."""
        self.entry = chain[0]
        self.retries = retries
        self.healing = Healing(ports.learned, thinking_tokens=thinking_tokens)
        self.waiting = False
        self._chain = chain
        self._ports = ports
        self._deadline = deadline
        self._fallback = Fallback(chain, ports.health.tripped)

    def take_up(self, before: Sequence[Sent], messages: list[ModelMessage], *, in_tool_loop: bool) -> None:
        """What earlier runs of the turn had to change about their requests (A7.4, A14.4)."""
        entries = {entry.name: entry for entry in self._chain}
        for sent in before:
            if sent.model in entries:
                self.healing.tried(sent.failure, entries[sent.model])
        if self.healing.thoughts_lost:
            messages[:] = without_replay(messages)
        if in_tool_loop and not last_replay(messages):
            self.healing.lose_thoughts()

    async def after(
        self, failure: ProviderFailure, attempt: Attempt, messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> Remedy | None:
        """None when nothing is left to be tried. `messages` changes when what is in them cannot be sent any more."""
        seconds_left = self._deadline - self._ports.clock.now()
        shown = attempt.shown
        wait = self.retries.after(failure, model=self.entry.name, shown=shown, seconds_left=seconds_left)
        if wait is not None or seconds_left <= 0:
            return wait
        if (healed := await self._heal(failure, messages, shown=shown)) is not None:
            self.retries.spend_request(shown=shown)
            return healed
        if failure.code == "context_overflow":
            return None  # a shorter conversation is tried first, with this model
        if failure.code in MODELS_OWN:
            self._ports.health.failed(self.entry, failure.code)
        return self.switch(failure, attempt, messages, in_tool_loop=in_tool_loop)

    def final(self, failure: ProviderFailure) -> ProviderFailure:
        """What the round fails with."""
        return self._fallback.final(failure, self.entry, out_of_requests=self.retries.exhausted)

    async def sleep(self, wait: Wait) -> None:
        self.waiting = True
        try:
            await self._ports.clock.sleep(wait.delay_seconds)
        finally:
            self.waiting = False

    # --- healing (A7.4) ------------------------------------------------------------------------------

    async def _heal(
        self, failure: ProviderFailure, messages: list[ModelMessage], *, shown: bool
    ) -> ModelHealed | None:
        kind = self.healing.remedy(failure, self.entry)
        if kind is None or not self.retries.can_send(self.entry.name, shown=shown):
            return None
        if kind == "credentials" and not await self._renew_credential():
            return None
        self.healing.apply(kind, self.entry, failure)
        if kind == "signature":
            messages[:] = without_replay(messages)
        label = NOTICES[failure.code].label
        return ModelHealed(model=self.entry.name, healing=kind, failure_class=failure.code, label=label)

    async def _renew_credential(self) -> bool:
        """Whether the store has another one than was refused."""
        credential = await self._ports.credential(self.entry)
        renewed = credential != self.entry.credential
        self.entry = replace(self.entry, credential=credential)
        return renewed

    # --- another model (A7.6) ------------------------------------------------------------------------

    def switch(
        self, failure: ProviderFailure, attempt: Attempt, messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> ModelSwitched | None:
        shown = attempt.shown
        if not self.retries.can_switch(shown=shown):
            return None
        entry = self._fallback.next(failure, self.entry, _needs(attempt.request, messages))
        if entry is None:
            return None
        self.retries.spend_request(shown=shown)
        return self._switch_to(entry, failure.code, messages, in_tool_loop=in_tool_loop)

    def pass_over(
        self, why: FailureCode, request: Request, messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> Iterator[ModelSwitched]:
        """The chain's first keeps failing everybody: begin with another, if one suits (A7.7)."""
        entry = self._fallback.instead_of_first(_needs(request, messages))
        if entry is not None:
            yield self._switch_to(entry, why, messages, in_tool_loop=in_tool_loop)

    def _switch_to(
        self, entry: Entry, why: FailureCode, messages: list[ModelMessage], *, in_tool_loop: bool
    ) -> ModelSwitched:
        before, self.entry = self.entry, entry
        messages[:] = without_replay(messages)
        if in_tool_loop:
            self.healing.lose_thoughts()
        label = NOTICES[why].label
        return ModelSwitched(from_model=before.name, to_model=entry.name, failure_class=why, label=label)


def _needs(request: Request, messages: list[ModelMessage]) -> Needs:
    return Needs(tools=bool(request.tools or call_ids(messages)), prompt_tokens=estimate(size(request)))


# --- what clients are told of it -----------------------------------------------------------------------


def announced(attempt: Attempt, failure: ProviderFailure, remedy: Remedy) -> Iterator[Produced]:
    yield from left(attempt, failure)
    yield _retrying(failure, remedy) if isinstance(remedy, Wait) else remedy


def left(attempt: Attempt, failure: ProviderFailure) -> Iterator[Produced]:
    """The step is over; what clients saw of it is taken back (A7.3)."""
    step = attempt.step
    if attempt.shown:
        yield StepRetracted(
            step_id=step.id,
            round=step.round,
            failure_class=failure.code,
            row_ids=[str(block.row_id) for block in attempt.rows],
        )
    else:
        yield step.finished("failed")
    step.over = True


def _retrying(failure: ProviderFailure, wait: Wait) -> ModelRetrying:
    return ModelRetrying(
        failure_class=failure.code,
        label=NOTICES[failure.code].label,
        delay_seconds=round(wait.delay_seconds, 3),
        attempt=wait.attempt,
        attempts=wait.attempts,
    )
