"""Permissions of turns in linked servers: the conversation itself, and the tools that the owner allowed."""

from __future__ import annotations

from collections.abc import Iterable

from copilot.chat.permissions import Permissions

# They reach no further than the conversation: its words, its files, the clock, a question to who speaks.
GUEST_TOOLS = frozenset(
    {"current_time", "ask_user", "todos_write", "read_file", "write_file", "list_files", "read_tool_result"}
)
# What an owner may add. Memory, other sessions, agents, schedules and connected servers are the account's own:
# no server gets them. Whatever of these deletes, sends or costs asks the owner first, every time.
OPTIONAL_TOOLS = frozenset(
    {"web_fetch", "web_search", "bash_exec", "python_exec", "delete_file", "share_file"}
)
_NETWORK_TOOLS = frozenset({"web_fetch", "web_search"})


def build_guest_permissions(tools: Iterable[str]) -> Permissions:
    """Explicit in every part, so that a new ability is closed to guests until somebody opens it here."""
    added = OPTIONAL_TOOLS & frozenset(tools)
    return Permissions(
        tools=GUEST_TOOLS | added,
        denied_tools=frozenset(),
        mcp_servers=frozenset(),
        agents=frozenset(),
        sub_sessions=False,
        schedules=False,
        network=bool(added & _NETWORK_TOOLS),
        memory=False,
        own_credentials=False,
        files="session",
    )
