"""What every provider speaks: a request in, a stream of typed items or one classified failure out (A5.1)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

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

ReasoningEffort = Literal[
    "max", "xhigh", "high", "medium", "low", "minimal"
]  # from the most thinking to the least
ReasoningStyle = Literal["none", "budget", "adaptive", "effort", "gateway"]


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """One model of the catalogue (A4.1): how to reach it and what it can do."""

    name: str  # shown to people
    provider: Literal["openai_chat", "openai_responses", "anthropic", "scripted"]
    model: str
    base_url: str = ""
    credential: str = field(default="", repr=False)
    context_window: int = 0  # 0 = unknown
    max_output_tokens: int = 0  # 0 = do not send the field
    supports_tools: bool = True
    supports_images: bool = False
    media_in_tool_results: bool = False  # else pictures of results follow their group (A9.9)
    can_reason: bool = False
    reasoning_style: ReasoningStyle = "none"  # how thinking is asked for; "none" sends nothing
    replays_reasoning: bool = (
        False  # a chat server that refuses a tool loop without its `reasoning_content` (A14.3)
    )
    efforts: tuple[ReasoningEffort, ...] = ()  # the levels it takes; empty = all
    first_token_timeout_seconds: float = 120.0
    demo: bool = False  # scripted: labelled everywhere (A4.6)
    version: int = 0  # grows with every edit of its row


@dataclass(frozen=True, kw_only=True)
class ToolSpecification:
    name: str
    description: str
    parameters: Mapping[str, JSON]  # JSON Schema of an object


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A complete call. `arguments` is None when the model's text was not a JSON object (A8.2)."""

    call_id: str
    tool: str
    arguments: dict[str, JSON] | None
    raw_arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class ImagePart:
    mime: str
    data: bytes = field(repr=False)
    name: str = ""  # of its file, for models that cannot see it
    file_id: str = ""  # where it is kept; empty until it is

    @cached_property
    def base64(self) -> str:
        """Made once, however often the conversation is sent."""
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
    replay: tuple[str, ...] = ()  # opaque, provider's own JSON, same turn only (A14.3)
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
class ModelRequest:
    entry: CatalogueEntry
    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpecification, ...] = ()
    thinking_tokens: int = 0  # 0 = no reasoning parameter at all (A14.5)
    suffix: str = ""  # the per-session part of the system text (A15.1)
    effort: ReasoningEffort | None = None  # instead of the level that thinking_tokens mean (A7.4)
    temperature: float | None = None  # of models that take one

    @property
    def effective_temperature(self) -> float | None:
        """The temperature to send: models that decide themselves how much to think refuse any."""
        entry = self.entry
        return None if entry.can_reason and entry.reasoning_style != "budget" else self.temperature


# --- items -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseIdReceived:
    """The provider's own name for the reply, as soon as it is told: one that is cut off is asked about by it."""

    response_id: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningReplay:
    """Opaque data that must go back unchanged inside this turn's tool loop."""

    data: str


@dataclass(frozen=True, slots=True)
class CallFragment:
    """A piece of a tool call; any field may be empty (A8.1)."""

    index: int | None
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class UsageReported:
    """Cumulative for the call; a later one replaces an earlier one."""

    tokens: Tokens
    cost: str | None = None  # the provider's own figure in USD, as text (B4.4)


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
    """One classified failure of a model call (A6.2). `details` is already clean and short."""

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
        self.provider = provider  # whose it was, once a turn fails with it
        self.model = model
        self.refused_before_work = refused_before_work  # nothing to bill (B4.1)


class Provider(Protocol):
    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Items of one reply, ending with `Finished`; raises ProviderFailure. The caller closes it."""
        ...


# MERGED providers.messages: What every wire needs of a conversation: neighbours of one role merged, a continued answer recognised.

# Thinking tokens up to which an effort is named; above: high.
EFFORT_BY_THINKING_TOKENS: tuple[tuple[int, ReasoningEffort], ...] = ((2_048, "low"), (16_384, "medium"))


def merge_adjacent_messages(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Strict servers refuse two messages of one role in a row (A5.5)."""
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
    """Whether the reply goes on after a partial answer, so that its first newlines count."""
    match messages:
        case [*_, AssistantMessage(calls=())]:
            return True
        case [*_, AssistantMessage(calls=()), UserMessage(text=text)]:
            return text.lstrip().startswith("<system_note")
        case _:
            return False


def pick_effort(thinking_tokens: int) -> ReasoningEffort:
    return next((name for most, name in EFFORT_BY_THINKING_TOKENS if thinking_tokens <= most), "high")


def get_request_effort(request: ModelRequest) -> ReasoningEffort:
    return request.effort or pick_effort(request.thinking_tokens)


def join_system_text(request: ModelRequest) -> str:
    return _join_paragraphs(request.system, request.suffix)
