"""What a request of OpenAI's form asks for: the past it brings along, and what is said now (E4.2).

Chat messages and Responses items become the same lines. What only tunes a model is passed over; what would change the
form of the answer, and cannot be kept, is refused rather than forgotten.
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
    """One message of the request; `answers` names the call that a tool's line answers."""

    role: MessageRole
    text: str
    calls: Sequence[RequestToolCall] = ()
    answers: str = ""


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """`text` is said now, after `past`; `instructions` shape the answer."""

    text: str
    past: list[RequestMessage] = field(default_factory=list)
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
    """Of the Responses API: a message, or what an earlier answer consisted of besides."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None


class ConversationReference(LenientModel):
    id: str


ConversationParam = Annotated[str | ConversationReference | None, Field(union_mode="left_to_right")]


def parse_chat_messages(messages: Sequence[ChatMessage]) -> TurnRequest:
    return build_turn_request([_convert_chat_message(one) for one in messages], param="messages")


def parse_response_input(given: str | Sequence[ResponseInputItem], instructions: str | None) -> TurnRequest:
    """A text, or items; a model's own reasoning that a client sends back is nothing we need."""
    if isinstance(given, str):
        lines = [RequestMessage(role="user", text=given)]
    else:
        lines = [_convert_input_item(one) for one in given if one.type != "reasoning"]
    first = [RequestMessage(role="system", text=instructions)] if instructions else []
    return build_turn_request([*first, *lines], param="input")


def refuse_unsupported_parameters(given: Mapping[str, object], param_means: Mapping[str, str]) -> None:
    """`param_means` says of each parameter why it cannot be kept; absent, empty and false ones ask for nothing."""
    for name, why in param_means.items():
        if given.get(name):
            raise InvalidRequest(f"{name} is not supported: {why}", code="unsupported_parameter", param=name)


def refuse_unsupported_format(kind: str) -> None:
    if kind != "text":
        raise InvalidRequest(
            f"An answer in the format {kind[:50]!r} cannot be promised.",
            code="unsupported_parameter",
            param="response_format",
        )


def map_effort_to_mode(effort: str | None) -> str:
    """An effort in OpenAI's words as a mode of ours; the middle is what a turn does by itself."""
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
            call_id=one.id, tool=one.function.name, arguments=_parse_tool_arguments(one.function.arguments)
        )
        for one in message.tool_calls or ()
    ]
    return RequestMessage(
        role=message.role,
        text=_join_text_parts(message.content),
        calls=calls,
        answers=message.tool_call_id or "",
    )


def _convert_input_item(item: ResponseInputItem) -> RequestMessage:
    if item.type != "message" or item.role is None:
        raise InvalidRequest(f"input: an item of the type {item.type[:50]!r} cannot be taken.", param="input")
    return RequestMessage(role=item.role, text=_join_text_parts(item.content))


def _join_text_parts(content: str | Sequence[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in TEXT_PART_TYPES or part.text is None:
            raise InvalidRequest(
                f"A part of the type {part.type[:50]!r} cannot be taken; send text.",
                code="unsupported_content",
            )
    return "\n".join(part.text or "" for part in content)


def _parse_tool_arguments(text: str) -> dict[str, JSON]:
    """A model may have written anything here; what is no object is kept as the text it was."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"arguments": text}


def build_turn_request(lines: Sequence[RequestMessage], *, param: str) -> TurnRequest:
    """Instructions wherever they stand, the last words of the user, and what lies between."""
    if len(lines) > MAX_MESSAGES:
        raise InvalidRequest(f"At most {MAX_MESSAGES:,} messages can be taken.", param=param)
    instructions = "\n\n".join(one.text for one in lines if one.role in ("system", "developer"))
    past = [one for one in lines if one.role not in ("system", "developer")]
    now: list[str] = []
    while past and past[-1].role == "user":
        now.insert(0, past.pop().text)
    if not any(text.strip() for text in now):
        raise InvalidRequest("The last message must be the user's, and not empty.", param=param)
    return TurnRequest(text="\n\n".join(now), past=past, instructions=instructions)
