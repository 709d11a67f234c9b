"""The identity and abilities of the running turn, as one immutable object in a context variable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec

from config.core.json_values import JSON
from copilot.chat.permissions import UNRESTRICTED, Permissions, intersect_permissions
from copilot.providers.base import NO_PARAMETERS, RequestParameters, ToolSpecification

# A builder session edits one agent, and its prompt contains the guide already.
BUILDER_DENIED_TOOLS = frozenset({"create_agent", "get_agent_guide"})


@dataclass(frozen=True, kw_only=True)
class PersonalityPrompt:
    prompt: str
    tone: str = ""
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The version of an agent that a session runs."""

    instructions: str
    tools: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Configuration of the session and its owner at the time its turn was claimed."""

    personality: PersonalityPrompt | None = None
    user_instructions: str = ""  # the user's instructions for every session
    instructions: str = ""  # … and for this one
    agent: AgentConfig | None = None
    is_builder: bool = False
    allowed_tools: list[str] | None = None
    timezone: str = "UTC"
    memory_enabled: bool = True

    def restrict_permissions(self, permissions: Permissions) -> Permissions:
        for names in (self.allowed_tools, self.agent.tools if self.agent else None):
            if names is not None:
                permissions = intersect_permissions(
                    permissions, replace(UNRESTRICTED, tools=frozenset(names))
                )
        if self.is_builder:
            permissions = intersect_permissions(
                permissions, replace(UNRESTRICTED, denied_tools=BUILDER_DENIED_TOOLS)
            )
        return permissions if self.memory_enabled else replace(permissions, memory=False)


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Abilities of the channel a turn came in by. Neither has a default: each channel declares both."""

    async_delivery: bool
    interactive: bool


CHANNELS_BY_ORIGIN: dict[str, Channel] = {
    "web": Channel(async_delivery=True, interactive=True),
    "api": Channel(async_delivery=False, interactive=True),
    "schedule": Channel(async_delivery=True, interactive=False),
    "goal": Channel(async_delivery=True, interactive=True),
    "parent": Channel(async_delivery=True, interactive=False),
    "follow_up": Channel(async_delivery=True, interactive=True),
}
# Follow-up turns in a row, without a message of a person between them, that may still start work without waiting.
MAX_FOLLOW_UPS_IN_A_ROW = 10


@dataclass(frozen=True, kw_only=True)
class ReplyAddress:
    """The place on a chat platform that a turn answers to, and what that place can do.

    It is stored with the message and the turn, so that another worker and late events find the same place.
    """

    platform: str
    conversation_id: str
    container: str
    thread: str = ""
    anchor: str = ""  # the platform's id of the message that is answered
    speaker: str = ""  # the platform's id of the sender
    of_payer: bool  # the sender is the session's owner
    async_delivery: bool
    interactive: bool


@dataclass(frozen=True, kw_only=True)
class ClientTool:
    """A tool of an API caller, which runs it itself."""

    name: str
    description: str
    schema_json: str  # JSON Schema of an object

    def to_specification(self) -> ToolSpecification:
        schema: dict[str, JSON] = msgspec.json.decode(self.schema_json)
        return ToolSpecification(name=self.name, description=self.description, parameters=schema)


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    """The wishes of an API caller for one turn alone, beyond its message."""

    instructions: str = ""
    tools: tuple[ClientTool, ...] = ()
    parameters: RequestParameters = NO_PARAMETERS
    metadata: dict[str, str] = field(default_factory=dict)  # stored for the caller, never read
    user: str = ""  # the caller's own name for its user

    def list_tool_names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


@dataclass(frozen=True, kw_only=True)
class InboundContext:
    """Facts about the way a message came in that the turn answering it needs."""

    locale: str = "en"
    reply: ReplyAddress | None = None
    request_id: str = ""  # of the request that brought it, for the logs
    traceparent: str = ""  # the span it came in, where tracing is on
    address_hash: int | None = None  # a keyed hash of the network address it came from
    sources: tuple[str, ...] = ()  # untrusted text that its author, a model, had read
    unattended: bool = False  # no person follows the turn or its parents
    api_request: ApiRequest | None = None
    follow_ups: int = 0  # follow-up turns in a row, this one included
    must_wait: bool = False  # nothing can be delivered to it or to its parents later


def get_channel(origin: str, reply: ReplyAddress | None = None) -> Channel:
    """Return the channel of an origin; raise LookupError for one that declared nothing.

    A chat platform's channel is declared by the place the message came from, also for follow-up turns there.
    """
    if origin == "follow_up" and reply is not None:
        return Channel(async_delivery=reply.async_delivery, interactive=reply.interactive)
    if origin in CHANNELS_BY_ORIGIN:
        return CHANNELS_BY_ORIGIN[origin]
    if reply is None or reply.platform != origin:
        raise LookupError(f"the channel {origin!r} has not declared what it can do")
    return Channel(async_delivery=reply.async_delivery, interactive=reply.interactive)


def get_turn_channel(origin: str, inbound_context: InboundContext) -> Channel:
    """Return the channel of a turn, without the abilities that the way it came in takes from it."""
    channel = get_channel(origin, inbound_context.reply)
    is_last = inbound_context.must_wait or inbound_context.follow_ups >= MAX_FOLLOW_UPS_IN_A_ROW
    return Channel(
        async_delivery=channel.async_delivery and not is_last,
        interactive=channel.interactive and not inbound_context.unattended,
    )


@dataclass(frozen=True, kw_only=True)
class WorkspaceScope:
    """The files a turn may see: all of its user's, or only those of one session."""

    user_id: int
    session_id: str | None


NO_DEADLINE = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class TurnContext:
    user_id: int
    session_id: str
    turn_id: str
    fence: int
    origin: str
    permissions: Permissions
    channel: Channel
    inbound_context: InboundContext = field(default_factory=InboundContext)
    deadline: datetime = NO_DEADLINE
    timezone: str = "UTC"

    @property
    def workspace(self) -> WorkspaceScope:
        whole = self.permissions.files == "workspace"
        return WorkspaceScope(user_id=self.user_id, session_id=None if whole else self.session_id)

    @property
    def locale(self) -> str:
        return self.inbound_context.locale

    @property
    def reply(self) -> ReplyAddress | None:
        return self.inbound_context.reply

    def seconds_left(self, now: datetime) -> float:
        return max(0.0, (self.deadline - now).total_seconds())


_turn_context: ContextVar[TurnContext] = ContextVar("copilot_turn")


def get_turn_context() -> TurnContext:
    """Return the turn this code runs for; raise outside a turn, because a guess would leak between users."""
    try:
        return _turn_context.get()
    except LookupError:
        raise RuntimeError("no turn is running here") from None


def peek_turn_context() -> TurnContext | None:
    return _turn_context.get(None)


@contextmanager
def bind_turn_context(context: TurnContext) -> Iterator[TurnContext]:
    token = _turn_context.set(context)
    try:
        yield context
    finally:
        _turn_context.reset(token)
