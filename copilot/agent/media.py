"""Pictures in a conversation, as a model takes them: in results, behind their group, or as words (A9.9, A16.5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from copilot.agent.conversation import join_text, note
from copilot.providers.base import ImagePart, ModelMessage, ToolGroup, ToolResult, UserMessage
from copilot.tags import escape_server_tags

SEE_ATTACHMENT = "[{count}: see attachment]"
ATTACHED = "The pictures of the tool results above, in their order: {names}."


def placeholder(name: str, mime: str, size_bytes: int) -> str:
    """What stands for a picture that is not shown."""
    return f"[image not shown: {_named(name)}, {mime}, {size_bytes / 1024:.1f} KB]"


def without_images(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Each image is replaced by words that name it (A7.4, A16.5)."""
    return [_in_words(message) for message in messages]


def behind_groups(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """One user message with the pictures after the whole group: after a single result it would split the group."""
    shown: list[ModelMessage] = []
    for message in messages:
        if not isinstance(message, ToolGroup):
            shown.append(message)
            continue
        images = tuple(image for result in message.results for image in result.images)
        if not images:
            shown.append(message)
            continue
        names = ", ".join(_named(image.name) for image in images)
        shown.append(ToolGroup(results=tuple(_pointing(result) for result in message.results)))
        shown.append(replace(note(ATTACHED.format(names=names)), images=images))
    return shown


def _pointing(result: ToolResult) -> ToolResult:
    if not result.images:
        return result
    number = len(result.images)
    pointer = SEE_ATTACHMENT.format(count="1 picture" if number == 1 else f"{number} pictures")
    return replace(result, content=join_text(result.content, pointer), images=())


def _in_words(message: ModelMessage) -> ModelMessage:
    match message:
        case UserMessage(images=images) if images:
            return UserMessage(text=join_text(message.text, *_placeholders(images)))
        case ToolGroup(results=results) if any(result.images for result in results):
            return ToolGroup(results=tuple(_result_in_words(result) for result in results))
        case _:
            return message


def _result_in_words(result: ToolResult) -> ToolResult:
    if not result.images:
        return result
    return replace(result, content=join_text(result.content, *_placeholders(result.images)), images=())


def _placeholders(images: Iterable[ImagePart]) -> list[str]:
    return [placeholder(image.name, image.mime, len(image.data)) for image in images]


def _named(name: str) -> str:
    return escape_server_tags(name) or "unnamed"
