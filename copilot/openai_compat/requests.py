"""Convert requests in OpenAI's format to the history they bring along and the text to answer.

Chat messages and Responses items become the same messages. Parameters that only tune a model are ignored; those that
would change the form of the answer, and cannot be supported, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from config.core.errors import InvalidRequest
from config.core.json_values import JSON
from copilot.openai_compat.base import LenientModel

MAX_MESSAGES = 2_000
TEXT_PART_TYPES = ("text", "input_text", "output_text")

MessageRole = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class RequestToolCall:
    call_id: str
    tool: str
    arguments: dict[str, JSON]


@dataclass(frozen=True, kw_only=True)
class RequestMessage:
    """One message of the request; `tool_call_id` names the call whose result a tool message holds."""

    role: MessageRole
    text: str
    calls: Sequence[RequestToolCall] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """The `text` to answer now, after `history`; `instructions` shape the answer."""

    text: str
    history: list[RequestMessage] = field(default_factory=list)
    instructions: str = ""


class ContentPart(LenientModel):
    type: str
    text: str | None = None


class ChatToolFunction(LenientModel):
    name: str
    arguments: str = "{}"


class ChatToolCall(LenientModel):
    id: str
    function: ChatToolFunction


class ChatMessage(LenientModel):
    role: MessageRole
    content: str | list[ContentPart] | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None


class ResponseInputItem(LenientModel):
    """An item of the Responses API: a message, or another part of an earlier answer."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None


class ConversationReference(LenientModel):
    id: str


ConversationParam = Annotated[str | ConversationReference | None, Field(union_mode="left_to_right")]


def parse_chat_messages(messages: Sequence[ChatMessage]) -> TurnRequest:
    return build_turn_request([_convert_chat_message(message) for message in messages], param="messages")


def parse_response_input(items: str | Sequence[ResponseInputItem], instructions: str | None) -> TurnRequest:
    """Convert a text or a list of items. Reasoning that a client sends back is ignored."""
    if isinstance(items, str):
        messages = [RequestMessage(role="user", text=items)]
    else:
        messages = [_convert_input_item(item) for item in items if item.type != "reasoning"]
    system = [RequestMessage(role="system", text=instructions)] if instructions else []
    return build_turn_request([*system, *messages], param="input")


def refuse_unsupported_parameters(values: Mapping[str, object], reasons: Mapping[str, str]) -> None:
    """Refuse parameters that have a reason against them. Absent, empty and false values are fine."""
    for name, reason in reasons.items():
        if values.get(name):
            raise InvalidRequest(
                f"{name} is not supported: {reason}", code="unsupported_parameter", param=name
            )


def refuse_unsupported_format(kind: str) -> None:
    if kind != "text":
        raise InvalidRequest(
            f"The response format {kind[:50]!r} is not supported. Use text.",
            code="unsupported_parameter",
            param="response_format",
        )


def map_effort_to_mode(effort: str | None) -> str:
    """Map a reasoning effort to one of our modes. Medium effort is what a turn does by default."""
    match effort:
        case "none" | "minimal" | "low":
            return "fast"
        case "high" | "xhigh" | "max":
            return "deep"
        case _:
            return ""


def _convert_chat_message(message: ChatMessage) -> RequestMessage:
    calls = [
        RequestToolCall(
            call_id=call.id, tool=call.function.name, arguments=_parse_tool_arguments(call.function.arguments)
        )
        for call in message.tool_calls or ()
    ]
    return RequestMessage(
        role=message.role,
        text=_join_text_parts(message.content),
        calls=calls,
        tool_call_id=message.tool_call_id or "",
    )


def _convert_input_item(item: ResponseInputItem) -> RequestMessage:
    if item.type != "message" or item.role is None:
        raise InvalidRequest(f"input: items of type {item.type[:50]!r} are not supported.", param="input")
    return RequestMessage(role=item.role, text=_join_text_parts(item.content))


def _join_text_parts(content: str | Sequence[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in TEXT_PART_TYPES or part.text is None:
            raise InvalidRequest(
                f"Content of type {part.type[:50]!r} is not supported. Send text.",
                code="unsupported_content",
            )
    return "\n".join(part.text or "" for part in content)


def _parse_tool_arguments(text: str) -> dict[str, JSON]:
    """Parse a model's tool arguments; anything but an object is kept as text."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"arguments": text}


def build_turn_request(messages: Sequence[RequestMessage], *, param: str) -> TurnRequest:
    """Split messages into instructions, history, and the user's last messages, which are answered now."""
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequest(f"You can send up to {MAX_MESSAGES:,} messages.", param=param)
    instructions = "\n\n".join(
        message.text for message in messages if message.role in ("system", "developer")
    )
    history = [message for message in messages if message.role not in ("system", "developer")]
    latest: list[str] = []
    while history and history[-1].role == "user":
        latest.insert(0, history.pop().text)
    if not any(text.strip() for text in latest):
        raise InvalidRequest("The last message must be a user message with text.", param=param)
    return TurnRequest(text="\n\n".join(latest), history=history, instructions=instructions)
