"""The Chat Completions wire: our request as JSON, a server's chunk as a struct that holds only what we use."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import assert_never

import msgspec

from copilot.events import JSON
from copilot.providers import caching
from copilot.providers.base import (
    AssistantMessage,
    ImagePart,
    ModelMessage,
    ProviderFailure,
    Request,
    ToolCall,
    ToolGroup,
    ToolSpecification,
    UserMessage,
)
from copilot.providers.messages import effort_of, merged, system_text

_log = logging.getLogger(__name__)

Message = dict[str, JSON]

# --- the request -------------------------------------------------------------------------------------


def encode(request: Request, *, official: bool) -> bytes:
    """The body. What never changes stands first and the messages last, for the servers' prefix caches."""
    entry = request.entry
    body: dict[str, JSON] = {"model": entry.model, "stream": True, "stream_options": {"include_usage": True}}
    if entry.max_output_tokens:
        name = "max_completion_tokens" if official else "max_tokens"
        body[name] = entry.max_output_tokens
    if request.sampling is not None:
        body["temperature"] = request.sampling
    body |= _reasoning(request)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    messages: list[Message] = []
    if system := system_text(request):
        messages.append({"role": "system", "content": system})
    for message in merged(request.messages):
        messages += _messages(message, images=entry.supports_images, thoughts=entry.replays_reasoning)
    if caching.takes_marks(entry):
        _mark(request, body, messages)
    body["messages"] = list[JSON](messages)
    return msgspec.json.encode(body)


def _mark(request: Request, body: dict[str, JSON], messages: list[Message]) -> None:
    """Marks stand on parts, so every text becomes one: with or without its mark a message stays the same (A15.9)."""
    for message in messages:
        if isinstance(text := message["content"], str) and text.strip():  # a blank part is refused
            message["content"] = [_text(text)]
    if isinstance(tools := body.get("tools"), list):
        caching.mark_last_tool(tools)
    said = messages
    if messages and messages[0]["role"] == "system":
        said = messages[1:]
        system = [_text(text) for text in (request.system, request.suffix) if text.strip()]
        caching.mark_first(system)
        messages[0]["content"] = system
    caching.mark_messages(message["content"] for message in reversed(said))


def _reasoning(request: Request) -> dict[str, JSON]:
    """Nothing at all unless the catalogue declares how to ask (A14.5)."""
    if not request.thinking_tokens or not request.entry.can_reason:
        return {}
    match request.entry.reasoning_style:
        case "effort":
            return {"reasoning_effort": effort_of(request)}
        case "gateway" if request.effort is not None:
            return {"reasoning": {"effort": request.effort}}
        case "gateway":
            return {"reasoning": {"max_tokens": request.thinking_tokens}}
        case _:
            return {}


def _tool(tool: ToolSpecification) -> JSON:
    function: dict[str, JSON] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _messages(message: ModelMessage, *, images: bool, thoughts: bool) -> list[Message]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": _content(message.text, message.images, images)}]
        case AssistantMessage():
            said: Message = {"role": "assistant", "content": message.text or None}
            if message.calls:
                said["tool_calls"] = [_call(call) for call in message.calls]
            if message.calls and thoughts:  # such servers miss the field, not what would stand in it
                said["reasoning_content"] = "".join(map(_thought, message.replay))
            return [said]
        case ToolGroup():
            return [
                {"role": "tool", "tool_call_id": r.call_id, "content": _content(r.content, r.images, images)}
                for r in message.results
            ]
        case unreachable:
            assert_never(unreachable)


def _content(text: str, pictures: Sequence[ImagePart], sees: bool) -> JSON:
    """Plain text unless there is something to see; then text first (A29.4)."""
    if not pictures or not sees:
        return text
    parts: list[JSON] = [_text(text)] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": image.data_url}} for image in pictures]


def _text(text: str) -> JSON:
    return {"type": "text", "text": text}


def _call(call: ToolCall) -> JSON:
    arguments = msgspec.json.encode(call.arguments or {}).decode()
    return {"id": call.call_id, "type": "function", "function": {"name": call.tool, "arguments": arguments}}


# --- thoughts that go back (A14.3) -------------------------------------------------------------------


class _Thought(msgspec.Struct, frozen=True, tag_field="wire", tag="openai_chat"):
    text: str


_thoughts = msgspec.json.Decoder(_Thought)


def sealed(text: str) -> str:
    """A reply's thoughts as replay data."""
    return msgspec.json.encode(_Thought(text)).decode()


def _thought(data: str) -> str:
    """Ours; another wire's stay out (A14.4)."""
    try:
        return _thoughts.decode(data).text
    except msgspec.DecodeError:
        return ""


# --- the chunks --------------------------------------------------------------------------------------
# Fields that servers fill freely are `object`: a surprise in one of them must not cost the whole chunk.


class FunctionDelta(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: object = None


class CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct):
    content: object = None
    reasoning: object = None
    reasoning_content: object = None
    reasoning_details: object = None
    refusal: object = None
    tool_calls: list[CallDelta] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    id: object = None
    choices: list[Choice] | None = None
    usage: object = None
    error: object = None


_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(payload: bytes) -> Chunk:
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return _decode_leniently(payload)


def _decode_leniently(payload: bytes) -> Chunk:
    """Python servers write NaN, which is no JSON; anything worse is a broken stream."""
    try:
        return msgspec.convert(json.loads(payload), Chunk)
    except (ValueError, RecursionError) as error:  # undecodable, or decoded into another shape
        raise ProviderFailure("malformed_stream", details="a chunk of the stream cannot be read") from error


def arguments_text(arguments: object) -> str:
    """Some servers send the arguments as an object instead of its text."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return msgspec.json.encode(arguments).decode()


def visible_reasoning(delta: Delta) -> str:
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


def part_texts(content: object) -> tuple[str, str]:
    """(text, thought) of content that comes as a list of parts."""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        return "", ""
    parts = [part for part in content if isinstance(part, dict)]
    said = [part.get("text") for part in parts if part.get("type") == "text"]
    thought = [part_texts(part.get("thinking"))[0] for part in parts if part.get("type") == "thinking"]
    return "".join(text for text in said if isinstance(text, str)), "".join(thought)
