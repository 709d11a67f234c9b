"""What a tool is: a name, prose, typed arguments, a coroutine, and declarations (A9.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from copilot.context import TurnContext
from copilot.events import JSON, Event
from copilot.providers.base import ImagePart, ToolSpecification

MAX_TOOL_WAIT_SECONDS = 300  # longer work starts and is polled (A9.5)
LEAST_CHARACTERS = 8_200  # every call keeps 8,000 characters of its output, and the marker (A9.6)


class Arguments(BaseModel):
    """Base of every argument model: harmless coercion, unknown fields refused by name (A8.6)."""

    model_config = ConfigDict(extra="forbid")


A = TypeVar("A", bound=Arguments)


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


def _nothing_happens() -> None:
    """Most tools cost nothing."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """What a running tool is given besides its arguments."""

    context: TurnContext
    call_id: str
    emit: Callable[[Event], None]  # the row behind the event already stands
    delivered: Callable[[], None] = (
        _nothing_happens  # a priced tool that streams says it at its first output (B9.8)
    )

    def progress(self, message: str) -> None:
        from copilot.events import ToolProgressed

        self.emit(ToolProgressed(call_id=self.call_id, message=message[:500]))


def _nothing() -> str:
    return ""


def _free() -> int:
    return 0


Bound = Callable[[Invocation], Awaitable[ToolOutput]]  # a tool with its arguments already validated
ALWAYS_ASKS = "This tool always asks first."


class UntrustedReadings(Protocol):
    """What the conversation has read of strangers before a call."""

    @property
    def sources(self) -> tuple[str, ...]: ...

    def knows_address(self, text: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """One call before it runs: why a person must be asked, if at all, and what it would cost (A11.1)."""

    reason: str = ""
    estimate: int | None = None  # microdollars


@dataclass(frozen=True, kw_only=True)
class AnyTool(ABC):
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
    untrusted: str = ""  # whose words every output of it is, if they are a stranger's
    # What a person is asked once the conversation has read untrusted text, or nothing where the call is harmless.
    guard: Callable[[Mapping[str, JSON], UntrustedReadings], str] | None = None
    interactive: bool = False  # offered only where a person can answer (A12.5)
    network: bool = False  # offered only to turns that may reach out (A20.1)
    sub_sessions: bool = False  # offered only to turns that may start others (A20.1)
    memory: bool = False  # offered only to turns that may remember (A20.1)
    schedules: bool = False  # offered only to turns that may let tasks run by the clock (A20.1)
    missing: Callable[[], str] = _nothing  # why it cannot work in this installation, or nothing (A32.2)
    approval: Literal["never", "ask", "manual_only"] = (
        "never"  # the last asks whatever the settings are (A11.12)
    )
    billable: bool = False  # costs money of its own; runs unasked only within a session's cap (A11.11)
    price_cents: int = 0  # of its user's credits, for a call that delivers something (B9.8)
    costs: Callable[[], int] = (
        _free  # microdollars that a call takes of its user's allowance, as settings price it
    )

    @abstractmethod
    def specification(self) -> ToolSpecification: ...

    @abstractmethod
    def bind(self, arguments: Mapping[str, JSON]) -> Bound:
        """The tool ready to run; raises pydantic's ValidationError, before anything has happened (A8.6)."""

    @property
    def may_ask(self) -> bool:
        """Whether its calls have to be weighed before they run; of most tools none has."""
        return self.approval != "never"

    def weigh(self, arguments: Mapping[str, JSON], context: TurnContext) -> Weighed:
        """What is to be known before the call runs; may read the database, raises what `bind` raises (A11.1)."""
        self.bind(arguments)
        return Weighed(reason="" if self.approval == "never" else ALWAYS_ASKS)

    def pin(self, arguments: Mapping[str, JSON], context: TurnContext) -> dict[str, JSON]:
        """What the arguments mean now, by ids and versions; an approval fits no other meaning. May read the database.

        `arguments` in it replace those of the call when it runs.
        """
        return {}


@cache
def _specified(name: str, description: str, arguments: type[Arguments]) -> ToolSpecification:
    """Made once: pydantic takes a millisecond for a schema, and every turn offers every tool."""
    return ToolSpecification(name=name, description=description, parameters=arguments.model_json_schema())


@dataclass(frozen=True, kw_only=True)
class Tool(AnyTool, Generic[A]):
    arguments: type[A]
    run: Callable[[A, Invocation], Awaitable[ToolOutput]]
    asks: Callable[[A, TurnContext], str] | None = (
        None  # why this very call needs a person's word, or nothing
    )
    estimate: Callable[[A, TurnContext], int | None] | None = None  # microdollars; None when nobody can tell
    pins: Callable[[A, TurnContext], dict[str, JSON]] | None = None

    def specification(self) -> ToolSpecification:
        return _specified(self.name, self.description, self.arguments)

    def bind(self, arguments: Mapping[str, JSON]) -> Bound:
        return partial(self.run, self.arguments.model_validate(arguments))

    @property
    def may_ask(self) -> bool:
        return self.approval != "never" or self.asks is not None

    def weigh(self, arguments: Mapping[str, JSON], context: TurnContext) -> Weighed:
        given = self.arguments.model_validate(arguments)
        reason = self.asks(given, context) if self.asks is not None else ""
        if not reason and self.approval != "never":
            reason = ALWAYS_ASKS
        return Weighed(reason=reason, estimate=self.estimate(given, context) if self.estimate else None)

    def pin(self, arguments: Mapping[str, JSON], context: TurnContext) -> dict[str, JSON]:
        return {} if self.pins is None else self.pins(self.arguments.model_validate(arguments), context)


def guard_act(question: str) -> Callable[[Mapping[str, JSON], UntrustedReadings], str]:
    """For a tool whose every call outlives the conversation or leaves it."""
    return lambda arguments, read: question


def prose(code_file: str, **numbers: int) -> str:
    """The `.md` beside a tool's `.py`, with the numbers that an installation sets in their places (`$most`)."""
    text = Path(code_file).with_suffix(".md").read_text(encoding="utf-8").strip()
    return Template(text).substitute({name: f"{number:,}" for name, number in numbers.items()})


class ToolFailed(Exception):
    """A tool says no, in words the model can act on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
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
