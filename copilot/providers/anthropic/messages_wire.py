"""Encode requests as Anthropic Messages JSON, and decode the parts of stream events that we use."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import assert_never

import msgspec

from config.core.json_values import JSON
from copilot.providers import prompt_cache
from copilot.providers.base import (
    AssistantMessage,
    ImagePart,
    ModelMessage,
    ModelRequest,
    ProviderFailure,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    ToolSpecification,
    UserMessage,
    get_request_effort,
    merge_adjacent_messages,
)

ContentBlock = dict[str, JSON]

DEFAULT_MAX_TOKENS = 8_192  # the field is mandatory; every model in service allows this much
MIN_THINKING_BUDGET_TOKENS = 1_024  # the API refuses less
CONTINUE_NOTE = (
    "<system_note>Your last message was cut off. Continue exactly after its last character.</system_note>"
)
_not_in_ids = re.compile(r"[^A-Za-z0-9_-]")


# --- The request ---


def build_request_body(request: ModelRequest) -> dict[str, JSON]:
    """Put what never changes first and the messages last, with cache marks in between."""
    thinking, max_tokens = _thinking_fields(request)
    body: dict[str, JSON] = {"model": request.entry.model, "max_tokens": max_tokens, "stream": True}
    if request.effective_temperature is not None and not thinking:
        body["temperature"] = request.effective_temperature
    body |= thinking
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
    if system := [text for text in (request.system, request.suffix) if text.strip()]:
        body["system"] = [{"type": "text", "text": text} for text in system]
    body["messages"] = _encode_messages(request, replayed=bool(thinking))
    if prompt_cache.supports_cache_marks(request.entry):
        _mark_cache(body)
    return body


def _mark_cache(body: dict[str, JSON]) -> None:
    for name, mark in (("tools", prompt_cache.mark_last_tool), ("system", prompt_cache.mark_first_block)):
        if isinstance(parts := body.get(name), list):
            mark(parts)
    if isinstance(messages := body["messages"], list):
        prompt_cache.mark_last_messages(m["content"] for m in reversed(messages) if isinstance(m, dict))


def _thinking_fields(request: ModelRequest) -> tuple[dict[str, JSON], int]:
    entry = request.entry
    limit = entry.max_output_tokens or DEFAULT_MAX_TOKENS
    if not request.thinking_tokens or not entry.can_reason or _lacks_loop_reasoning(request):
        return {}, limit
    match entry.reasoning_style:
        case "adaptive":
            effort: ContentBlock = {"effort": get_request_effort(request)}
            return {"thinking": {"type": "adaptive"}, "output_config": effort}, limit
        case "budget":
            budget = max(MIN_THINKING_BUDGET_TOKENS, request.thinking_tokens)
            if not entry.max_output_tokens:
                limit = budget + DEFAULT_MAX_TOKENS
            elif budget >= limit:
                budget = limit // 2  # the other half is for the answer
            if budget < MIN_THINKING_BUDGET_TOKENS:
                return {}, limit
            return {"thinking": {"type": "enabled", "budget_tokens": budget}}, limit
        case _:
            return {}, limit


def _lacks_loop_reasoning(request: ModelRequest) -> bool:
    """Check for a tool loop without its reasoning, which the API refuses with a thinking budget.

    One remaining thinking block is enough, because a model need not think between two calls.
    """
    called = False
    for message in reversed(request.messages):
        if isinstance(message, AssistantMessage):
            if not message.calls or message.replay:
                return False
            called = True
        if isinstance(message, UserMessage) and not message.text.lstrip().startswith("<system_note"):
            break
    return called and request.entry.reasoning_style == "budget"


def _encode_messages(request: ModelRequest, *, replayed: bool) -> list[JSON]:
    messages: list[JSON] = []
    last_role, last_content = "", list[JSON]()
    for message in merge_adjacent_messages(_sanitize_call_ids(m) for m in request.messages):
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        content = _encode_content(message, images=request.entry.supports_images, replayed=replayed)
        if not content:
            continue
        if role == last_role:  # tool results first, then the user's text
            last_content += content
            continue
        last_role, last_content = role, content
        messages.append({"role": role, "content": last_content})
    if last_role == "assistant":  # a trailing answer would be a prefill, which newer models refuse
        messages.append({"role": "user", "content": [_text_block(CONTINUE_NOTE)]})
    return messages


def _sanitize_call_ids(message: ModelMessage) -> ModelMessage:
    """Replace characters in other vendors' call ids that this API refuses."""
    match message:
        case AssistantMessage(calls=calls) if calls:
            return replace(
                message, calls=tuple(replace(c, call_id=_sanitize_call_id(c.call_id)) for c in calls)
            )
        case ToolResultsMessage(results=results):
            return replace(
                message, results=tuple(replace(r, call_id=_sanitize_call_id(r.call_id)) for r in results)
            )
        case _:
            return message


def _sanitize_call_id(call_id: str) -> str:
    return _not_in_ids.sub("_", call_id)


def _encode_content(message: ModelMessage, *, images: bool, replayed: bool) -> list[JSON]:
    match message:
        case UserMessage():
            return [
                *_text_blocks(message.text),
                *(_encode_image(image) for image in message.images if images),
            ]
        case AssistantMessage():
            thoughts = (
                [block for data in message.replay if (block := _decode_replay(data))] if replayed else []
            )
            return [*thoughts, *_text_blocks(message.text), *(_encode_call(call) for call in message.calls)]
        case ToolResultsMessage():
            return [_encode_result(result, images=images) for result in message.results]
        case unreachable:
            assert_never(unreachable)


def _text_blocks(text: str) -> list[JSON]:
    """Leave out blank text blocks, which the API refuses."""
    return [_text_block(text)] if text.strip() else []


def _text_block(text: str) -> JSON:
    return {"type": "text", "text": text}


def _encode_image(image: ImagePart) -> JSON:
    source: ContentBlock = {"type": "base64", "media_type": image.mime, "data": image.base64}
    return {"type": "image", "source": source}


def _encode_call(call: ToolCall) -> JSON:
    return {"type": "tool_use", "id": call.call_id, "name": call.tool, "input": call.arguments or {}}


def _encode_result(result: ToolResult, *, images: bool) -> JSON:
    content: JSON = result.content
    if result.images and images:
        content = [*_text_blocks(result.content), *(_encode_image(image) for image in result.images)]
    block: ContentBlock = {"type": "tool_result", "tool_use_id": result.call_id, "content": content}
    return block if result.success else block | {"is_error": True}


def _encode_tool(tool: ToolSpecification) -> JSON:
    return {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}


def _decode_replay(data: str) -> ContentBlock | None:
    """Decode a thinking block of this provider; replay data of others is left out."""
    try:
        block = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
    known = isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")
    return block if known else None


# --- The stream ---


class MessagesDelta(msgspec.Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class MessageStart(msgspec.Struct):
    id: str = ""
    usage: object = None


class MessagesEvent(msgspec.Struct):
    type: str
    delta: MessagesDelta | None = None
    content_block: object = None
    message: MessageStart | None = None
    usage: object = None


_decoder = msgspec.json.Decoder(MessagesEvent)


def decode_event(payload: bytes) -> MessagesEvent:
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ProviderFailure(
            "malformed_stream", details="an event of the stream could not be parsed"
        ) from error
