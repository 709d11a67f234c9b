"""The Responses wire: our request as JSON, and its stream events as structs that hold only what we use."""

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

MAX_CALL_ID_CHARACTERS = 64  # the API refuses longer ones; other vendors make them


# --- the request -------------------------------------------------------------------------------------


def encode_request(request: ModelRequest) -> bytes:
    """The body. What never changes stands first and the items last, for the server's prefix cache."""
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
    thinker = entry.model if reasoning else ""
    items: list[JSON] = []
    for message in merge_adjacent_messages(request.messages):
        items += _encode_items(message, images=entry.supports_images, thinker=thinker)
    body["input"] = items
    return msgspec.json.encode(body)


def _reasoning_fields(request: ModelRequest) -> dict[str, JSON]:
    """Nothing at all unless the catalogue declares how to ask (A14.5); some models refuse even the `include`."""
    if not request.thinking_tokens or not request.entry.can_reason:
        return {}
    if request.entry.reasoning_style not in ("effort", "gateway"):
        return {}
    asked: dict[str, JSON] = {"effort": get_request_effort(request), "summary": "auto"}
    return {"include": ["reasoning.encrypted_content"], "reasoning": asked}


def _encode_tool(tool: ToolSpecification) -> JSON:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "strict": False,  # left out it means true, which refuses optional parameters
    }


def _encode_items(message: ModelMessage, *, images: bool, thinker: str) -> list[JSON]:
    match message:
        case UserMessage():
            content = _encode_content(message.text, message.images, images)
            return [{"type": "message", "role": "user", "content": content}]
        case AssistantMessage():
            return _encode_reply(message, thinker)
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


def _encode_content(text: str, pictures: Sequence[ImagePart], sees: bool) -> JSON:
    """Plain text unless there is something to see; then text first (A29.4)."""
    if not pictures or not sees:
        return text
    parts: list[JSON] = [{"type": "input_text", "text": text}] if text else []
    return parts + [
        {"type": "input_image", "image_url": image.data_url, "detail": "auto"} for image in pictures
    ]


def _encode_reply(message: AssistantMessage, thinker: str) -> list[JSON]:
    """Text, then calls, each thought before what it led to. A thought that led to nothing is refused: left out."""
    thoughts = [thought for data in message.replay if (thought := _decode_replay(data, thinker))]
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


# --- thoughts that go back (A14.3) -------------------------------------------------------------------


class SealedReasoning(msgspec.Struct, frozen=True, tag_field="wire", tag="openai_responses"):
    """A sealed reasoning item and where it stood in its reply. Only its own model can open it."""

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


def _decode_replay(data: str, thinker: str) -> SealedReasoning | None:
    """A thought we handed out; another provider's or another model's stays out (A14.4)."""
    try:
        thought = _replay_decoder.decode(data)
    except msgspec.DecodeError:
        return None
    return thought if thought.model == thinker else None


# --- the stream --------------------------------------------------------------------------------------
# Fields that servers fill freely are `object`: a surprise in one of them must not cost the whole event.


class ResponseObject(msgspec.Struct):
    """Of the whole object, which repeats the instructions and all output, only the end of it."""

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
        raise ProviderFailure("malformed_stream", details="an event of the stream cannot be read") from error


def get_incomplete_reason(response: ResponseObject) -> str:
    details = response.incomplete_details
    reason = details.get("reason") if isinstance(details, dict) else None
    return reason if isinstance(reason, str) else ""


def encode_error(response: ResponseObject) -> str:
    """A failed response's error alone: the rest of the object holds the conversation's own words."""
    error = response.error or {"message": "the provider gave no reason"}
    return msgspec.json.encode({"error": error}).decode()
