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

from copilot.compat.doors import Lenient
from copilot.errors import InvalidRequest
from copilot.events import JSON

MAX_MESSAGES = 2_000
TEXTS = ("text", "input_text", "output_text")

Role = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class Call:
    call_id: str
    tool: str
    arguments: dict[str, JSON]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One message of the request; `answers` names the call that a tool's line answers."""

    role: Role
    text: str
    calls: Sequence[Call] = ()
    answers: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """`text` is said now, after `past`; `instructions` shape the answer."""

    text: str
    past: list[Line] = field(default_factory=list)
    instructions: str = ""


class Part(Lenient):
    type: str
    text: str | None = None


class Function(Lenient):
    name: str
    arguments: str = "{}"


class ToolCall(Lenient):
    id: str
    function: Function


class ChatMessage(Lenient):
    role: Role
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class Item(Lenient):
    """Of the Responses API: a message, or what an earlier answer consisted of besides."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None


class Reference(Lenient):
    id: str


Conversation = Annotated[str | Reference | None, Field(union_mode="left_to_right")]


def of_chat(messages: Sequence[ChatMessage]) -> Asked:
    return of_lines([_line(one) for one in messages], param="messages")


def of_input(given: str | Sequence[Item], instructions: str | None) -> Asked:
    """A text, or items; a model's own reasoning that a client sends back is nothing we need."""
    if isinstance(given, str):
        lines = [Line(role="user", text=given)]
    else:
        lines = [_message(one) for one in given if one.type != "reasoning"]
    first = [Line(role="system", text=instructions)] if instructions else []
    return of_lines([*first, *lines], param="input")


def refuse_unkept(given: Mapping[str, object], param_means: Mapping[str, str]) -> None:
    """`param_means` says of each parameter why it cannot be kept; absent, empty and false ones ask for nothing."""
    for name, why in param_means.items():
        if given.get(name):
            raise InvalidRequest(f"{name} is not supported: {why}", code="unsupported_parameter", param=name)


def refuse_format(kind: str) -> None:
    if kind != "text":
        raise InvalidRequest(
            f"An answer in the format {kind[:50]!r} cannot be promised.",
            code="unsupported_parameter",
            param="response_format",
        )


def mode_for(effort: str | None) -> str:
    """An effort in OpenAI's words as a mode of ours; the middle is what a turn does by itself."""
    match effort:
        case "none" | "minimal" | "low":
            return "fast"
        case "high" | "xhigh" | "max":
            return "deep"
        case _:
            return ""


def _line(message: ChatMessage) -> Line:
    calls = [
        Call(call_id=one.id, tool=one.function.name, arguments=_arguments(one.function.arguments))
        for one in message.tool_calls or ()
    ]
    return Line(
        role=message.role, text=_text(message.content), calls=calls, answers=message.tool_call_id or ""
    )


def _message(item: Item) -> Line:
    if item.type != "message" or item.role is None:
        raise InvalidRequest(f"input: an item of the type {item.type[:50]!r} cannot be taken.", param="input")
    return Line(role=item.role, text=_text(item.content))


def _text(content: str | Sequence[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in TEXTS or part.text is None:
            raise InvalidRequest(
                f"A part of the type {part.type[:50]!r} cannot be taken; send text.",
                code="unsupported_content",
            )
    return "\n".join(part.text or "" for part in content)


def _arguments(text: str) -> dict[str, JSON]:
    """A model may have written anything here; what is no object is kept as the text it was."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = text
    return value if isinstance(value, dict) else {"arguments": text}


def of_lines(lines: Sequence[Line], *, param: str) -> Asked:
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
    return Asked(text="\n\n".join(now), past=past, instructions=instructions)
