"""Find what the strictest vendor would refuse in a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from copilot.providers.base import (
    AssistantMessage,
    CatalogueEntry,
    ModelMessage,
    ModelRequest,
    ToolCall,
    ToolResultsMessage,
    ToolSpecification,
    UserMessage,
)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")


def find_request_problems(request: ModelRequest) -> list[str]:
    return [*_tool_problems(request.tools), *_order_problems(request.messages), *_content_problems(request)]


def _tool_problems(tools: Sequence[ToolSpecification]) -> Iterator[str]:
    names = [tool.name for tool in tools]
    for name in names:
        if not _NAME.fullmatch(name):
            yield f"tool name {name!r} is not [A-Za-z0-9_-]{{1,64}}"
        if names.count(name) > 1:
            yield f"tool {name!r} is offered twice"
    for tool in tools:
        if tool.parameters.get("type") != "object":
            yield f"the parameters of {tool.name!r} are not a JSON Schema of an object"


def _order_problems(messages: Sequence[ModelMessage]) -> Iterator[str]:
    if not messages or not isinstance(messages[0], UserMessage):
        yield "the first message is not a user message"
    for position, message in enumerate(messages):
        following = messages[position + 1] if position + 1 < len(messages) else None
        before = messages[position - 1] if position else None
        if isinstance(message, AssistantMessage) and message.calls:
            yield from _pairing_problems(position, message.calls, following)
        if isinstance(message, ToolResultsMessage) and not (
            isinstance(before, AssistantMessage) and before.calls
        ):
            yield f"message {position}: tool results without calls before them"


def _pairing_problems(
    position: int, calls: Sequence[ToolCall], following: ModelMessage | None
) -> Iterator[str]:
    ids = [call.call_id for call in calls]
    if len(set(ids)) != len(ids):
        yield f"message {position}: a call id occurs twice"
    if not isinstance(following, ToolResultsMessage):
        yield f"message {position}: calls without results directly after them"
        return
    answered = [result.call_id for result in following.results]
    if answered != ids:
        yield f"message {position}: results {answered} do not answer calls {ids}"


def _content_problems(request: ModelRequest) -> Iterator[str]:
    if _UNSENDABLE.search(request.system + request.suffix):
        yield "the system text contains a NUL or a lone surrogate"
    for position, message in enumerate(request.messages):
        for problem in (*_message_problems(message), *_image_problems(message, request.entry)):
            yield f"message {position}: {problem}"


def _message_problems(message: ModelMessage) -> Iterator[str]:
    match message:
        case UserMessage():
            if not message.text.strip() and not message.images:
                yield "an empty user message"
            yield from _text_problems(message.text)
        case AssistantMessage():
            if not message.text.strip() and not message.calls:
                yield "an empty assistant message"
            yield from _text_problems(message.text)
            for call in message.calls:
                yield from _call_problems(call)
            for data in message.replay:
                yield from _replay_problems(data)
        case ToolResultsMessage():
            for result in message.results:
                yield from _text_problems(result.content)


def _image_problems(message: ModelMessage, entry: CatalogueEntry) -> Iterator[str]:
    if isinstance(message, UserMessage) and message.images and not entry.supports_images:
        yield f"images for {entry.name}, which does not support them"
    if not isinstance(message, ToolResultsMessage) or not any(result.images for result in message.results):
        return
    if not (entry.supports_images and entry.media_in_tool_results):
        yield f"images in a tool result for {entry.name}, which does not support them there"


def _text_problems(text: str) -> Iterator[str]:
    if _UNSENDABLE.search(text):
        yield "text with a NUL or a lone surrogate"


def _call_problems(call: ToolCall) -> Iterator[str]:
    if not _CALL_ID.fullmatch(call.call_id):
        yield f"call id {call.call_id!r} is unusable"
    if not _NAME.fullmatch(call.tool):
        yield f"call of {call.tool!r}, which is not a valid tool name"


def _replay_problems(data: str) -> Iterator[str]:
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError:
        yield "replay data that is not JSON"
