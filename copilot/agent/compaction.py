"""Makes a long conversation short: a summary by the model, kept as a row, read instead of what it covers (A17)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import msgspec

from copilot import history
from copilot.agent import abridging
from copilot.agent.conversation import append, join_text
from copilot.agent.metering import Meter, estimate, length
from copilot.agent.parts import (
    Compacted,
    CompactionFailed,
    ModelCallEnded,
    ModelCallStarted,
    Produced,
    SummaryMade,
)
from copilot.agent.ports import Clock, Compaction, TakeNumber, closed
from copilot.agent.prompt import read_prompt
from copilot.agent.rebuilding import summary_message, user_message
from copilot.agent.replies import Attempt, Step
from copilot.agent.steps import UNUSABLE
from copilot.bridge import in_thread
from copilot.events import Todo
from copilot.models import Session
from copilot.providers.base import (
    Entry,
    ImagePart,
    ModelMessage,
    Provider,
    ProviderFailure,
    Request,
    UserMessage,
)
from copilot.rows import Row, storable
from copilot.tags import strip_server_tags
from copilot.turns import Claimed

OUTPUT_TOKENS = 8_192
TRIES = 2  # the second with half the room, when the model finds the first still too long
REQUEST_CHARACTERS = 64_000  # of what people asked in this turn; the newest always stays whole
MOST_OF_THE_WINDOW = 0.6  # what a shortened conversation may fill (A17.4)
LEAST_GAIN = 0.2  # of the window, when the model has refused the conversation (A7.5)


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a summary rests on, read when it begins: rows that come meanwhile stay after it (A17.7)."""

    anchor: int
    requests: tuple[Row, ...]  # of the running turn
    todos: tuple[Todo, ...]


class TurnCompactor:
    """The loop's compactor. Cancelled, it leaves nothing but the cost of what was asked (A17.5)."""

    def __init__(
        self,
        turn: Claimed,
        *,
        provider: Callable[[Entry], Provider],
        call_id: Callable[[int], UUID],
        clock: Clock,
        images: Mapping[str, ImagePart],
    ) -> None:
        self._turn = turn
        self._provider = provider
        self._call_id = call_id
        self._clock = clock
        self._images = images
        self._attempt: Attempt | None = None

    def open_call(self) -> ModelCallEnded | None:
        return self._attempt.meter.left_open() if self._attempt else None

    async def compact(
        self, task: Compaction, take_number: TakeNumber
    ) -> AsyncIterator[Produced | Compacted | CompactionFailed]:
        ground = await in_thread(_ground, self._turn.session_id, self._turn.turn_id)
        async with closed(self._summarise(task, ground, take_number)) as parts:
            async for part in parts:
                yield part
        text = self._text()
        messages = shortened(text, ground, self._images)
        after = task.fixed_tokens + estimate(sum(length(message) for message in messages))
        problem = self._problem() or objection(text, task, tokens_after=after)
        if problem:
            yield CompactionFailed(reason=problem)
            return
        yield SummaryMade(
            row_id=uuid4(),
            text=_kept_text(text, ground),
            anchor=ground.anchor,
            kept=tuple(row.id for row in ground.requests),
            tokens_before=task.tokens_before,
            tokens_after=after,
            window=task.entry.context_window,
        )
        yield Compacted(messages=messages, tokens=after)

    async def _summarise(
        self, task: Compaction, ground: Ground, take_number: TakeNumber
    ) -> AsyncIterator[Produced]:
        """Of the calls only beginning and end are anybody's news."""
        for number in range(1, TRIES + 1):
            call_number = await take_number(again=number > 1)
            if call_number is None:
                return
            self._attempt = attempt = self._begin(task, ground, call_number, tries=number)
            async with closed(attempt.play(self._provider)) as parts:
                async for part in parts:
                    if isinstance(part, ModelCallStarted | ModelCallEnded):
                        yield part
            if (failure := _failure(attempt)) is None or failure.code != "context_overflow":
                return

    def _begin(self, task: Compaction, ground: Ground, number: int, *, tries: int) -> Attempt:
        request = summary_request(task, ground.todos, tries=tries)
        meter = Meter(
            request,
            call_id=self._call_id(number),
            number=number,
            now=self._clock.now,
            purpose="compaction",
        )
        return Attempt(request, step=Step(round=0), meter=meter)

    def _text(self) -> str:
        reply = self._attempt.reply if self._attempt else None
        return strip_server_tags(storable(reply.text)).strip() if reply else ""

    def _problem(self) -> str:
        failure = _failure(self._attempt) if self._attempt else None
        return f"{failure.code}: {failure.details}".rstrip(": ") if failure else ""


def _failure(attempt: Attempt) -> ProviderFailure | None:
    """A reply that a turn could not work with is no summary either, whatever it says."""
    if attempt.reply is None:
        return attempt.failure
    code = UNUSABLE.get(attempt.reply.finish)
    return None if code is None else ProviderFailure(code)


# --- the request -------------------------------------------------------------------------------------


def summary_request(task: Compaction, todos: Sequence[Todo], *, tries: int = 1) -> Request:
    """The history, what to make of it, and the to-do list; no tools, no thinking (A17.2).

    A server that takes no limit for its output is given none here either (A4.1).
    """
    window = task.entry.context_window
    output = min(OUTPUT_TOKENS, task.entry.max_output_tokens or OUTPUT_TOKENS, window // 4 or OUTPUT_TOKENS)
    system = read_prompt("compaction")
    instruction = join_text(read_prompt("compaction_request"), _focus(task.focus), _todo_list(todos))
    room = _room(task, output) // tries - estimate(len(system) + len(instruction))
    messages = abridging.fitting(task.messages, tokens=room)
    append(messages, UserMessage(text=instruction))
    entry = replace(task.entry, max_output_tokens=output) if task.entry.max_output_tokens else task.entry
    return Request(entry=entry, system=system, messages=tuple(messages))


def _room(task: Compaction, output: int) -> int:
    """Tokens for the request; of an unknown window, less than what was too much."""
    if task.entry.context_window:
        return task.entry.context_window - output
    return task.tokens_before * 3 // 4 if task.forced else 10 * task.tokens_before


def _focus(focus: str) -> str:
    return f"The user asks you to keep this above all: {strip_server_tags(focus)}" if focus else ""


def _todo_list(todos: Sequence[Todo]) -> str:
    if not todos:
        return ""
    lines = "\n".join(f"- [{todo.status}] {todo.text}" for todo in todos)
    return f"The to-do list as it stands, which goes on with the tool todos_write:\n{lines}"


# --- what follows ------------------------------------------------------------------------------------


def shortened(text: str, ground: Ground, images: Mapping[str, ImagePart]) -> tuple[ModelMessage, ...]:
    """As the rows will be read: the summary, then what people asked in this turn, word for word (A17.3)."""
    messages: list[ModelMessage] = []
    append(messages, summary_message(_kept_text(text, ground)))
    for row in ground.requests:
        append(messages, user_message(row, images))
    return tuple(messages)


def _kept_text(text: str, ground: Ground) -> str:
    return join_text(text, _todo_list(ground.todos))


def objection(text: str, task: Compaction, *, tokens_after: int) -> str:
    """Why a summary is not used; empty when it is (A17.4, A7.5)."""
    if not text:
        return "the summary is empty"
    window = task.entry.context_window
    if window and tokens_after > window * MOST_OF_THE_WINDOW:
        return "what is left still fills the window"
    if task.forced and task.tokens_before - tokens_after < (window or task.tokens_before) * LEAST_GAIN:
        return "it gains too little room"
    return ""


def _ground(session_id: UUID, turn_id: UUID) -> Ground:
    todos = Session.objects.values_list("todos", flat=True).get(pk=session_id)
    return Ground(
        anchor=history.last_place(session_id),
        requests=_newest(history.requests_of(turn_id)),
        todos=tuple(msgspec.convert(todos, list[Todo])),
    )


def _newest(requests: Sequence[Row]) -> tuple[Row, ...]:
    kept: list[Row] = []
    characters = 0
    for row in reversed(requests):
        characters += len(row.server_context) + len(row.content)
        if kept and characters > REQUEST_CHARACTERS:
            break
        kept.insert(0, row)
    return tuple(kept)
