"""What a tool is: a name, prose, typed arguments, a coroutine, and declarations (A9.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Generic, Literal, Protocol, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from config.core.json_values import JSON
from copilot.chat.turn_context import TurnContext
from copilot.providers.base import ImagePart, ToolSpecification
from copilot.realtime.events import Event

MAX_TOOL_WAIT_SECONDS = 300  # longer work starts and is polled (A9.5)
MIN_RESULT_CHARACTERS = 8_200  # every call keeps 8,000 characters of its output, and the marker (A9.6)


class ToolArguments(BaseModel):
    """Base of every argument model: harmless coercion, unknown fields refused by name (A8.6)."""

    model_config = ConfigDict(extra="forbid")


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """What a tool answers. `value` that is not text is serialised with sorted keys (A9.7)."""

    value: JSON
    success: bool = True
    media: tuple[ImagePart, ...] = ()
    cost_microdollars: int | None = None  # of a billable call, where it is known; else its estimate counts
    session_id: str | None = None  # a conversation that people may open from here
    dry_run: bool = False  # nothing was delivered: a priced tool costs nothing (B9.8)
    sources: tuple[str, ...] = ()  # where text in it came from that strangers wrote


def _ignore_delivery() -> None:
    """Most tools cost nothing."""


@dataclass(frozen=True, kw_only=True)
class ToolInvocation:
    """What a running tool is given besides its arguments."""

    context: TurnContext
    call_id: str
    emit: Callable[[Event], None]  # the row behind the event already stands
    mark_delivered: Callable[[], None] = (
        _ignore_delivery  # a priced tool that streams says it at its first output (B9.8)
    )

    def report_progress(self, message: str) -> None:
        from copilot.realtime.events import ToolProgressed

        self.emit(ToolProgressed(call_id=self.call_id, message=message[:500]))


def _no_problem() -> str:
    return ""


def _cost_nothing() -> int:
    return 0


BoundTool = Callable[[ToolInvocation], Awaitable[ToolOutput]]  # a tool with its arguments already validated
ALWAYS_ASKS_REASON = "This tool always asks first."


class UntrustedContent(Protocol):
    """What the conversation has read of strangers before a call."""

    @property
    def sources(self) -> tuple[str, ...]: ...

    def knows_address(self, text: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class CallAssessment:
    """One call before it runs: why a person must be asked, if at all, and what it would cost (A11.1)."""

    reason: str = ""
    estimate: int | None = None  # microdollars


@dataclass(frozen=True, kw_only=True)
class BaseTool(ABC):
    """What is known of a tool whatever its arguments are: the registry and the loop see no more."""

    name: str
    description: str  # the prose beside the tool's code
    timeout_seconds: int = 60
    exclusive: bool = False
    repeatable: bool = False
    polling: bool = False
    read_only: bool = False
    # Its output repeats what people, models or strangers wrote, so no secret of the installation is looked for in it.
    returns_user_text: bool = False
    untrusted_source: str = ""  # whose words every output of it is, if they are a stranger's
    # What a person is asked once the conversation has read untrusted text, or nothing where the call is harmless.
    guard: Callable[[Mapping[str, JSON], UntrustedContent], str] | None = None
    interactive: bool = False  # offered only where a person can answer (A12.5)
    network: bool = False  # offered only to turns that may reach out (A20.1)
    sub_sessions: bool = False  # offered only to turns that may start others (A20.1)
    memory: bool = False  # offered only to turns that may remember (A20.1)
    schedules: bool = False  # offered only to turns that may let tasks run by the clock (A20.1)
    unavailable_reason: Callable[[], str] = (
        _no_problem  # why it cannot work in this installation, or nothing (A32.2)
    )
    approval: Literal["never", "ask", "manual_only"] = (
        "never"  # the last asks whatever the settings are (A11.12)
    )
    billable: bool = False  # costs money of its own; runs unasked only within a session's cap (A11.11)
    price_cents: int = 0  # of its user's credits, for a call that delivers something (B9.8)
    call_cost: Callable[[], int] = (
        _cost_nothing  # microdollars that a call takes of its user's allowance, as settings price it
    )

    @abstractmethod
    def specification(self) -> ToolSpecification: ...

    @abstractmethod
    def bind(self, arguments: Mapping[str, JSON]) -> BoundTool:
        """The tool ready to run; raises pydantic's ValidationError, before anything has happened (A8.6)."""

    @property
    def may_need_approval(self) -> bool:
        """Whether its calls have to be weighed before they run; of most tools none has."""
        return self.approval != "never"

    def assess_call(self, arguments: Mapping[str, JSON], context: TurnContext) -> CallAssessment:
        """What is to be known before the call runs; may read the database, raises what `bind` raises (A11.1)."""
        self.bind(arguments)
        return CallAssessment(reason="" if self.approval == "never" else ALWAYS_ASKS_REASON)

    def pin_arguments(self, arguments: Mapping[str, JSON], context: TurnContext) -> dict[str, JSON]:
        """What the arguments mean now, by ids and versions; an approval fits no other meaning. May read the database.

        `arguments` in it replace those of the call when it runs.
        """
        return {}


@cache
def _build_specification(name: str, description: str, arguments: type[ToolArguments]) -> ToolSpecification:
    """Made once: pydantic takes a millisecond for a schema, and every turn offers every tool."""
    return ToolSpecification(name=name, description=description, parameters=arguments.model_json_schema())


@dataclass(frozen=True, kw_only=True)
class Tool(BaseTool, Generic[ArgumentsT]):
    arguments: type[ArgumentsT]
    run: Callable[[ArgumentsT, ToolInvocation], Awaitable[ToolOutput]]
    approval_reason: Callable[[ArgumentsT, TurnContext], str] | None = (
        None  # why this very call needs a person's word, or nothing
    )
    estimate: Callable[[ArgumentsT, TurnContext], int | None] | None = (
        None  # microdollars; None when nobody can tell
    )
    pins: Callable[[ArgumentsT, TurnContext], dict[str, JSON]] | None = None

    def specification(self) -> ToolSpecification:
        return _build_specification(self.name, self.description, self.arguments)

    def bind(self, arguments: Mapping[str, JSON]) -> BoundTool:
        return partial(self.run, self.arguments.model_validate(arguments))

    @property
    def may_need_approval(self) -> bool:
        return self.approval != "never" or self.approval_reason is not None

    def assess_call(self, arguments: Mapping[str, JSON], context: TurnContext) -> CallAssessment:
        given = self.arguments.model_validate(arguments)
        reason = self.approval_reason(given, context) if self.approval_reason is not None else ""
        if not reason and self.approval != "never":
            reason = ALWAYS_ASKS_REASON
        return CallAssessment(
            reason=reason, estimate=self.estimate(given, context) if self.estimate else None
        )

    def pin_arguments(self, arguments: Mapping[str, JSON], context: TurnContext) -> dict[str, JSON]:
        return {} if self.pins is None else self.pins(self.arguments.model_validate(arguments), context)


def guard_always(question: str) -> Callable[[Mapping[str, JSON], UntrustedContent], str]:
    """For a tool whose every call outlives the conversation or leaves it."""
    return lambda arguments, read: question


def load_description(code_file: str, **numbers: int) -> str:
    """The `.md` beside a tool's `.py`, with the numbers that an installation sets in their places (`$most`)."""
    text = Path(code_file).with_suffix(".md").read_text(encoding="utf-8").strip()
    return Template(text).substitute({name: f"{number:,}" for name, number in numbers.items()})


class ToolError(Exception):
    """A tool says no, in words the model can act on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, kw_only=True)
class ToolCallOutcome:
    """One finished call, as it is stored and as the model gets it."""

    call_id: str
    tool: str
    success: bool
    content: str  # the model's copy: capped, redacted, escaped
    preview: str
    duration_ms: int
    truncated: bool
    cancelled: bool = False  # somebody stopped it, which is no failure of its own (A9.4)
    file_id: str | None = None
    session_id: str | None = None
    media: tuple[ImagePart, ...] = field(default=(), repr=False)
    cost_microdollars: int | None = None
    digest: str = ""  # of the output that the content only points at (A9.8)
    sources: tuple[str, ...] = ()  # where text in it came from that strangers wrote


# MERGED tools.scope: Which files a turn's tools may see (A20.1, S3).


def get_file_scope(context: TurnContext) -> UUID | None:
    """The session whose files alone are visible, or None for the whole workspace."""
    session_id = context.workspace.session_id
    return None if session_id is None else UUID(session_id)


# MERGED tools.outside: What MCP servers bring to a turn; known without the SDK, which most turns never need (A28).


@dataclass(frozen=True, kw_only=True)
class McpToolset:
    tools: tuple[BaseTool, ...] = ()
    instructions: str = ""  # for the session's suffix
    absent: tuple[str, ...] = ()  # names of the servers whose tools are missing


EMPTY_MCP_TOOLSET = McpToolset()
