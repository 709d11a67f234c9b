"""Define what a tool is: a name, a description, typed arguments, a coroutine and declarations for the loop."""

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

MAX_TOOL_WAIT_SECONDS = 300  # longer work is started by one call and polled by others
MIN_RESULT_CHARACTERS = 8_200  # 8,000 characters of output and the marker


class ToolArguments(BaseModel):
    """Base of every argument model. Harmless coercion is allowed, unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


ArgumentsT = TypeVar("ArgumentsT", bound=ToolArguments)


@dataclass(frozen=True, kw_only=True)
class ToolOutput:
    """The answer of a tool. A `value` that is not text is serialised with sorted keys."""

    value: JSON
    success: bool = True
    media: tuple[ImagePart, ...] = ()
    cost_microdollars: int | None = None  # actual cost of a billable call; without it the estimate counts
    session_id: str | None = None  # a session that people can open from the result
    reported_turn_id: str | None = None  # the ended turn of a sub-session whose result this is
    dry_run: bool = False  # nothing was delivered, so a priced tool is not charged
    sources: tuple[str, ...] = ()  # origins of untrusted text in the output


def _ignore_delivery() -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class ToolInvocation:
    """The context a running tool gets besides its arguments."""

    context: TurnContext
    call_id: str
    emit: Callable[[Event], None]  # only for events whose row is already committed
    # A priced tool that streams calls this at its first output.
    mark_delivered: Callable[[], None] = _ignore_delivery

    def report_progress(self, message: str) -> None:
        from copilot.realtime.events import ToolProgressed

        self.emit(ToolProgressed(call_id=self.call_id, message=message[:500]))


def _no_problem() -> str:
    return ""


def _cost_nothing() -> int:
    return 0


BoundTool = Callable[[ToolInvocation], Awaitable[ToolOutput]]  # a tool with its arguments already validated
ALWAYS_ASKS_REASON = "This tool always needs your approval."


class UntrustedContent(Protocol):
    """The untrusted text that the session has read before a call."""

    @property
    def sources(self) -> tuple[str, ...]: ...

    def knows_address(self, text: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class CallAssessment:
    """The approval a call needs and its estimated cost, known before it runs."""

    reason: str = ""  # why a person must approve it; empty if nobody has to
    estimate: int | None = None  # microdollars


@dataclass(frozen=True, kw_only=True)
class BaseTool(ABC):
    """Everything the registry and the loop know about a tool, independent of its argument types."""

    name: str
    description: str  # from the .md file beside the tool's code
    timeout_seconds: int = 60
    exclusive: bool = False
    repeatable: bool = False
    polling: bool = False
    read_only: bool = False
    # The output repeats what people, models or third parties wrote, so it is not searched for the installation's secrets.
    returns_user_text: bool = False
    untrusted_source: str = ""  # origin of all its output, if that is a third party
    # Returns the question to ask a person once the session has read untrusted text, or nothing for a harmless call.
    guard: Callable[[Mapping[str, JSON], UntrustedContent], str] | None = None
    interactive: bool = False  # offered only where a person can answer
    network: bool = False  # offered only to turns with network permission
    sub_sessions: bool = False  # offered only to turns that may start sub-sessions
    memory: bool = False  # offered only to turns that may use memory
    schedules: bool = False  # offered only to turns that may schedule tasks
    unavailable_reason: Callable[[], str] = _no_problem  # why it cannot work in this installation, or nothing
    approval: Literal["never", "ask", "manual_only"] = "never"  # "manual_only" asks whatever the settings are
    billable: bool = False  # costs money; runs without approval only within the session's cap
    price_cents: int = 0  # charged to the user's credits for a call that delivers something
    call_cost: Callable[[], int] = _cost_nothing  # microdollars counted against the user's limits

    @abstractmethod
    def specification(self) -> ToolSpecification: ...

    @abstractmethod
    def bind(self, arguments: Mapping[str, JSON]) -> BoundTool:
        """Validate the arguments and return the tool ready to run. Raises pydantic's ValidationError."""

    @property
    def may_need_approval(self) -> bool:
        return self.approval != "never"

    def assess_call(self, arguments: Mapping[str, JSON], context: TurnContext) -> CallAssessment:
        """Say whether the call needs approval and what it would cost.

        May read the database. Raises what `bind` raises.
        """
        self.bind(arguments)
        return CallAssessment(reason="" if self.approval == "never" else ALWAYS_ASKS_REASON)

    def pin_arguments(self, arguments: Mapping[str, JSON], context: TurnContext) -> dict[str, JSON]:
        """Resolve the arguments to ids and versions; an approval is valid for this meaning only.

        May read the database. The key `arguments` of the result replaces arguments of the call when it runs.
        """
        return {}


@cache
def _build_specification(name: str, description: str, arguments: type[ToolArguments]) -> ToolSpecification:
    """Build a specification once: pydantic takes a millisecond for a schema, and every turn offers every tool."""
    return ToolSpecification(name=name, description=description, parameters=arguments.model_json_schema())


@dataclass(frozen=True, kw_only=True)
class Tool(BaseTool, Generic[ArgumentsT]):
    arguments: type[ArgumentsT]
    run: Callable[[ArgumentsT, ToolInvocation], Awaitable[ToolOutput]]
    # Returns why this call needs approval, or nothing.
    approval_reason: Callable[[ArgumentsT, TurnContext], str] | None = None
    # Returns microdollars, or None when the cost cannot be known.
    estimate: Callable[[ArgumentsT, TurnContext], int | None] | None = None
    pins: Callable[[ArgumentsT, TurnContext], dict[str, JSON]] | None = None

    def specification(self) -> ToolSpecification:
        return _build_specification(self.name, self.description, self.arguments)

    def bind(self, arguments: Mapping[str, JSON]) -> BoundTool:
        return partial(self.run, self.arguments.model_validate(arguments))

    @property
    def may_need_approval(self) -> bool:
        return self.approval != "never" or self.approval_reason is not None

    def assess_call(self, arguments: Mapping[str, JSON], context: TurnContext) -> CallAssessment:
        validated = self.arguments.model_validate(arguments)
        reason = self.approval_reason(validated, context) if self.approval_reason is not None else ""
        if not reason and self.approval != "never":
            reason = ALWAYS_ASKS_REASON
        return CallAssessment(
            reason=reason, estimate=self.estimate(validated, context) if self.estimate else None
        )

    def pin_arguments(self, arguments: Mapping[str, JSON], context: TurnContext) -> dict[str, JSON]:
        return {} if self.pins is None else self.pins(self.arguments.model_validate(arguments), context)


def guard_always(question: str) -> Callable[[Mapping[str, JSON], UntrustedContent], str]:
    """Make a guard for a tool whose every call outlives the session or sends data out of it."""
    return lambda arguments, read: question


def load_description(code_file: str, **numbers: int) -> str:
    """Read the `.md` file beside a tool's `.py`, filling in numbers that settings decide (`$most`)."""
    text = Path(code_file).with_suffix(".md").read_text(encoding="utf-8").strip()
    return Template(text).substitute({name: f"{number:,}" for name, number in numbers.items()})


class ToolError(Exception):
    """A refusal by a tool, in words the model can act on."""

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
    content: str  # the model's copy: truncated, redacted, escaped
    preview: str
    duration_ms: int
    truncated: bool
    cancelled: bool = False  # stopped by a person, which is not a failure of the call
    file_id: str | None = None
    session_id: str | None = None
    reported_turn_id: str | None = None
    media: tuple[ImagePart, ...] = field(default=(), repr=False)
    cost_microdollars: int | None = None
    digest: str = ""  # of an output that the content only refers to
    sources: tuple[str, ...] = ()  # origins of untrusted text in the output
    summary: str = ""  # the outcome in a few words, for people


def get_file_scope(context: TurnContext) -> UUID | None:
    """Return the session whose files alone the turn's tools may see, or None for the whole workspace."""
    session_id = context.workspace.session_id
    return None if session_id is None else UUID(session_id)


@dataclass(frozen=True, kw_only=True)
class McpToolset:
    """The MCP servers' part of a turn's tools. Defined here because most turns never need the MCP SDK."""

    tools: tuple[BaseTool, ...] = ()
    instructions: str = ""  # appended to the session's system prompt
    absent: tuple[str, ...] = ()  # names of the servers whose tools are missing


EMPTY_MCP_TOOLSET = McpToolset()
