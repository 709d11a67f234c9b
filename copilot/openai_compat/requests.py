"""Convert requests in OpenAI's format to the history they bring along and what is to be answered.

Chat messages and Responses items become the same messages, and the parameters of both the same parameters. A parameter
is obeyed or refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from config.core.errors import InvalidRequest
from config.core.json_values import JSON
from config.core.text import make_storable
from copilot.chat.client_tools import ClientToolResult
from copilot.chat.turn_context import ClientTool
from copilot.openai_compat.base import LenientModel
from copilot.providers import catalogue
from copilot.providers.base import CatalogueEntry, OutputFormat, RequestParameters, accepts_sampling
from copilot.tools.calls import is_nested_too_deep

MAX_MESSAGES = 2_000
TEXT_PART_TYPES = ("text", "input_text", "output_text")
FILE_PART_TYPES = ("image_url", "input_image", "file", "input_file")

MessageRole = Literal["system", "developer", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class RequestToolCall:
    call_id: str
    tool: str
    arguments: dict[str, JSON]


@dataclass(frozen=True, kw_only=True)
class RequestFile:
    """An image or another file: at a URL, which may hold the data itself, or in the caller's workspace."""

    url: str = field(default="", repr=False)
    file_id: str = ""
    name: str = ""
    is_image: bool = False

    @property
    def is_remote(self) -> bool:
        return self.url.lower().startswith(("http://", "https://"))


@dataclass(frozen=True, kw_only=True)
class RequestMessage:
    """One message of the request; `tool_call_id` names the call whose result a tool message holds."""

    role: MessageRole
    text: str
    calls: Sequence[RequestToolCall] = ()
    tool_call_id: str = ""
    files: Sequence[RequestFile] = ()


@dataclass(frozen=True, kw_only=True)
class TurnRequest:
    """The `text` to answer now, after `history`; `instructions` shape the answer.

    Without a text, the request brings tool results and the answer continues after them. `results` are those at the end
    of the request, which are also part of the history.
    """

    text: str
    history: list[RequestMessage] = field(default_factory=list)
    instructions: str = ""
    results: list[ClientToolResult] = field(default_factory=list)
    files: list[RequestFile] = field(default_factory=list)  # sent with the text

    def list_files(self) -> list[RequestFile]:
        return [*(file for message in self.history for file in message.files), *self.files]


class ImageUrl(LenientModel):
    url: str


class FileContent(LenientModel):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


class ContentPart(LenientModel):
    """A part of a message: text, an image or a file, in the form of either API."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    file: FileContent | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


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
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None


class ConversationReference(LenientModel):
    id: str


ConversationParam = Annotated[str | ConversationReference | None, Field(union_mode="left_to_right")]


def parse_chat_messages(messages: Sequence[ChatMessage]) -> TurnRequest:
    return build_turn_request([_convert_chat_message(message) for message in messages], param="messages")


LoadItem = Callable[[str], RequestMessage]  # finds an item of an earlier response by its id


def parse_response_input(
    items: str | Sequence[ResponseInputItem], instructions: str | None, load_item: LoadItem
) -> TurnRequest:
    """Convert a text or a list of items. Reasoning that a client sends back is ignored."""
    if isinstance(items, str):
        messages = [RequestMessage(role="user", text=items)]
    else:
        messages = [_convert_input_item(item, load_item) for item in items if item.type != "reasoning"]
    system = [RequestMessage(role="system", text=instructions)] if instructions else []
    return build_turn_request([*system, *_join_adjacent_calls(messages)], param="input")


def _join_adjacent_calls(messages: Sequence[RequestMessage]) -> list[RequestMessage]:
    """Put the calls of one reply, which are items of their own, back into one message."""
    joined: list[RequestMessage] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last.role == message.role == "assistant" and message.calls:
            joined[-1] = replace(
                last,
                text="\n\n".join(filter(None, (last.text, message.text))),
                calls=[*last.calls, *message.calls],
            )
        else:
            joined.append(message)
    return joined


def refuse_unsupported_parameters(values: Mapping[str, object], reasons: Mapping[str, str]) -> None:
    """Refuse parameters that have a reason against them. Absent, empty and false values are fine."""
    for name, reason in reasons.items():
        if values.get(name):
            raise refuse_parameter(name, reason)


def map_effort_to_mode(effort: str | None) -> str:
    """Map a reasoning effort to one of our modes. Medium effort is what a turn does by default."""
    match effort:
        case "none" | "minimal" | "low":
            return "fast"
        case "high" | "xhigh" | "max":
            return "deep"
        case None | "medium":
            return ""
        case _:
            raise InvalidRequest(
                f"There is no reasoning effort {effort[:50]!r}.",
                code="invalid_value",
                param="reasoning_effort",
            )


def _convert_chat_message(message: ChatMessage) -> RequestMessage:
    calls = [
        RequestToolCall(
            call_id=call.id, tool=call.function.name, arguments=parse_tool_arguments(call.function.arguments)
        )
        for call in message.tool_calls or ()
    ]
    return RequestMessage(
        role=message.role,
        text=_join_text_parts(message.content),
        calls=calls,
        tool_call_id=message.tool_call_id or "",
        files=_collect_files(message.content, role=message.role),
    )


def _convert_input_item(item: ResponseInputItem, load_item: LoadItem) -> RequestMessage:
    match item:
        case ResponseInputItem(type="message", role=str() as role):
            files = _collect_files(item.content, role=role)
            return RequestMessage(role=role, text=_join_text_parts(item.content), files=files)
        case ResponseInputItem(type="function_call", call_id=str() as call_id, name=str() as name):
            arguments = parse_tool_arguments(item.arguments or "")
            call = RequestToolCall(call_id=call_id, tool=name, arguments=arguments)
            return RequestMessage(role="assistant", text="", calls=[call])
        case ResponseInputItem(type="function_call_output", call_id=str() as call_id):
            return RequestMessage(role="tool", text=_join_text_parts(item.output), tool_call_id=call_id)
        case ResponseInputItem(type="item_reference", id=str() as item_id):
            return load_item(item_id)
        case _:
            raise InvalidRequest(f"input: items of type {item.type[:50]!r} are not supported.", param="input")


def _join_text_parts(content: str | Sequence[ContentPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if part.type in TEXT_PART_TYPES and part.text is not None:
            texts.append(part.text)
        elif part.type == "refusal":
            texts.append(part.refusal or "")
        elif part.type not in FILE_PART_TYPES:
            raise InvalidRequest(
                f"Content of type {part.type[:50]!r} is not supported. Send text, images or files.",
                code="unsupported_content",
            )
    return "\n".join(texts)


def _collect_files(content: str | Sequence[ContentPart] | None, *, role: MessageRole) -> list[RequestFile]:
    if content is None or isinstance(content, str):
        return []
    found = [_convert_file_part(part) for part in content if part.type in FILE_PART_TYPES]
    if found and role != "user":
        raise InvalidRequest("Images and files belong to user messages.", code="unsupported_content")
    return found


def _convert_file_part(part: ContentPart) -> RequestFile:
    nested = part.file or FileContent()
    url = part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url
    file = RequestFile(
        url=url or part.file_url or part.file_data or nested.file_data or "",
        file_id=part.file_id or nested.file_id or "",
        name=(part.filename or nested.filename or "")[:255],
        is_image=part.type in ("image_url", "input_image"),
    )
    if not file.url and not file.file_id:
        raise InvalidRequest(
            f"Content of type {part.type!r} needs data, a URL or a file id.", code="invalid_file"
        )
    return file


def parse_tool_arguments(text: str) -> dict[str, JSON]:
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
    latest: list[RequestMessage] = []
    while history and history[-1].role == "user":
        latest.insert(0, history.pop())
    results = _list_last_results(history)
    says_something = any(message.text.strip() or message.files for message in latest)
    if not says_something and not (results and not latest):
        raise InvalidRequest(
            "The last message must be a user message with text, or the result of a tool call.", param=param
        )
    return TurnRequest(
        text="\n\n".join(message.text for message in latest),
        history=history,
        instructions=instructions,
        results=results,
        files=[file for message in latest for file in message.files],
    )


def _list_last_results(history: Sequence[RequestMessage]) -> list[ClientToolResult]:
    results: list[ClientToolResult] = []
    for message in reversed(history):
        if message.role != "tool":
            break
        results.insert(0, ClientToolResult(call_id=message.tool_call_id, text=message.text))
    return results


# --- Tools and parameters ----------------------------------------------------------------------------

MAX_CLIENT_TOOLS = 128
MAX_TOOL_CHARACTERS = 64_000  # of one tool's description and schema
MAX_FORMAT_CHARACTERS = 64_000
MAX_STOP_SEQUENCES = 4
MAX_METADATA_ENTRIES = 16
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class FunctionDefinition(LenientModel):
    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None


class JsonSchemaFormat(LenientModel):
    name: str = "response"
    schema_: Annotated[dict[str, object] | None, Field(alias="schema")] = None
    strict: bool | None = None


class PilothouseOptions(LenientModel):
    """Options of ours beside the vendor's: `client_only` offers the model no tools but the caller's."""

    tools: Literal["client_only"] | None = None


class SharedParameters(LenientModel):
    """The parameters that completions and responses share."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    user: Annotated[str, Field(max_length=512)] | None = None
    safety_identifier: Annotated[str, Field(max_length=512)] | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=MAX_METADATA_ENTRIES),
        ]
        | None
    ) = None
    pilothouse: PilothouseOptions | None = None
    top_logprobs: object = None


@dataclass(frozen=True, kw_only=True)
class ToolChoice:
    choice: Literal["auto", "none", "required", "tool"] = "auto"
    name: str = ""


def build_client_tools(functions: Sequence[FunctionDefinition]) -> tuple[ClientTool, ...]:
    if len(functions) > MAX_CLIENT_TOOLS:
        raise InvalidRequest(f"You can send up to {MAX_CLIENT_TOOLS} tools.", param="tools")
    tools = tuple(_build_client_tool(function) for function in functions)
    names = [tool.name for tool in tools]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"There are two tools named {repeated!r}.", param="tools")
    return tools


def _build_client_tool(function: FunctionDefinition) -> ClientTool:
    if not _TOOL_NAME.fullmatch(function.name):
        raise InvalidRequest(
            "A tool's name must have 1 to 64 letters, digits, underscores and dashes.", param="tools"
        )
    schema = function.parameters or {}
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"The parameters of {function.name!r} must be an object.", param="tools")
    schema_json = _encode_schema({"type": "object", "properties": {}, **schema}, param="tools")
    description = function.description or ""
    if len(schema_json) + len(description) > MAX_TOOL_CHARACTERS:
        raise InvalidRequest(
            f"A tool can have up to {MAX_TOOL_CHARACTERS:,} characters. {function.name!r} has more.",
            param="tools",
        )
    return ClientTool(name=function.name, description=make_storable(description), schema_json=schema_json)


def _encode_schema(schema: Mapping[str, object], *, param: str) -> str:
    value: JSON = msgspec.to_builtins(schema)
    if is_nested_too_deep(value):
        raise InvalidRequest("The schema is nested too deeply.", param=param)
    return make_storable(msgspec.json.encode(value).decode())


def build_output_format(kind: str, wanted: JsonSchemaFormat | None, *, param: str) -> OutputFormat | None:
    match kind:
        case "text":
            return None
        case "json_object":
            return OutputFormat()
        case "json_schema" if wanted is not None and wanted.schema_ is not None:
            if wanted.schema_.get("type", "object") != "object":
                raise InvalidRequest("The schema must be one of an object.", param=param)
            schema_json = _encode_schema(wanted.schema_, param=param)
            if len(schema_json) > MAX_FORMAT_CHARACTERS:
                raise InvalidRequest(
                    f"A schema can have up to {MAX_FORMAT_CHARACTERS:,} characters.", param=param
                )
            if not _TOOL_NAME.fullmatch(wanted.name):
                raise InvalidRequest("The schema's name is not valid.", param=param)
            return OutputFormat(name=wanted.name, schema_json=schema_json, strict=bool(wanted.strict))
        case "json_schema":
            raise InvalidRequest("The schema is missing.", param=param)
        case _:
            raise InvalidRequest(
                f"The response format {kind[:50]!r} is not supported. Use text, json_object or json_schema.",
                code="unsupported_parameter",
                param=param,
            )


def check_service_tier(tier: str | None) -> None:
    if tier not in (None, "auto", "default"):
        raise refuse_parameter("service_tier", "use auto or default.")


def check_parameters(parameters: RequestParameters, tier: str, tool_names: Sequence[str]) -> None:
    """Refuse parameters that the tier's model cannot obey."""
    if parameters.tool_choice == "tool" and parameters.forced_tool not in tool_names:
        raise InvalidRequest(
            f"tool_choice names {parameters.forced_tool[:64]!r}, which is not one of the tools.",
            param="tool_choice",
        )
    if parameters.tool_choice == "required" and not tool_names:
        raise InvalidRequest("tool_choice needs tools.", param="tool_choice")
    entry = catalogue.get_tier_entries().get(tier)
    if entry is not None:
        for name, reason in _find_unsupported(parameters, entry):
            raise refuse_parameter(name, reason)


def _find_unsupported(parameters: RequestParameters, entry: CatalogueEntry) -> Iterator[tuple[str, str]]:
    if not accepts_sampling(entry):
        if parameters.temperature not in (None, 1):
            yield "temperature", "this model decides itself how much to vary."
        if parameters.top_p not in (None, 1):
            yield "top_p", "this model decides itself how much to vary."
    if parameters.stop and entry.provider == "openai_responses":
        yield "stop", "this model's API has no such field."
    if parameters.seed is not None and entry.provider in ("openai_responses", "anthropic"):
        yield "seed", "this model's API has no such field."


def refuse_parameter(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is not supported: {reason}", code="unsupported_parameter", param=name)
