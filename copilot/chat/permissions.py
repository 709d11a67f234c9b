"""Permissions of a turn: an immutable filter that can only be narrowed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Literal, TypedDict

import structlog

log = structlog.get_logger(__name__)

FileScope = Literal["workspace", "session"]


class PermissionsJSON(TypedDict):
    tools: list[str] | None
    denied_tools: list[str]
    mcp_servers: list[str] | None
    agents: list[str] | None
    sub_sessions: bool
    schedules: bool
    network: bool
    memory: bool
    own_credentials: bool
    files: FileScope


@dataclass(frozen=True, kw_only=True)
class Permissions:
    """`None` for a set means all. No field has a default, so that absence never means unrestricted."""

    tools: frozenset[str] | None
    denied_tools: frozenset[str]
    mcp_servers: frozenset[str] | None
    agents: frozenset[str] | None
    sub_sessions: bool
    schedules: bool
    network: bool
    memory: bool
    own_credentials: bool
    files: FileScope

    def allows_tool(self, name: str) -> bool:
        return name not in self.denied_tools and (self.tools is None or name in self.tools)

    def is_within(self, other: Permissions) -> bool:
        return intersect_permissions(self, other) == self

    def to_json(self) -> PermissionsJSON:
        return {
            "tools": _sorted_or_none(self.tools),
            "denied_tools": sorted(self.denied_tools),
            "mcp_servers": _sorted_or_none(self.mcp_servers),
            "agents": _sorted_or_none(self.agents),
            "sub_sessions": self.sub_sessions,
            "schedules": self.schedules,
            "network": self.network,
            "memory": self.memory,
            "own_credentials": self.own_credentials,
            "files": self.files,
        }

    @classmethod
    def from_json(cls, value: PermissionsJSON | None) -> Permissions:
        """Parse stored permissions.

        A row without readable ones may do nothing, and that is logged as an error.
        """
        if not value or set(value) != {field.name for field in fields(cls)}:
            log.error("permissions_unreadable")
            return NO_PERMISSIONS
        return cls(
            tools=_frozenset_or_none(value["tools"]),
            denied_tools=frozenset(value["denied_tools"]),
            mcp_servers=_frozenset_or_none(value["mcp_servers"]),
            agents=_frozenset_or_none(value["agents"]),
            sub_sessions=value["sub_sessions"],
            schedules=value["schedules"],
            network=value["network"],
            memory=value["memory"],
            own_credentials=value["own_credentials"],
            files=value["files"],
        )


def intersect_permissions(left: Permissions, right: Permissions) -> Permissions:
    return Permissions(
        tools=_intersect_names(left.tools, right.tools),
        denied_tools=left.denied_tools | right.denied_tools,
        mcp_servers=_intersect_names(left.mcp_servers, right.mcp_servers),
        agents=_intersect_names(left.agents, right.agents),
        sub_sessions=left.sub_sessions and right.sub_sessions,
        schedules=left.schedules and right.schedules,
        network=left.network and right.network,
        memory=left.memory and right.memory,
        own_credentials=left.own_credentials and right.own_credentials,
        files="workspace" if left.files == right.files == "workspace" else "session",
    )


def _intersect_names(left: frozenset[str] | None, right: frozenset[str] | None) -> frozenset[str] | None:
    if left is None:
        return right
    return left if right is None else left & right


def _sorted_or_none(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _frozenset_or_none(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


UNRESTRICTED = Permissions(
    tools=None,
    denied_tools=frozenset(),
    mcp_servers=None,
    agents=None,
    sub_sessions=True,
    schedules=True,
    network=True,
    memory=True,
    own_credentials=True,
    files="workspace",
)
NO_PERMISSIONS = Permissions(
    tools=frozenset(),
    denied_tools=frozenset(),
    mcp_servers=frozenset(),
    agents=frozenset(),
    sub_sessions=False,
    schedules=False,
    network=False,
    memory=False,
    own_credentials=False,
    files="session",
)

# Tools that do what the REST API requires a scope for. Other tools need only `chat`, which starts the turn.
SCOPE_TOOLS: dict[str, frozenset[str]] = {
    "manage": frozenset(
        {
            "cancel_scheduled_task",
            "create_agent",
            "edit_agent",
            "memory_add",
            "memory_forget",
            "schedule_task",
            "share_file",
        }
    ),
    "read": frozenset(
        {"list_agents", "list_scheduled_tasks", "memory_search", "view_agent_output"},
    ),
}


@cache
def permissions_for_scopes(scopes: frozenset[str] | None) -> Permissions:
    """Return what a turn may do that a key with these scopes starts; None is a person, who may do all.

    Sub-sessions and schedules of the turn inherit it.
    """
    if scopes is None:
        return UNRESTRICTED
    denied = [tools for scope, tools in SCOPE_TOOLS.items() if scope not in scopes]
    allowed = replace(UNRESTRICTED, denied_tools=frozenset().union(*denied))
    # Without `read`, files of other sessions and memories stay unread as well.
    return allowed if "read" in scopes else replace(allowed, files="session", memory=False)
