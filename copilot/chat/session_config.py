"""What shapes a session's answers besides its messages: a voice, instructions, an agent, a list of tools (A27, A30.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from copilot.chat.permissions import UNRESTRICTED, Permissions, intersect_permissions

BUILDER_DENIED_TOOLS = frozenset(
    {"create_agent", "get_agent_guide"}
)  # it builds one agent, and knows how (A27.6)


@dataclass(frozen=True, kw_only=True)
class PersonalityPrompt:
    """A personality as administrators wrote it."""

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
    """As the session and its owner's preferences were when the turn was claimed."""

    voice: PersonalityPrompt | None = None
    standing: str = ""  # what the user asks of every conversation
    instructions: str = ""  # … and of this one
    agent: AgentConfig | None = None
    builds: bool = False
    allowed_tools: list[str] | None = None
    timezone: str = "UTC"
    memory: bool = True  # whether the user wants to be remembered (A25.1)

    def restrict_permissions(self, permissions: Permissions) -> Permissions:
        """What the session's and the agent's lists and the user's wishes leave of a turn's permissions (A20.3)."""
        for names in (self.allowed_tools, self.agent.tools if self.agent else None):
            if names is not None:
                permissions = intersect_permissions(
                    permissions, replace(UNRESTRICTED, tools=frozenset(names))
                )
        if self.builds:
            permissions = intersect_permissions(
                permissions, replace(UNRESTRICTED, denied_tools=BUILDER_DENIED_TOOLS)
            )
        return permissions if self.memory else replace(permissions, memory=False)
