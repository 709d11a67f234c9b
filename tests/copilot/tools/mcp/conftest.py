"""Fixtures of MCP servers: the commands that a worker may start."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def listed_commands(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may start the servers of tests/support/mcp_servers.py."""
    from config.core import privileges
    from tests.support import mcp_servers

    settings.MCP_STDIO_COMMANDS = mcp_servers.ALLOWED
    if mcp_servers.is_closed():
        monkeypatch.setattr(privileges, "get_unprivileged_account", lambda uid=0: None)
        monkeypatch.setattr(privileges, "find_account_problem", lambda uid=0: "")
