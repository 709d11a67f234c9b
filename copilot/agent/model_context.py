"""Build the context that a model reads: messages, images, stored rows and the system prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import assert_never

import structlog

from config.core.json_values import JSON
from copilot.chat.message_rows import MessageRow
from copilot.chat.prompt_tags import build_server_block, escape_server_tags, escape_text
from copilot.files.content_types import is_native_image
from copilot.providers.base import (
    AssistantMessage,
    CatalogueEntry,
    ImagePart,
    ModelMessage,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    UserMessage,
)
from copilot.realtime.payloads import AttachmentPayload
from copilot.tools.base import ToolCallOutcome
from copilot.tools.calls import NO_RESULT_MESSAGE, canonicalize_json

PARAGRAPH_SEPARATOR = "\n\n"
INTERRUPTED_NOTE = (
    "Your last message was interrupted while you wrote it; the user sees what you see of it. Go on exactly "
    "where it stops, in the middle of a word if need be, without repeating anything, without an introduction "
    "and without mentioning the interruption."
)
_BLOCK_BEGINS, _BLOCK_ENDS = "<user_follow_up>\n", "\n</user_follow_up>"


def append_message(messages: list[ModelMessage], message: ModelMessage) -> None:
    """Append a message, merging neighbours of the same role and dropping empty ones."""
    previous = messages[-1] if messages else None
    match message:
        case UserMessage():
            if not message.text.strip() and not message.images:
                return
            if isinstance(previous, UserMessage):
                messages[-1] = _merge_user_messages(previous, message)
                return
        case AssistantMessage():
            if not message.text.strip() and not message.calls:
                return
            if isinstance(previous, AssistantMessage) and not previous.calls:
                messages[-1] = replace(
                    message,
                    text=join_text(previous.text, message.text),
                    replay=previous.replay + message.replay,
                )
                return
        case ToolResultsMessage():
            pass
    messages.append(message)


def join_text(*parts: str) -> str:
    return PARAGRAPH_SEPARATOR.join(part for part in parts if part)


def build_note(text: str) -> UserMessage:
    return UserMessage(text=build_server_block("system_note", text))


def build_interrupted_note() -> UserMessage:
    return build_note(INTERRUPTED_NOTE)


def build_tool_result(outcome: ToolCallOutcome) -> ToolResult:
    return ToolResult(
        call_id=outcome.call_id,
        tool=outcome.tool,
        content=outcome.content,
        success=outcome.success,
        images=outcome.media,
    )


def collect_call_ids(messages: Iterable[ModelMessage]) -> frozenset[str]:
    return frozenset(call.call_id for m in messages if isinstance(m, AssistantMessage) for call in m.calls)


def find_last_replay(messages: Sequence[ModelMessage]) -> tuple[str, ...]:
    replies = (message for message in reversed(messages) if isinstance(message, AssistantMessage))
    return next((reply.replay for reply in replies), ())


def replace_results(messages: list[ModelMessage], rerun: ToolResultsMessage) -> None:
    """Replace placeholder results in the last group with those of calls that ran again."""
    results = {result.call_id: result for result in rerun.results}
    for position in range(len(messages) - 1, -1, -1):
        group = messages[position]
        if isinstance(group, ToolResultsMessage):
            kept = tuple(results.get(result.call_id, result) for result in group.results)
            messages[position] = ToolResultsMessage(results=kept)
            return


def extend_last_reply(messages: list[ModelMessage], text: str) -> None:
    for position in range(len(messages) - 1, -1, -1):
        reply = messages[position]
        if isinstance(reply, AssistantMessage):
            messages[position] = replace(reply, text=reply.text + text)
            return


def strip_replay(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Drop opaque reasoning data, which only the model that made it can read."""
    return [replace(m, replay=()) if isinstance(m, AssistantMessage) and m.replay else m for m in messages]


def _merge_user_messages(left: UserMessage, right: UserMessage) -> UserMessage:
    return UserMessage(text=_merge_follow_up_blocks(left.text, right.text), images=left.images + right.images)


def _merge_follow_up_blocks(left: str, right: str) -> str:
    """Join follow-ups of one tool boundary into a single block, each with its own number."""
    continues = right.startswith(_BLOCK_BEGINS) and not right.startswith(f"{_BLOCK_BEGINS}1. ")
    if continues and left.endswith(_BLOCK_ENDS):
        return f"{left.removesuffix(_BLOCK_ENDS)}\n{right.removeprefix(_BLOCK_BEGINS)}"
    return join_text(left, right)


# --- Images ---

SEE_ATTACHMENT_NOTE = "[{count}: see attachment]"
ATTACHED_IMAGES_NOTE = "The pictures of the tool results above, in their order: {names}."


def describe_hidden_image(name: str, mime: str, size_bytes: int) -> str:
    return f"[image not shown: {_image_name(name)}, {mime}, {size_bytes / 1024:.1f} KB]"


def replace_images_with_text(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    return [_message_without_images(message) for message in messages]


def move_images_after_results(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Move images into one user message after the whole group, because inside it would split the group."""
    shown: list[ModelMessage] = []
    for message in messages:
        if not isinstance(message, ToolResultsMessage):
            shown.append(message)
            continue
        images = tuple(image for result in message.results for image in result.images)
        if not images:
            shown.append(message)
            continue
        names = ", ".join(_image_name(image.name) for image in images)
        shown.append(
            ToolResultsMessage(results=tuple(_point_to_images(result) for result in message.results))
        )
        shown.append(replace(build_note(ATTACHED_IMAGES_NOTE.format(names=names)), images=images))
    return shown


def _point_to_images(result: ToolResult) -> ToolResult:
    if not result.images:
        return result
    number = len(result.images)
    pointer = SEE_ATTACHMENT_NOTE.format(count="1 picture" if number == 1 else f"{number} pictures")
    return replace(result, content=join_text(result.content, pointer), images=())


def _message_without_images(message: ModelMessage) -> ModelMessage:
    match message:
        case UserMessage(images=images) if images:
            return UserMessage(text=join_text(message.text, *_describe_images(images)))
        case ToolResultsMessage(results=results) if any(result.images for result in results):
            return ToolResultsMessage(results=tuple(_result_without_images(result) for result in results))
        case _:
            return message


def _result_without_images(result: ToolResult) -> ToolResult:
    if not result.images:
        return result
    return replace(result, content=join_text(result.content, *_describe_images(result.images)), images=())


def _describe_images(images: Iterable[ImagePart]) -> list[str]:
    return [describe_hidden_image(image.name, image.mime, len(image.data)) for image in images]


def _image_name(name: str) -> str:
    return escape_server_tags(name) or "unnamed"


# --- Stored rows ---

log = structlog.get_logger(__name__)


def rebuild_conversation(
    rows: Iterable[MessageRow], *, turn_id: str, entry: CatalogueEntry, images: Mapping[str, ImagePart]
) -> list[ModelMessage]:
    """Turn rows into messages. `images` holds the images to show, by file id; others become text."""
    builder = _ConversationBuilder(turn_id, entry, images)
    for row in _select_rows(rows):
        builder.add(row)
    return builder.finish()


def _select_rows(rows: Iterable[MessageRow]) -> Sequence[MessageRow]:
    visible = [row for row in rows if not row.hidden and row.kind != "notice"]
    summaries = [position for position, row in enumerate(visible) if row.kind == "summary"]
    return visible[summaries[-1] :] if summaries else visible


@dataclass
class _ReplyRows:
    """The rows of one reply: text, calls, results, and messages that arrived in between."""

    texts: list[str] = field(default_factory=list)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    results: dict[str, ToolResult] = field(default_factory=dict)
    replay: list[str] = field(default_factory=list)
    late_messages: list[UserMessage] = field(
        default_factory=list
    )  # after the first call; moved after the group


class _ConversationBuilder:
    def __init__(self, turn_id: str, entry: CatalogueEntry, images: Mapping[str, ImagePart]) -> None:
        self._images = images
        self._turn_id = turn_id
        self._models = ("", entry.name, entry.model)
        self._messages: list[ModelMessage] = []
        self._reply = _ReplyRows()
        self._next_replay: list[str] = []  # of reasoning before the next reply
        self._used_ids: set[str] = set()
        self._dropped = 0

    def add(self, row: MessageRow) -> None:
        match row.kind:
            case "user":
                self._add_user_message(build_user_message(row, self._images), transparent=row.mid_turn)
            case "note":
                self._add_user_message(build_note(row.content), transparent=True)
            case "summary":
                self._add_user_message(build_summary_message(row.content), transparent=False)
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
        self._close_reply()
        if self._dropped:
            log.warning("context_rows_dropped", rows=self._dropped)
        return self._messages

    # --- Rows ---

    def _add_user_message(self, message: UserMessage, *, transparent: bool) -> None:
        if transparent and self._reply.calls:
            self._reply.late_messages.append(message)
            return
        self._close_reply()
        append_message(self._messages, message)

    def _add_reasoning(self, row: MessageRow) -> None:
        """Keep only the opaque data of reasoning, and only inside the turn that made it."""
        belongs_to_reply = not self._reply.calls
        (self._reply.replay if belongs_to_reply else self._next_replay).extend(self._replay_of(row))

    def _add_text(self, row: MessageRow) -> None:
        if self._reply.calls:
            self._close_reply()
        if row.content.strip():
            self._reply.texts.append(row.content)
            self._reply.replay.extend(self._replay_of(row))

    def _add_call(self, row: MessageRow) -> None:
        if self._reply.results:
            self._close_reply()
        tool = row.data.get("tool")
        if not row.call_id or not isinstance(tool, str) or not tool or row.call_id in self._reply.calls:
            self._dropped += 1
            return
        call = ToolCall(
            call_id=row.call_id, tool=tool, arguments=_canonical_arguments(row.data.get("arguments"))
        )
        self._reply.calls[row.call_id] = call
        self._reply.replay.extend(self._replay_of(row))

    def _add_result(self, row: MessageRow) -> None:
        """Accept a result only directly after the reply that made the call; drop a second one."""
        call = self._reply.calls.get(row.call_id or "")
        if call is None or call.call_id in self._reply.results:
            self._dropped += 1
            return
        shown, descriptions = split_row_images(row, self._images)
        self._reply.results[call.call_id] = ToolResult(
            call_id=call.call_id,
            tool=call.tool,
            content=join_text(row.content, *descriptions),
            success=row.data.get("success") is not False,
            images=shown,
        )

    # --- Replies ---

    def _close_reply(self) -> None:
        reply, self._reply = self._reply, _ReplyRows(replay=self._next_replay)
        self._next_replay = []
        calls = tuple(reply.calls.values())
        ids = {call.call_id: self._unused_call_id(call.call_id) for call in calls}
        message = AssistantMessage(
            text=join_text(*reply.texts),
            calls=tuple(replace(call, call_id=ids[call.call_id]) for call in calls),
            replay=tuple(reply.replay) if calls else (),
        )
        append_message(self._messages, message)
        if calls:
            results = (
                replace(_result_or_placeholder(reply, call), call_id=ids[call.call_id]) for call in calls
            )
            append_message(self._messages, ToolResultsMessage(results=tuple(results)))
        for late_message in reply.late_messages:
            append_message(self._messages, late_message)

    def _unused_call_id(self, call_id: str) -> str:
        """Make call ids unique, because providers refuse two calls with the same id."""
        unused, number = call_id, 2
        while unused in self._used_ids:
            unused, number = f"{call_id}_{number}", number + 1
        self._used_ids.add(unused)
        return unused

    def _replay_of(self, row: MessageRow) -> tuple[str, ...]:
        return row.replay if row.turn_id == self._turn_id and row.model in self._models else ()


def build_summary_message(text: str) -> UserMessage:
    return UserMessage(text=build_server_block("conversation_summary", text))


def build_user_message(row: MessageRow, images: Mapping[str, ImagePart]) -> UserMessage:
    """Build a user message: a follow-up as it was delivered, any other after its server context.

    A row without text and files only starts a turn that continues with tool results, and says nothing.
    """
    follow_up = row.data.get("follow_up")
    if not row.content and not row.attachments and not follow_up:
        return UserMessage(text="")
    text = follow_up if isinstance(follow_up, str) else join_text(row.server_context, row.content)
    shown, descriptions = split_row_images(row, images)
    return UserMessage(text=join_text(text, *descriptions), images=shown)


def split_row_images(
    row: MessageRow, images: Mapping[str, ImagePart]
) -> tuple[tuple[ImagePart, ...], list[str]]:
    pictures = [file for file in row.attachments if is_native_image(file.type, file.size)]
    shown = tuple(images[file.file_id] for file in pictures if file.file_id in images)
    missing = [file for file in pictures if file.file_id not in images]
    return shown, [describe_hidden_image(file.name, file.type, file.size) for file in missing]


def _result_or_placeholder(reply: _ReplyRows, call: ToolCall) -> ToolResult:
    placeholder = ToolResult(call_id=call.call_id, tool=call.tool, content=NO_RESULT_MESSAGE, success=False)
    return reply.results.get(call.call_id, placeholder)


def _canonical_arguments(stored: JSON) -> dict[str, JSON]:
    arguments = canonicalize_json(stored) if isinstance(stored, dict) else {}
    return arguments if isinstance(arguments, dict) else {}


# --- The context ---

PROMPTS_DIRECTORY = Path(__file__).parent / "prompts"
ASSISTANT_FIRST_NOTE = "The conversation begins with a message of yours."


@cache
def read_prompt(name: str) -> str:
    return (PROMPTS_DIRECTORY / f"{name}.md").read_text(encoding="utf-8").strip()


def read_system_prompt() -> str:
    """Return the static prefix, which is the same for every user, session and turn of a release."""
    return read_prompt("system")


NO_IMAGES: Mapping[str, ImagePart] = {}


def build_context(
    rows: Sequence[MessageRow],
    *,
    turn_id: str,
    entry: CatalogueEntry,
    images: Mapping[str, ImagePart] = NO_IMAGES,
) -> tuple[ModelMessage, ...]:
    """Build the context for `entry`, valid for every provider and the same each time.

    It ends with something to answer: after a text that was cut off, with a note asking to continue.
    """
    messages = build_conversation(rows, turn_id=turn_id, entry=entry, images=images)
    if messages and isinstance(messages[-1], AssistantMessage):
        messages.append(build_interrupted_note())
    return tuple(messages)


def build_conversation(
    rows: Sequence[MessageRow],
    *,
    turn_id: str,
    entry: CatalogueEntry,
    images: Mapping[str, ImagePart] = NO_IMAGES,
) -> list[ModelMessage]:
    messages = rebuild_conversation(rows, turn_id=turn_id, entry=entry, images=images)
    if messages and not isinstance(messages[0], UserMessage):
        messages.insert(0, build_note(ASSISTANT_FIRST_NOTE))
    return messages


def build_message_context(
    *,
    sent: str,
    speaker: str = "",
    page_url: str = "",
    page_text: str = "",
    attachments: Sequence[AttachmentPayload] = (),
) -> str:
    """Build the text in front of a message, which is frozen on its row and never shown to people."""
    blocks = [_environment_block(sent, speaker, page_url, page_text)]
    if others := [file for file in attachments if not is_native_image(file.type, file.size)]:
        blocks.append(_attachments_block(others))
    return join_text(*blocks)


def _environment_block(sent: str, speaker: str, page_url: str, page_text: str) -> str:
    lines = [f"sent: {sent}"]
    if speaker:
        lines.append(f"speaker: {escape_text(' '.join(speaker.split()))}")
    if page_url:
        lines.append(f"page: {escape_text(page_url)}")
    if page_text:
        lines.append(f"page text:\n{escape_text(page_text)}")
    return build_server_block("env_context", "\n".join(lines))


def _attachments_block(attachments: Sequence[AttachmentPayload]) -> str:
    lines = [
        f"- {escape_text(file.name)} ({escape_text(file.type)}, {file.size / 1024:.1f} KB), file id {escape_text(file.file_id)}"
        for file in attachments
    ]
    return build_server_block("attached_files", "\n".join([*lines, "Read them with read_file."]))
