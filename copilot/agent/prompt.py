"""What the model is given: the static system text, the context of a message, and history as it must be (A15, A16)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from copilot.agent import conversation
from copilot.agent.rebuilding import rebuilt
from copilot.events import AttachmentView
from copilot.providers.base import AssistantMessage, Entry, ImagePart, ModelMessage, UserMessage
from copilot.rows import Row
from copilot.tags import block, escape
from copilot.workspace.sniffing import is_native_image

PROMPTS = Path(__file__).parent / "prompts"
BEGINS_WITH_ASSISTANT = "The conversation begins with a message of yours."


@cache
def read_prompt(name: str) -> str:
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8").strip()


def system_text() -> str:
    """The static prefix: the same bytes for every user, session and turn of a release (A15.1)."""
    return read_prompt("system")


NO_IMAGES: Mapping[str, ImagePart] = {}


def build(
    rows: Sequence[Row], *, turn_id: str, entry: Entry, images: Mapping[str, ImagePart] = NO_IMAGES
) -> tuple[ModelMessage, ...]:
    """The conversation for `entry`, valid for every provider, the same however often it is built (A16).

    It ends with something to answer: after a text that was cut off, with the request to go on (T9.1).
    """
    messages = conversation_of(rows, turn_id=turn_id, entry=entry, images=images)
    if messages and isinstance(messages[-1], AssistantMessage):
        messages.append(conversation.interrupted_note())
    return tuple(messages)


def conversation_of(
    rows: Sequence[Row], *, turn_id: str, entry: Entry, images: Mapping[str, ImagePart] = NO_IMAGES
) -> list[ModelMessage]:
    """The same as it was left, whoever spoke last."""
    messages = rebuilt(rows, turn_id=turn_id, entry=entry, images=images)
    if messages and not isinstance(messages[0], UserMessage):
        messages.insert(0, conversation.note(BEGINS_WITH_ASSISTANT))
    return messages


def server_context(
    *,
    sent: str,
    speaker: str = "",
    page_url: str = "",
    page_text: str = "",
    attachments: Sequence[AttachmentView] = (),
) -> str:
    """What stands in front of a message, frozen on its row and never shown to people (A15.3, A29.4)."""
    blocks = [_environment(sent, speaker, page_url, page_text)]
    if others := [file for file in attachments if not is_native_image(file.type, file.size)]:
        blocks.append(_attached(others))
    return conversation.join_text(*blocks)


def _environment(sent: str, speaker: str, page_url: str, page_text: str) -> str:
    lines = [f"sent: {sent}"]
    if speaker:
        lines.append(f"speaker: {escape(' '.join(speaker.split()))}")
    if page_url:
        lines.append(f"page: {escape(page_url)}")
    if page_text:
        lines.append(f"page text:\n{escape(page_text)}")
    return block("env_context", "\n".join(lines))


def _attached(attachments: Sequence[AttachmentView]) -> str:
    lines = [
        f"- {escape(file.name)} ({escape(file.type)}, {file.size / 1024:.1f} KB), file id {escape(file.file_id)}"
        for file in attachments
    ]
    return block("attached_files", "\n".join([*lines, "Read them with read_file."]))
