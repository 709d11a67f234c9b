"""Stored rows become a conversation again: replies with their results, orphans mended, order kept (A16)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from copilot.agent.conversation import append, join_text, note
from copilot.agent.media import placeholder
from copilot.events import JSON
from copilot.providers.base import (
    AssistantMessage,
    Entry,
    ImagePart,
    ModelMessage,
    ToolCall,
    ToolGroup,
    ToolResult,
    UserMessage,
)
from copilot.rows import Row
from copilot.tags import block
from copilot.tools.calls import NO_RESULT, canonical
from copilot.workspace.sniffing import is_native_image

_log = logging.getLogger(__name__)


def rebuilt(
    rows: Iterable[Row], *, turn_id: str, entry: Entry, images: Mapping[str, ImagePart]
) -> list[ModelMessage]:
    """`images` are the pictures that may be shown, by file id; any other becomes words (A16.5)."""
    builder = _Builder(turn_id, entry, images)
    for row in _relevant(rows):
        builder.add(row)
    return builder.finish()


def _relevant(rows: Iterable[Row]) -> Sequence[Row]:
    """What is not hidden and not for people alone, from the newest summary on (A16.1)."""
    visible = [row for row in rows if not row.hidden and row.kind != "notice"]
    summaries = [position for position, row in enumerate(visible) if row.kind == "summary"]
    return visible[summaries[-1] :] if summaries else visible


@dataclass
class _Reply:
    """One reply while its rows are read: text, calls, their results, and what was said in between."""

    texts: list[str] = field(default_factory=list)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    results: dict[str, ToolResult] = field(default_factory=dict)
    replay: list[str] = field(default_factory=list)
    said: list[UserMessage] = field(default_factory=list)  # after the first call; goes behind the group


class _Builder:
    def __init__(self, turn_id: str, entry: Entry, images: Mapping[str, ImagePart]) -> None:
        self._images = images
        self._turn_id = turn_id
        self._models = ("", entry.name, entry.model)
        self._messages: list[ModelMessage] = []
        self._reply = _Reply()
        self._next_replay: list[str] = []  # of reasoning that precedes the next reply
        self._used_ids: set[str] = set()
        self._dropped = 0

    def add(self, row: Row) -> None:
        match row.kind:
            case "user":
                self._say(user_message(row, self._images), transparent=row.mid_turn)
            case "note":
                self._say(note(row.content), transparent=True)
            case "summary":
                self._say(summary_message(row.content), transparent=False)
            case "reasoning":
                self._add_reasoning(row)
            case "assistant":
                self._add_text(row)
            case "tool_call":
                self._add_call(row)
            case "tool_result":
                self._add_result(row)
            case "notice":
                pass
            case unreachable:
                assert_never(unreachable)

    def finish(self) -> list[ModelMessage]:
        self._close()
        if self._dropped:
            _log.warning("left %d tool rows out of place out of a request", self._dropped)
        return self._messages

    # --- rows ----------------------------------------------------------------------------------------

    def _say(self, message: UserMessage, *, transparent: bool) -> None:
        if transparent and self._reply.calls:
            self._reply.said.append(message)
            return
        self._close()
        append(self._messages, message)

    def _add_reasoning(self, row: Row) -> None:
        """Only its opaque data goes back, and only inside the turn that made it (A14.3)."""
        waits_for_text_or_calls = not self._reply.calls
        (self._reply.replay if waits_for_text_or_calls else self._next_replay).extend(self._replay_of(row))

    def _add_text(self, row: Row) -> None:
        if self._reply.calls:
            self._close()
        if row.content.strip():
            self._reply.texts.append(row.content)
            self._reply.replay.extend(self._replay_of(row))

    def _add_call(self, row: Row) -> None:
        if self._reply.results:
            self._close()
        tool = row.data.get("tool")
        if not row.call_id or not isinstance(tool, str) or not tool or row.call_id in self._reply.calls:
            self._dropped += 1
            return
        call = ToolCall(call_id=row.call_id, tool=tool, arguments=_arguments(row.data.get("arguments")))
        self._reply.calls[row.call_id] = call
        self._reply.replay.extend(self._replay_of(row))

    def _add_result(self, row: Row) -> None:
        """Only directly after the reply that made the call; a second one is dropped (A16.3)."""
        call = self._reply.calls.get(row.call_id or "")
        if call is None or call.call_id in self._reply.results:
            self._dropped += 1
            return
        shown, words = pictures_of(row, self._images)
        self._reply.results[call.call_id] = ToolResult(
            call_id=call.call_id,
            tool=call.tool,
            content=join_text(row.content, *words),
            success=row.data.get("success") is not False,
            images=shown,
        )

    # --- replies -------------------------------------------------------------------------------------

    def _close(self) -> None:
        reply, self._reply = self._reply, _Reply(replay=self._next_replay)
        self._next_replay = []
        calls = tuple(reply.calls.values())
        ids = {call.call_id: self._unused(call.call_id) for call in calls}
        message = AssistantMessage(
            text=join_text(*reply.texts),
            calls=tuple(replace(call, call_id=ids[call.call_id]) for call in calls),
            replay=tuple(reply.replay) if calls else (),
        )
        append(self._messages, message)
        if calls:
            results = (replace(_result(reply, call), call_id=ids[call.call_id]) for call in calls)
            append(self._messages, ToolGroup(results=tuple(results)))
        for said in reply.said:
            append(self._messages, said)

    def _unused(self, call_id: str) -> str:
        """Providers refuse a conversation in which two calls share an id."""
        unused, number = call_id, 2
        while unused in self._used_ids:
            unused, number = f"{call_id}_{number}", number + 1
        self._used_ids.add(unused)
        return unused

    def _replay_of(self, row: Row) -> tuple[str, ...]:
        return row.replay if row.turn_id == self._turn_id and row.model in self._models else ()


def summary_message(text: str) -> UserMessage:
    return UserMessage(text=block("conversation_summary", text))


def user_message(row: Row, images: Mapping[str, ImagePart]) -> UserMessage:
    """A message as the model reads it: a follow-up as it was delivered, any other behind its context."""
    follow_up = row.data.get("follow_up")
    text = follow_up if isinstance(follow_up, str) else join_text(row.server_context, row.content)
    shown, words = pictures_of(row, images)
    return UserMessage(text=join_text(text, *words), images=shown)


def pictures_of(row: Row, images: Mapping[str, ImagePart]) -> tuple[tuple[ImagePart, ...], list[str]]:
    """A row's pictures in order, and words for those that cannot be shown."""
    pictures = [file for file in row.attachments if is_native_image(file.type, file.size)]
    shown = tuple(images[file.file_id] for file in pictures if file.file_id in images)
    missing = [file for file in pictures if file.file_id not in images]
    return shown, [placeholder(file.name, file.type, file.size) for file in missing]


def _result(reply: _Reply, call: ToolCall) -> ToolResult:
    made_up = ToolResult(call_id=call.call_id, tool=call.tool, content=NO_RESULT, success=False)
    return reply.results.get(call.call_id, made_up)


def _arguments(stored: JSON) -> dict[str, JSON]:
    arguments = canonical(stored) if isinstance(stored, dict) else {}
    return arguments if isinstance(arguments, dict) else {}
