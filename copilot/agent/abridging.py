"""A conversation as plain text of two speakers, cut until it fits: what a summary is made from (A17.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from copilot.agent.conversation import append, join_text
from copilot.agent.media import without_images
from copilot.agent.metering import CHARACTERS_PER_TOKEN, length
from copilot.providers.base import (
    AssistantMessage,
    ModelMessage,
    ToolCall,
    ToolGroup,
    ToolResult,
    UserMessage,
)

OLD_OUTPUT_CHARACTERS = 2_000
LEFT_OUT = "[What came before was too long and is left out.]"
CUT = "[…]"


def fitting(messages: Sequence[ModelMessage], *, tokens: int) -> list[ModelMessage]:
    """As much as fits: first tool outputs are cut, then the oldest messages left out."""
    room = max(tokens, 1) * CHARACTERS_PER_TOKEN
    told = _told(messages)
    if _size(told) > room:
        told = _told(_with_short_outputs(messages))
    if _size(told) > room:
        told = _newest(told, room)
    return told


def _told(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Calls and results as words: a request without tools may hold none (and no server insists on pairs)."""
    told: list[ModelMessage] = []
    for message in without_images(messages):
        match message:
            case UserMessage():
                append(told, message)
            case AssistantMessage():
                append(told, AssistantMessage(text=join_text(message.text, *map(_call, message.calls))))
            case ToolGroup():
                append(told, UserMessage(text=join_text(*map(_result, message.results))))
    return told


def _call(call: ToolCall) -> str:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return f"[called {call.tool} with {arguments}]"


def _result(result: ToolResult) -> str:
    outcome = "result" if result.success else "failure"
    return f"[{outcome} of {result.tool}]\n{result.content}"


def _with_short_outputs(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    return [
        ToolGroup(results=tuple(_short(result) for result in message.results))
        if isinstance(message, ToolGroup)
        else message
        for message in messages
    ]


def _short(result: ToolResult) -> ToolResult:
    if len(result.content) <= OLD_OUTPUT_CHARACTERS:
        return result
    return replace(result, content=result.content[:OLD_OUTPUT_CHARACTERS] + CUT)


def _newest(told: Sequence[ModelMessage], room: int) -> list[ModelMessage]:
    """The end of the conversation; the oldest message that has room is itself cut at its beginning."""
    kept: list[ModelMessage] = []
    left = room
    for message in reversed(told):
        if left <= 0:
            break
        if isinstance(message, UserMessage | AssistantMessage):
            kept.insert(0, replace(message, text=message.text[-left:]))
        left -= length(message)
    result: list[ModelMessage] = [UserMessage(text=LEFT_OUT)]
    for message in kept:
        append(result, message)
    return result


def _size(messages: Iterable[ModelMessage]) -> int:
    return sum(length(message) for message in messages)
