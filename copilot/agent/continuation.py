"""Goes on with a text that the output limit cut: the same step, the same row, a request of its own (A2.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from copilot.agent.asking import Asker
from copilot.agent.conversation import note
from copilot.agent.guards import CUT_SHORT, State
from copilot.agent.parts import Produced
from copilot.agent.ports import closed
from copilot.agent.steps import Answer
from copilot.providers.base import AssistantMessage, ModelMessage, ProviderFailure


async def go_on(asker: Asker, messages: list[ModelMessage], *, state: State) -> AsyncIterator[Produced]:
    """The rest of the text, if it was cut. Should that fail, what was said stands."""
    while asker.continuing is not None and isinstance(asker.outcome, Answer):
        if not asker.retries.can_send(asker.entry.name, shown=False) or await asker.is_short_of_money():
            asker.limit = None  # nothing failed: the answer is only shorter
            break
        asker.continuations -= 1
        async with closed(_play_rest(asker, messages, state)) as parts:
            async for part in parts:
                yield part
    for event in asker.end_interrupted():
        yield event


async def _play_rest(asker: Asker, messages: list[ModelMessage], state: State) -> AsyncIterator[Produced]:
    before, said = asker.replied()
    asker.retries.spend_request(shown=False)
    asked = [*messages, AssistantMessage(text=said.text), note(CUT_SHORT)]
    attempt = asker.begin(asked, before.step.round, rest_of=before.step)
    async with closed(attempt.play(asker.ports.provider)) as parts:
        async for part in parts:
            yield part
    asker.account(attempt)
    outcome = asker.judge(attempt, replace(state, continues_text=True))
    failed = isinstance(outcome, ProviderFailure)
    attempt.reply = attempt.joined_to(said)
    stands = failed or isinstance(outcome, Answer)
    asker.outcome = Answer(truncated=failed or attempt.reply.finish == "length") if stands else outcome
    if failed and attempt.resumed is None:
        for event in asker.end_interrupted():
            yield event
    asker.continuing = attempt.cut
