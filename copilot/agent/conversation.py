"""The conversation as the model sees it: what may stand beside what (A16.3, A16.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from copilot.providers.base import (
    AssistantMessage,
    ModelMessage,
    ToolGroup,
    ToolResult,
    UserMessage,
)
from copilot.tags import block
from copilot.tools.base import CallOutcome

SEPARATOR = "\n\n"
INTERRUPTED = (
    "Your last message was interrupted while you wrote it; the user sees what you see of it. Go on exactly "
    "where it stops, in the middle of a word if need be, without repeating anything, without an introduction "
    "and without mentioning the interruption."
)
_BLOCK_BEGINS, _BLOCK_ENDS = "<user_follow_up>\n", "\n</user_follow_up>"


def append(messages: list[ModelMessage], message: ModelMessage) -> None:
    """Add at the end; neighbours of one role become one, and what is empty is left out."""
    last = messages[-1] if messages else None
    match message:
        case UserMessage():
            if not message.text.strip() and not message.images:
                return
            if isinstance(last, UserMessage):
                messages[-1] = _joined(last, message)
                return
        case AssistantMessage():
            if not message.text.strip() and not message.calls:
                return
            if isinstance(last, AssistantMessage) and not last.calls:
                messages[-1] = replace(
                    message,
                    text=join_text(last.text, message.text),
                    replay=last.replay + message.replay,
                )
                return
        case ToolGroup():
            pass
    messages.append(message)


def join_text(*parts: str) -> str:
    return SEPARATOR.join(part for part in parts if part)


def note(text: str) -> UserMessage:
    """A word of the server to the model."""
    return UserMessage(text=block("system_note", text))


def interrupted_note() -> UserMessage:
    return note(INTERRUPTED)


def result_of(outcome: CallOutcome) -> ToolResult:
    return ToolResult(
        call_id=outcome.call_id,
        tool=outcome.tool,
        content=outcome.content,
        success=outcome.success,
        images=outcome.media,
    )


def call_ids(messages: Iterable[ModelMessage]) -> frozenset[str]:
    return frozenset(call.call_id for m in messages if isinstance(m, AssistantMessage) for call in m.calls)


def last_replay(messages: Sequence[ModelMessage]) -> tuple[str, ...]:
    """Opaque data of the model's last reply."""
    replies = (message for message in reversed(messages) if isinstance(message, AssistantMessage))
    return next((reply.replay for reply in replies), ())


def replace_results(messages: list[ModelMessage], again: ToolGroup) -> None:
    """Put results of calls that ran again in place of the makeshift ones of the last group."""
    results = {result.call_id: result for result in again.results}
    for position in range(len(messages) - 1, -1, -1):
        group = messages[position]
        if isinstance(group, ToolGroup):
            kept = tuple(results.get(result.call_id, result) for result in group.results)
            messages[position] = ToolGroup(results=kept)
            return


def extend_last_reply(messages: list[ModelMessage], text: str) -> None:
    """The interrupted reply has grown before it was interrupted again."""
    for position in range(len(messages) - 1, -1, -1):
        reply = messages[position]
        if isinstance(reply, AssistantMessage):
            messages[position] = replace(reply, text=reply.text + text)
            return


def without_replay(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Opaque data is its own model's alone; what everybody can read stays (A14.4)."""
    return [replace(m, replay=()) if isinstance(m, AssistantMessage) and m.replay else m for m in messages]


def _joined(left: UserMessage, right: UserMessage) -> UserMessage:
    return UserMessage(text=_read_together(left.text, right.text), images=left.images + right.images)


def _read_together(left: str, right: str) -> str:
    """Each message of a tool boundary keeps its own entry; those that are shown stand in one block (A13.5)."""
    goes_on = right.startswith(_BLOCK_BEGINS) and not right.startswith(f"{_BLOCK_BEGINS}1. ")
    if goes_on and left.endswith(_BLOCK_ENDS):
        return f"{left.removesuffix(_BLOCK_ENDS)}\n{right.removeprefix(_BLOCK_BEGINS)}"
    return join_text(left, right)
