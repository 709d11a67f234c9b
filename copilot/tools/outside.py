"""What MCP servers bring to a turn; known without the SDK, which most turns never need (A28)."""

from __future__ import annotations

from dataclasses import dataclass

from copilot.tools.base import AnyTool


@dataclass(frozen=True, kw_only=True)
class Outside:
    tools: tuple[AnyTool, ...] = ()
    instructions: str = ""  # for the session's suffix
    absent: tuple[str, ...] = ()  # names of the servers whose tools are missing


NOTHING_OUTSIDE = Outside()
