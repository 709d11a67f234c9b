"""Configuration of a session that shapes its answers: personality, instructions, agent and allowed tools."""

from __future__ import annotations

from dataclasses import dataclass, replace

from copilot.chat.permissions import UNRESTRICTED, Permissions, intersect_permissions

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
