"""What shapes a session's answers besides its messages: a voice, instructions, an agent, a list of tools (A27, A30.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from copilot.permissions import UNRESTRICTED, Permissions, intersect

BUILDER_DENIES = frozenset({"create_agent", "get_agent_guide"})  # it builds one agent, and knows how (A27.6)


@dataclass(frozen=True, kw_only=True)
class Voice:
    """A personality as administrators wrote it."""

    prompt: str
    tone: str = ""
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentShape:
    """The version of an agent that a session runs."""

    instructions: str
    tools: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Shaping:
    """As the session and its owner's preferences were when the turn was claimed."""

    voice: Voice | None = None
    standing: str = ""  # what the user asks of every conversation
    instructions: str = ""  # … and of this one
    agent: AgentShape | None = None
    builds: bool = False
    allowed_tools: list[str] | None = None
    timezone: str = "UTC"
    memory: bool = True  # whether the user wants to be remembered (A25.1)

    def permitted(self, permissions: Permissions) -> Permissions:
        """What the session's and the agent's lists and the user's wishes leave of a turn's permissions (A20.3)."""
        for names in (self.allowed_tools, self.agent.tools if self.agent else None):
            if names is not None:
                permissions = intersect(permissions, replace(UNRESTRICTED, tools=frozenset(names)))
        if self.builds:
            permissions = intersect(permissions, replace(UNRESTRICTED, denied_tools=BUILDER_DENIES))
        return permissions if self.memory else replace(permissions, memory=False)
