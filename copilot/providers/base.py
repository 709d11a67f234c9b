"""Define what every provider speaks: a request in, a stream of typed items or one classified failure out."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import msgspec

from config.core.json_values import JSON
from copilot.realtime.payloads import Tokens

FailureCode = Literal[
    "quota_exhausted",
    "rate_limited",
    "auth_failed",
    "model_not_found",
    "context_overflow",
    "overloaded",
    "effort_invalid",
    "thinking_unsupported",
    "thinking_signature_invalid",
    "media_unsupported",
    "no_response",
    "malformed_stream",
    "refused",
    "bad_request",
    "unknown",
]

# From the most thinking to the least.
ReasoningEffort = Literal["max", "xhigh", "high", "medium", "low", "minimal"]
ReasoningStyle = Literal["none", "budget", "adaptive", "effort", "gateway"]


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A model of the catalogue: how to reach it and what it can do."""

    name: str  # shown to people
    provider: Literal["openai_chat", "openai_responses", "anthropic", "scripted"]
    model: str
    base_url: str = ""
    credential: str = field(default="", repr=False)
    context_window: int = 0  # 0 = unknown
    max_output_tokens: int = 0  # 0 = do not send the field
    supports_tools: bool = True
    supports_images: bool = False
    media_in_tool_results: bool = False  # otherwise images of results follow their group
    can_reason: bool = False
    reasoning_style: ReasoningStyle = "none"  # how thinking is requested; "none" sends nothing
    # A chat server that refuses a tool loop without its `reasoning_content`.
    replays_reasoning: bool = False
    efforts: tuple[ReasoningEffort, ...] = ()  # the accepted levels; empty = all
    first_token_timeout_seconds: float = 120.0
    demo: bool = False  # scripted, and labelled as such everywhere
    version: int = 0  # increases with every edit of its row


@dataclass(frozen=True, kw_only=True)
class ToolSpecification:
    name: str
    description: str
    parameters: Mapping[str, JSON]  # JSON Schema of an object


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A complete call. `arguments` is None if the model's text was not a JSON object."""

    call_id: str
    tool: str
    arguments: dict[str, JSON] | None
    raw_arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class ImagePart:
    mime: str
    data: bytes = field(repr=False)
    name: str = ""  # of the file, for models that cannot see the image
    file_id: str = ""  # empty until it is stored

    @cached_property
    def base64(self) -> str:
        """Encode the image once, however often the conversation is sent."""
        return base64.b64encode(self.data).decode()

    @property
    def data_url(self) -> str:
        return f"data:{self.mime};base64,{self.base64}"


@dataclass(frozen=True, kw_only=True)
class UserMessage:
    text: str
    images: tuple[ImagePart, ...] = ()
    role: Literal["user"] = "user"


@dataclass(frozen=True, kw_only=True)
class AssistantMessage:
    text: str
    calls: tuple[ToolCall, ...] = ()
    replay: tuple[str, ...] = ()  # the provider's opaque JSON, only within the same turn
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    call_id: str
    tool: str
    content: str
    success: bool = True
    images: tuple[ImagePart, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToolResultsMessage:
    """All results of one reply, in call order."""

    results: tuple[ToolResult, ...]
    role: Literal["tool"] = "tool"


ModelMessage = UserMessage | AssistantMessage | ToolResultsMessage


@dataclass(frozen=True, kw_only=True)
class OutputFormat:
    """The JSON that an answer must be: any object, or a value that matches the schema."""

    schema_json: str = ""  # empty: any JSON object
    name: str = "response"
    strict: bool = False

    @cached_property
    def schema(self) -> dict[str, JSON] | None:
        return msgspec.json.decode(self.schema_json, type=dict) if self.schema_json else None


@dataclass(frozen=True, kw_only=True)
class RequestParameters:
    """The wishes of an API caller for the model calls of a turn; None and empty leave it to the provider."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool_choice: Literal["auto", "none", "required", "tool"] = "auto"
    forced_tool: str = ""  # with the choice "tool"
    parallel_tool_calls: bool | None = None
    output_format: OutputFormat | None = None


NO_PARAMETERS = RequestParameters()


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    entry: CatalogueEntry
    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpecification, ...] = ()
    thinking_tokens: int = 0  # 0 = no reasoning parameter at all
    suffix: str = ""  # the session's part of the system prompt
    effort: ReasoningEffort | None = None  # overrides the level that thinking_tokens imply
    temperature: float | None = None  # for models that accept one
    parameters: RequestParameters = NO_PARAMETERS

    @property
    def effective_temperature(self) -> float | None:
        """Return the temperature to send; models that decide how much to think refuse any."""
        return self.temperature if accepts_sampling(self.entry) else None


def accepts_sampling(entry: CatalogueEntry) -> bool:
    """Tell whether a model takes a temperature and the like; those that decide how much to think refuse them."""
    return not entry.can_reason or entry.reasoning_style == "budget" or entry.provider == "scripted"


# --- Stream items ---


@dataclass(frozen=True, slots=True)
class ResponseIdReceived:
    """The provider's id of the reply, sent early so that an interrupted reply can be looked up."""

    response_id: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningReplay:
    """Opaque data that must be sent back unchanged inside this turn's tool loop."""

    data: str


@dataclass(frozen=True, slots=True)
class CallFragment:
    """A piece of a tool call; any field may be empty."""

    index: int | None
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class UsageReported:
    """Usage of the whole call so far; a later report replaces an earlier one."""

    tokens: Tokens
    cost: str | None = None  # the provider's own figure in USD, as text


FinishReason = Literal["stop", "length", "tool_calls", "refused", "overflow"]


@dataclass(frozen=True, slots=True)
class ReplyFinished:
    reason: FinishReason
    response_id: str = ""


StreamItem = (
    ResponseIdReceived
    | TextDelta
    | ReasoningDelta
    | ReasoningReplay
    | CallFragment
    | UsageReported
    | ReplyFinished
)


class ProviderFailure(Exception):
    """A classified failure of a model call. `details` is already clean and short."""

    def __init__(
        self,
        code: FailureCode,
        *,
        details: str = "",
        status: int | None = None,
        retry_after_seconds: float | None = None,
        request_id: str = "",
        provider: str = "",
        model: str = "",
        refused_before_work: bool = False,
    ) -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code: FailureCode = code
        self.details = details
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.request_id = request_id
        self.provider = provider  # set once a turn fails because of it
        self.model = model
        self.refused_before_work = refused_before_work  # nothing to bill


class Provider(Protocol):
    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the items of one reply, ending with `ReplyFinished`, or raise ProviderFailure.

        The caller closes the iterator.
        """
        ...


# --- Shared by all providers ---

# The highest number of thinking tokens for each effort; above them it is "high".
EFFORT_BY_THINKING_TOKENS: tuple[tuple[int, ReasoningEffort], ...] = ((2_048, "low"), (16_384, "medium"))


def merge_adjacent_messages(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Merge neighbours of one role, because strict servers refuse two in a row."""
    result: list[ModelMessage] = []
    for message in messages:
        last = result[-1] if result else None
        if isinstance(last, UserMessage) and isinstance(message, UserMessage):
            result[-1] = UserMessage(
                text=_join_paragraphs(last.text, message.text), images=last.images + message.images
            )
        elif isinstance(last, AssistantMessage) and isinstance(message, AssistantMessage) and not last.calls:
            result[-1] = AssistantMessage(
                text=_join_paragraphs(last.text, message.text),
                calls=message.calls,
                replay=last.replay + message.replay,
            )
        else:
            result.append(message)
    return result


def _join_paragraphs(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first and second else first or second


def is_continuation(messages: Sequence[ModelMessage]) -> bool:
    """Check whether the reply continues a partial answer, so that its leading newlines count."""
    match messages:
        case [*_, AssistantMessage(calls=())]:
            return True
        case [*_, AssistantMessage(calls=()), UserMessage(text=text)]:
            return text.lstrip().startswith("<system_note")
        case _:
            return False


def pick_effort(thinking_tokens: int) -> ReasoningEffort:
    return next(
        (name for max_tokens, name in EFFORT_BY_THINKING_TOKENS if thinking_tokens <= max_tokens), "high"
    )


def get_request_effort(request: ModelRequest) -> ReasoningEffort:
    return request.effort or pick_effort(request.thinking_tokens)


def join_system_text(request: ModelRequest) -> str:
    return _join_paragraphs(request.system, request.suffix)
