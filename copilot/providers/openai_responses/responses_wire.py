"""Encode requests as Responses JSON, and decode the parts of stream events that we use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import assert_never

import msgspec

from config.core.json_values import JSON
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

MAX_CALL_ID_CHARACTERS = 64  # the API refuses longer ids, which other vendors make


# --- The request ---


def encode_request(request: ModelRequest) -> bytes:
    """Encode the body, with what never changes first and the items last, for the prefix cache."""
    entry = request.entry
    body: dict[str, JSON] = {"model": entry.model, "stream": True, "store": False}
    if entry.max_output_tokens:
        body["max_output_tokens"] = entry.max_output_tokens
    if request.effective_temperature is not None:
        body["temperature"] = request.effective_temperature
    reasoning = _reasoning_fields(request)
    body |= reasoning
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
    if system := join_system_text(request):
        body["instructions"] = system
    reasoning_model = entry.model if reasoning else ""
    items: list[JSON] = []
    for message in merge_adjacent_messages(request.messages):
        items += _encode_items(message, images=entry.supports_images, reasoning_model=reasoning_model)
    body["input"] = items
    return msgspec.json.encode(body)


def _reasoning_fields(request: ModelRequest) -> dict[str, JSON]:
    """Send nothing unless the catalogue declares how to request it; some models refuse even `include`."""
    if not request.thinking_tokens or not request.entry.can_reason:
        return {}
    if request.entry.reasoning_style not in ("effort", "gateway"):
        return {}
    fields: dict[str, JSON] = {"effort": get_request_effort(request), "summary": "auto"}
    return {"include": ["reasoning.encrypted_content"], "reasoning": fields}


def _encode_tool(tool: ToolSpecification) -> JSON:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "strict": False,  # the default is true, which refuses optional parameters
    }


def _encode_items(message: ModelMessage, *, images: bool, reasoning_model: str) -> list[JSON]:
    match message:
        case UserMessage():
            content = _encode_content(message.text, message.images, images)
            return [{"type": "message", "role": "user", "content": content}]
        case AssistantMessage():
            return _encode_reply(message, reasoning_model)
        case ToolResultsMessage():
            return [
                {
                    "type": "function_call_output",
                    "call_id": _shorten_call_id(r.call_id),
                    "output": _encode_content(r.content, r.images, images),
                }
                for r in message.results
            ]
        case unreachable:
            assert_never(unreachable)


def _encode_content(text: str, images: Sequence[ImagePart], supports_images: bool) -> JSON:
    """Use plain text unless there are images to send; then put the text first."""
    if not images or not supports_images:
        return text
    parts: list[JSON] = [{"type": "input_text", "text": text}] if text else []
    return parts + [
        {"type": "input_image", "image_url": image.data_url, "detail": "auto"} for image in images
    ]


def _encode_reply(message: AssistantMessage, reasoning_model: str) -> list[JSON]:
    """Put each reasoning item before what it led to; one that led to nothing would be refused."""
    thoughts = [thought for data in message.replay if (thought := _decode_replay(data, reasoning_model))]
    items: list[JSON] = []
    if message.text.strip():
        items += [thought.item for thought in thoughts if thought.is_leading]
        items.append({"type": "message", "role": "assistant", "content": message.text})
        thoughts = [thought for thought in thoughts if not thought.is_leading]
    for number, call in enumerate(message.calls):
        items += [thought.item for thought in thoughts if thought.after_calls == number]
        items.append(_encode_call(call))
    return items


def _encode_call(call: ToolCall) -> JSON:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return {
        "type": "function_call",
        "call_id": _shorten_call_id(call.call_id),
        "name": call.tool,
        "arguments": arguments,
    }


def _shorten_call_id(call_id: str) -> str:
    if len(call_id) <= MAX_CALL_ID_CHARACTERS:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:40]}"


# --- Replayed reasoning ---


class SealedReasoning(msgspec.Struct, frozen=True, tag_field="wire", tag="openai_responses"):
    """An encrypted reasoning item and its position in the reply. Only its own model can read it."""

    model: str
    sealed: str  # the item's JSON
    after_text: bool = False
    after_calls: int = 0

    @property
    def is_leading(self) -> bool:
        return not self.after_text and not self.after_calls

    @property
    def item(self) -> JSON:
        value: JSON = msgspec.json.decode(self.sealed)
        return value


_replay_decoder = msgspec.json.Decoder(SealedReasoning)


def _decode_replay(data: str, reasoning_model: str) -> SealedReasoning | None:
    """Decode reasoning of this wire format and model; that of others is left out."""
    try:
        thought = _replay_decoder.decode(data)
    except msgspec.DecodeError:
        return None
    return thought if thought.model == reasoning_model else None


# --- The stream ---
# Fields that servers fill freely are `object`, so that a surprise in one does not break the whole event.


class ResponseObject(msgspec.Struct):
    """The status of a response, without the instructions and output that it repeats."""

    id: object = None
    status: object = None
    error: object = None
    incomplete_details: object = None
    usage: object = None


class ResponsesEvent(msgspec.Struct):
    type: str = ""
    delta: object = None
    output_index: int | None = None
    item: object = None
    response: ResponseObject | None = None
    error: object = None


_decoder = msgspec.json.Decoder(ResponsesEvent)


def decode_event(payload: bytes) -> ResponsesEvent:
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ProviderFailure(
            "malformed_stream", details="an event of the stream could not be parsed"
        ) from error


def get_incomplete_reason(response: ResponseObject) -> str:
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else ""


def encode_error(response: ResponseObject) -> str:
    """Encode only the error of a failed response, because the rest contains the conversation."""
    error = response.error or {"message": "the provider gave no reason"}
    return msgspec.json.encode({"error": error}).decode()
