"""Encode requests as Chat Completions JSON, and decode the parts of chunks that we use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import assert_never

import msgspec
import structlog

from config.core.json_values import JSON
from copilot.providers import prompt_cache
from copilot.providers.base import (
    AssistantMessage,
    ImagePart,
    ModelMessage,
    ModelRequest,
    ProviderFailure,
    ToolCall,
    ToolResultsMessage,
    ToolSpecification,
    UserMessage,
    get_request_effort,
    join_system_text,
    merge_adjacent_messages,
)

log = structlog.get_logger(__name__)

WireMessage = dict[str, JSON]

# --- The request ---


def encode_request(request: ModelRequest, *, official: bool) -> bytes:
    """Encode the body, with what never changes first and the messages last, for prefix caches."""
    entry = request.entry
    body: dict[str, JSON] = {"model": entry.model, "stream": True, "stream_options": {"include_usage": True}}
    if entry.max_output_tokens:
        name = "max_completion_tokens" if official else "max_tokens"
        body[name] = entry.max_output_tokens
    if request.effective_temperature is not None:
        body["temperature"] = request.effective_temperature
    body |= _reasoning_fields(request)
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
    messages: list[WireMessage] = []
    if system := join_system_text(request):
        messages.append({"role": "system", "content": system})
    for message in merge_adjacent_messages(request.messages):
        messages += _encode_message(message, images=entry.supports_images, thoughts=entry.replays_reasoning)
    if prompt_cache.supports_cache_marks(entry):
        _mark_cache(request, body, messages)
    body["messages"] = list[JSON](messages)
    return msgspec.json.encode(body)


def _mark_cache(request: ModelRequest, body: dict[str, JSON], messages: list[WireMessage]) -> None:
    """Turn every text into a part, which can carry a mark, so that unmarked messages look the same."""
    for message in messages:
        if isinstance(text := message["content"], str) and text.strip():  # the API refuses blank parts
            message["content"] = [_text_part(text)]
    if isinstance(tools := body.get("tools"), list):
        prompt_cache.mark_last_tool(tools)
    marked = messages
    if messages and messages[0]["role"] == "system":
        marked = messages[1:]
        system = [_text_part(text) for text in (request.system, request.suffix) if text.strip()]
        prompt_cache.mark_first_block(system)
        messages[0]["content"] = system
    prompt_cache.mark_last_messages(message["content"] for message in reversed(marked))


def _reasoning_fields(request: ModelRequest) -> dict[str, JSON]:
    """Send nothing unless the catalogue declares how to request reasoning."""
    if not request.thinking_tokens or not request.entry.can_reason:
        return {}
    match request.entry.reasoning_style:
        case "effort":
            return {"reasoning_effort": get_request_effort(request)}
        case "gateway" if request.effort is not None:
            return {"reasoning": {"effort": request.effort}}
        case "gateway":
            return {"reasoning": {"max_tokens": request.thinking_tokens}}
        case _:
            return {}


def _encode_tool(tool: ToolSpecification) -> JSON:
    function: dict[str, JSON] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _encode_message(message: ModelMessage, *, images: bool, thoughts: bool) -> list[WireMessage]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": _encode_content(message.text, message.images, images)}]
        case AssistantMessage():
            encoded: WireMessage = {"role": "assistant", "content": message.text or None}
            if message.calls:
                encoded["tool_calls"] = [_encode_call(call) for call in message.calls]
            if message.calls and thoughts:  # such servers require the field, even if it is empty
                encoded["reasoning_content"] = "".join(map(_decode_replay, message.replay))
            return [encoded]
        case ToolResultsMessage():
            return [
                {
                    "role": "tool",
                    "tool_call_id": r.call_id,
                    "content": _encode_content(r.content, r.images, images),
                }
                for r in message.results
            ]
        case unreachable:
            assert_never(unreachable)


def _encode_content(text: str, images: Sequence[ImagePart], supports_images: bool) -> JSON:
    """Use plain text unless there are images to send; then put the text first."""
    if not images or not supports_images:
        return text
    parts: list[JSON] = [_text_part(text)] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": image.data_url}} for image in images]


def _text_part(text: str) -> JSON:
    return {"type": "text", "text": text}


def _encode_call(call: ToolCall) -> JSON:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return {"id": call.call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


# --- Replayed reasoning ---


class _ReasoningText(msgspec.Struct, frozen=True, tag_field="wire", tag="openai_chat"):
    text: str


_replay_decoder = msgspec.json.Decoder(_ReasoningText)


def encode_replay(text: str) -> str:
    return msgspec.json.encode(_ReasoningText(text)).decode()


def _decode_replay(data: str) -> str:
    """Decode reasoning of this wire format; that of others is left out."""
    try:
        return _replay_decoder.decode(data).text
    except msgspec.DecodeError:
        return ""


# --- The chunks ---
# Fields that servers fill freely are `object`, so that a surprise in one does not break the whole chunk.


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: object = None


class ToolCallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class ChatDelta(msgspec.Struct):
    content: object = None
    reasoning: object = None
    reasoning_content: object = None
    reasoning_details: object = None
    refusal: object = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoice(msgspec.Struct):
    delta: ChatDelta | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct):
    id: object = None
    choices: list[ChatChoice] | None = None
    usage: object = None
    error: object = None


_decoder = msgspec.json.Decoder(ChatChunk)


def decode_chunk(payload: bytes) -> ChatChunk:
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return _decode_leniently(payload)


def _decode_leniently(payload: bytes) -> ChatChunk:
    """Accept NaN, which Python servers write although it is no JSON; anything worse is a broken stream."""
    try:
        return msgspec.convert(json.loads(payload), ChatChunk)
    except (ValueError, RecursionError) as error:  # undecodable, or decoded into another shape
        raise ProviderFailure(
            "malformed_stream", details="a chunk of the stream could not be parsed"
        ) from error


def stringify_arguments(arguments: object) -> str:
    """Encode arguments that some servers send as an object instead of text."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def extract_reasoning(delta: ChatDelta) -> str:
    for field in (delta.reasoning, delta.reasoning_content):
        if isinstance(field, str):
            if field:
                return field
        elif field is not None:
            log.warning("reasoning_not_text", field_type=type(field).__name__)
    return _details_text(delta.reasoning_details) if delta.reasoning_details else ""


def _details_text(details: object) -> str:
    if not isinstance(details, list):
        log.warning("reasoning_details_not_list", field_type=type(details).__name__)
        return ""
    return "".join(_detail_text(entry) for entry in details)


def _detail_text(entry: object) -> str:
    """Prefer text over summary; encrypted and unknown types show nothing."""
    if not isinstance(entry, dict):
        return ""
    kind = entry.get("type")
    if kind is not None and kind not in ("reasoning.text", "reasoning.summary", "text", "summary"):
        return ""
    found = (entry.get("text"), entry.get("summary"))
    return next((text for text in found if isinstance(text, str) and text), "")


def split_content_parts(content: object) -> tuple[str, str]:
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    parts = [part for part in content if isinstance(part, dict)]
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    thought = [
        split_content_parts(part.get("thinking"))[0] for part in parts if part.get("type") == "thinking"
    ]
    return "".join(text for text in texts if isinstance(text, str)), "".join(thought)
