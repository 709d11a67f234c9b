"""Replace a long conversation in the context by a summary that the model writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import msgspec

from config.core.db import run_in_thread
from config.core.text import make_storable
from copilot.agent.interfaces import Clock, CompactionTask, OutputSink, TakeCallNumber
from copilot.agent.model_context import (
    append_message,
    build_summary_message,
    build_user_message,
    join_text,
    read_prompt,
    replace_images_with_text,
)
from copilot.agent.model_stream import UNUSABLE_FINISH_REASONS, ModelAttempt, ModelStep
from copilot.agent.outputs import (
    CompactionFailed,
    CompactionSucceeded,
    LoopOutput,
    ModelCallEnded,
    ModelCallStarted,
    SummaryAdded,
)
from copilot.agent.token_meters import (
    CHARACTERS_PER_TOKEN,
    ModelCallMeter,
    count_message_characters,
    estimate_tokens,
)
from copilot.chat import message_history
from copilot.chat.message_rows import MessageRow
from copilot.chat.prompt_tags import strip_server_tags
from copilot.chat.turns import ClaimedTurn
from copilot.models import Session
from copilot.providers.base import (
    AssistantMessage,
    CatalogueEntry,
    ImagePart,
    ModelMessage,
    ModelRequest,
    Provider,
    ProviderFailure,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    UserMessage,
)
from copilot.realtime.payloads import Todo

MAX_OLD_OUTPUT_CHARACTERS = 2_000
LEFT_OUT_NOTE = "[What came before was too long and is left out.]"
TRUNCATION_MARK = "[…]"


def fit_conversation(messages: Sequence[ModelMessage], *, tokens: int) -> list[ModelMessage]:
    """Fit messages into `tokens`: shorten tool outputs first, then drop the oldest messages."""
    max_characters = max(tokens, 1) * CHARACTERS_PER_TOKEN
    plain = _as_plain_text(messages)
    if _count_characters(plain) > max_characters:
        plain = _as_plain_text(_truncate_outputs(messages))
    if _count_characters(plain) > max_characters:
        plain = _keep_newest_messages(plain, max_characters)
    return plain


def _as_plain_text(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Render calls and results as text, because a request without tools may not contain them."""
    plain: list[ModelMessage] = []
    for message in replace_images_with_text(messages):
        match message:
            case UserMessage():
                append_message(plain, message)
            case AssistantMessage():
                append_message(
                    plain, AssistantMessage(text=join_text(message.text, *map(_describe_call, message.calls)))
                )
            case ToolResultsMessage():
                append_message(plain, UserMessage(text=join_text(*map(_describe_result, message.results))))
    return plain


def _describe_call(call: ToolCall) -> str:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return f"[called {call.tool} with {arguments}]"


def _describe_result(result: ToolResult) -> str:
    outcome = "result" if result.success else "failure"
    return f"[{outcome} of {result.tool}]\n{result.content}"


def _truncate_outputs(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    return [
        ToolResultsMessage(results=tuple(_truncate_result(result) for result in message.results))
        if isinstance(message, ToolResultsMessage)
        else message
        for message in messages
    ]


def _truncate_result(result: ToolResult) -> ToolResult:
    if len(result.content) <= MAX_OLD_OUTPUT_CHARACTERS:
        return result
    return replace(result, content=result.content[:MAX_OLD_OUTPUT_CHARACTERS] + TRUNCATION_MARK)


def _keep_newest_messages(messages: Sequence[ModelMessage], max_characters: int) -> list[ModelMessage]:
    kept: list[ModelMessage] = []
    left = max_characters
    for message in reversed(messages):
        if left <= 0:
            break
        if isinstance(message, UserMessage | AssistantMessage):
            kept.insert(0, replace(message, text=message.text[-left:]))
        left -= count_message_characters(message)
    result: list[ModelMessage] = [UserMessage(text=LEFT_OUT_NOTE)]
    for message in kept:
        append_message(result, message)
    return result


def _count_characters(messages: Iterable[ModelMessage]) -> int:
    return sum(count_message_characters(message) for message in messages)


# --- Compaction ---

SUMMARY_OUTPUT_TOKENS = 8_192
MAX_SUMMARY_ATTEMPTS = 2  # the second with half the input, if the first was still too long
MAX_KEPT_REQUEST_CHARACTERS = 64_000  # of people's messages in this turn; the newest always stays whole
MAX_WINDOW_SHARE_AFTER = 0.6  # how full the window may be after a compaction
MIN_WINDOW_SHARE_GAINED = 0.2  # of the window, when the model has refused the conversation


@dataclass(frozen=True, kw_only=True)
class CompactionSource:
    """The basis of a summary, read before it is written: rows that arrive meanwhile stay after it."""

    anchor: int
    requests: tuple[MessageRow, ...]  # of the running turn
    todos: tuple[Todo, ...]


class ModelCallsOnly:
    """Pass on the start and end of model calls. The text of a summary is not part of the answer."""

    def __init__(self, output: OutputSink) -> None:
        self._output = output

    async def emit(self, part: LoopOutput) -> None:
        if isinstance(part, ModelCallStarted | ModelCallEnded):
            await self._output.emit(part)


class TurnCompactor:
    """Write the summary with the turn's model. If cancelled, nothing is stored but the cost of the calls."""

    def __init__(
        self,
        turn: ClaimedTurn,
        *,
        provider: Callable[[CatalogueEntry], Provider],
        call_id: Callable[[int], UUID],
        clock: Clock,
        images: Mapping[str, ImagePart],
    ) -> None:
        self._turn = turn
        self._provider = provider
        self._call_id = call_id
        self._clock = clock
        self._images = images
        self._attempt: ModelAttempt | None = None

    def unrecorded_call(self) -> ModelCallEnded | None:
        return self._attempt.meter.unrecorded_end() if self._attempt else None

    async def compact(
        self, task: CompactionTask, take_number: TakeCallNumber, output: OutputSink
    ) -> CompactionSucceeded | CompactionFailed:
        source = await run_in_thread(_load_source, self._turn.session_id, self._turn.turn_id)
        await self._request_summary(task, source, take_number, ModelCallsOnly(output))
        text = self._summary_text()
        messages = build_compacted_messages(text, source, self._images)
        after = task.fixed_tokens + estimate_tokens(
            sum(count_message_characters(message) for message in messages)
        )
        problem = self._problem() or find_summary_problem(text, task, tokens_after=after)
        if problem:
            return CompactionFailed(reason=problem)
        await output.emit(
            SummaryAdded(
                row_id=uuid4(),
                text=_add_todos(text, source),
                anchor=source.anchor,
                kept=tuple(row.id for row in source.requests),
                tokens_before=task.tokens_before,
                tokens_after=after,
                window=task.entry.context_window,
            )
        )
        return CompactionSucceeded(messages=messages, tokens=after)

    async def _request_summary(
        self, task: CompactionTask, source: CompactionSource, take_number: TakeCallNumber, output: OutputSink
    ) -> None:
        for number in range(1, MAX_SUMMARY_ATTEMPTS + 1):
            call_number = await take_number(again=number > 1)
            if call_number is None:
                return
            self._attempt = attempt = self._begin_attempt(task, source, call_number, output, tries=number)
            await attempt.stream(self._provider)
            if (failure := _attempt_failure(attempt)) is None or failure.code != "context_overflow":
                return

    def _begin_attempt(
        self, task: CompactionTask, source: CompactionSource, number: int, output: OutputSink, *, tries: int
    ) -> ModelAttempt:
        request = build_summary_request(task, source.todos, tries=tries)
        meter = ModelCallMeter(
            request,
            call_id=self._call_id(number),
            number=number,
            now=self._clock.now,
            purpose="compaction",
        )
        return ModelAttempt(request, output=output, step=ModelStep(round=0), meter=meter)

    def _summary_text(self) -> str:
        reply = self._attempt.reply if self._attempt else None
        return strip_server_tags(make_storable(reply.text)).strip() if reply else ""

    def _problem(self) -> str:
        failure = _attempt_failure(self._attempt) if self._attempt else None
        return f"{failure.code}: {failure.details}".rstrip(": ") if failure else ""


def _attempt_failure(attempt: ModelAttempt) -> ProviderFailure | None:
    """Return the failure of an attempt, including replies that ended in an unusable way."""
    if attempt.reply is None:
        return attempt.failure
    code = UNUSABLE_FINISH_REASONS.get(attempt.reply.finish)
    return None if code is None else ProviderFailure(code)


# --- The request ---


def build_summary_request(task: CompactionTask, todos: Sequence[Todo], *, tries: int = 1) -> ModelRequest:
    """Build the request: the history, instructions and the to-do list, without tools or thinking.

    The output is only limited if the provider accepts a limit.
    """
    window = task.entry.context_window
    output = min(
        SUMMARY_OUTPUT_TOKENS,
        task.entry.max_output_tokens or SUMMARY_OUTPUT_TOKENS,
        window // 4 or SUMMARY_OUTPUT_TOKENS,
    )
    system = read_prompt("compaction")
    instruction = join_text(
        read_prompt("compaction_request"), _focus_instruction(task.focus), _format_todos(todos)
    )
    max_tokens = _max_request_tokens(task, output) // tries - estimate_tokens(len(system) + len(instruction))
    messages = fit_conversation(task.messages, tokens=max_tokens)
    append_message(messages, UserMessage(text=instruction))
    entry = replace(task.entry, max_output_tokens=output) if task.entry.max_output_tokens else task.entry
    return ModelRequest(entry=entry, system=system, messages=tuple(messages))


def _max_request_tokens(task: CompactionTask, output: int) -> int:
    """Return the tokens for the request; if the window is unknown, less than what was refused."""
    if task.entry.context_window:
        return task.entry.context_window - output
    return task.tokens_before * 3 // 4 if task.forced else 10 * task.tokens_before


def _focus_instruction(focus: str) -> str:
    return f"The user asks you to keep this above all: {strip_server_tags(focus)}" if focus else ""


def _format_todos(todos: Sequence[Todo]) -> str:
    if not todos:
        return ""
    lines = "\n".join(f"- [{todo.status}] {todo.text}" for todo in todos)
    return f"The current to-do list; keep updating it with the tool todos_write:\n{lines}"


# --- The compacted context ---


def build_compacted_messages(
    text: str, source: CompactionSource, images: Mapping[str, ImagePart]
) -> tuple[ModelMessage, ...]:
    """Build the context after compaction: the summary, then people's messages of this turn, unchanged."""
    messages: list[ModelMessage] = []
    append_message(messages, build_summary_message(_add_todos(text, source)))
    for row in source.requests:
        append_message(messages, build_user_message(row, images))
    return tuple(messages)


def _add_todos(text: str, source: CompactionSource) -> str:
    return join_text(text, _format_todos(source.todos))


def find_summary_problem(text: str, task: CompactionTask, *, tokens_after: int) -> str:
    if not text:
        return "the summary is empty"
    window = task.entry.context_window
    if window and tokens_after > window * MAX_WINDOW_SHARE_AFTER:
        return "the compacted conversation still fills the context window"
    if (
        task.forced
        and task.tokens_before - tokens_after < (window or task.tokens_before) * MIN_WINDOW_SHARE_GAINED
    ):
        return "the summary saves too little space"
    return ""


def _load_source(session_id: UUID, turn_id: UUID) -> CompactionSource:
    todos = Session.objects.values_list("todos", flat=True).get(pk=session_id)
    return CompactionSource(
        anchor=message_history.get_last_sequence(session_id),
        requests=_keep_newest_requests(message_history.list_requests_of_turn(turn_id)),
        todos=tuple(msgspec.convert(todos, list[Todo])),
    )


def _keep_newest_requests(requests: Sequence[MessageRow]) -> tuple[MessageRow, ...]:
    kept: list[MessageRow] = []
    characters = 0
    for row in reversed(requests):
        characters += len(row.server_context) + len(row.content)
        if kept and characters > MAX_KEPT_REQUEST_CHARACTERS:
            break
        kept.insert(0, row)
    return tuple(kept)
