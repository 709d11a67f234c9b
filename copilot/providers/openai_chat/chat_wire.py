"""The Chat Completions wire: our request as JSON, a server's chunk as a struct that holds only what we use."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
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
    ToolResultsMessage,
    ToolSpecification,
    UserMessage,
    get_request_effort,
    join_system_text,
    merge_adjacent_messages,
)

_log = logging.getLogger(__name__)

WireMessage = dict[str, JSON]

# --- the request -------------------------------------------------------------------------------------


def encode_request(request: ModelRequest, *, official: bool) -> bytes:
    """The body. What never changes stands first and the messages last, for the servers' prefix caches."""
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
    """Marks stand on parts, so every text becomes one: with or without its mark a message stays the same (A15.9)."""
    for message in messages:
        if isinstance(text := message["content"], str) and text.strip():  # a blank part is refused
            message["content"] = [_text_part(text)]
    if isinstance(tools := body.get("tools"), list):
        prompt_cache.mark_last_tool(tools)
    said = messages
    if messages and messages[0]["role"] == "system":
        said = messages[1:]
        system = [_text_part(text) for text in (request.system, request.suffix) if text.strip()]
        prompt_cache.mark_first_block(system)
        messages[0]["content"] = system
    prompt_cache.mark_last_messages(message["content"] for message in reversed(said))


def _reasoning_fields(request: ModelRequest) -> dict[str, JSON]:
    """Nothing at all unless the catalogue declares how to ask (A14.5)."""
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
            said: WireMessage = {"role": "assistant", "content": message.text or None}
            if message.calls:
                said["tool_calls"] = [_encode_call(call) for call in message.calls]
            if message.calls and thoughts:  # such servers miss the field, not what would stand in it
                said["reasoning_content"] = "".join(map(_decode_replay, message.replay))
            return [said]
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


def _encode_content(text: str, pictures: Sequence[ImagePart], sees: bool) -> JSON:
    """Plain text unless there is something to see; then text first (A29.4)."""
    if not pictures or not sees:
        return text
    parts: list[JSON] = [_text_part(text)] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": image.data_url}} for image in pictures]


def _text_part(text: str) -> JSON:
    return {"type": "text", "text": text}


def _encode_call(call: ToolCall) -> JSON:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return {"id": call.call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


# --- thoughts that go back (A14.3) -------------------------------------------------------------------


class _ReasoningText(msgspec.Struct, frozen=True, tag_field="wire", tag="openai_chat"):
    text: str


_replay_decoder = msgspec.json.Decoder(_ReasoningText)


def encode_replay(text: str) -> str:
    """A reply's thoughts as replay data."""
    return msgspec.json.encode(_ReasoningText(text)).decode()


def _decode_replay(data: str) -> str:
    """Ours; another wire's stay out (A14.4)."""
    try:
        return _replay_decoder.decode(data).text
    except msgspec.DecodeError:
        return ""


# --- the chunks --------------------------------------------------------------------------------------
# Fields that servers fill freely are `object`: a surprise in one of them must not cost the whole chunk.


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
    """Python servers write NaN, which is no JSON; anything worse is a broken stream."""
    try:
        return msgspec.convert(json.loads(payload), ChatChunk)
    except (ValueError, RecursionError) as error:  # undecodable, or decoded into another shape
        raise ProviderFailure("malformed_stream", details="a chunk of the stream cannot be read") from error


def stringify_arguments(arguments: object) -> str:
    """Some servers send the arguments as an object instead of its text."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def extract_reasoning(delta: ChatDelta) -> str:
    """The delta's thought: the first of the three variants that says something (A14.1)."""
    for field in (delta.reasoning, delta.reasoning_content):
        if isinstance(field, str):
            if field:
                return field
        elif field is not None:
            _log.warning("a provider sent reasoning that is no text; it is left out")
    return _details_text(delta.reasoning_details) if delta.reasoning_details else ""


def _details_text(details: object) -> str:
    if not isinstance(details, list):
        _log.warning("a provider sent reasoning details that are no list; they are left out")
        return ""
    return "".join(_detail_text(entry) for entry in details)


def _detail_text(entry: object) -> str:
    """Text before summary; encrypted and unknown types show nothing."""
    if not isinstance(entry, dict):
        return ""
    kind = entry.get("type")
    if kind is not None and kind not in ("reasoning.text", "reasoning.summary", "text", "summary"):
        return ""
    found = (entry.get("text"), entry.get("summary"))
    return next((text for text in found if isinstance(text, str) and text), "")


def split_content_parts(content: object) -> tuple[str, str]:
    """(text, thought) of content that comes as a list of parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    parts = [part for part in content if isinstance(part, dict)]
    said = [part.get("text") for part in parts if part.get("type") == "text"]
    thought = [
        split_content_parts(part.get("thinking"))[0] for part in parts if part.get("type") == "thinking"
    ]
    return "".join(text for text in said if isinstance(text, str)), "".join(thought)
