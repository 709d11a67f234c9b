"""The list of tools for people: every one, what it does, whether it works here, and why not (A32.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from django.conf import settings
from django.utils import timezone

from copilot import mcp, memories, offering
from copilot.models import McpServer
from copilot.providers import catalogue
from copilot.tools import mcp_listing, registry
from copilot.tools.base import AnyTool
from copilot.tools.mcp_listing import Place

_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
MEMORY_OFF = "Memory is switched off in your settings."


@dataclass(frozen=True, kw_only=True)
class ToolShown:
    name: str
    description: str
    server: str | None  # the MCP server it belongs to
    asks: bool  # a person is asked before it runs
    available: bool
    reason: str  # why it is not available

    @property
    def summary(self) -> str:
        """Its first sentence: what follows tells the model how to call it."""
        return _SENTENCE_END.split(self.description.strip(), maxsplit=1)[0].replace("`", "")


@dataclass(frozen=True, kw_only=True)
class Models:
    """Names of the models that can answer: real ones, and scripts."""

    real: tuple[str, ...]
    demo: tuple[str, ...]


def models() -> Models:
    """List what a turn of the usual tier would be answered by, from the rows or the environment."""
    offering.refresh()
    chain = catalogue.current().tiers.get("standard", ())
    return Models(
        real=tuple(entry.name for entry in chain if not entry.demo),
        demo=tuple(entry.name for entry in chain if entry.demo),
    )


def unavailable() -> dict[str, str]:
    """Shipped tools that cannot work in this installation, and why."""
    return registry.unavailable()


def of_user(user_id: int) -> list[ToolShown]:
    """In the order in which models see them."""
    missing = unavailable()
    remembers = memories.is_on(user_id)
    shipped = [
        _shipped(tool, missing.get(tool.name) or ("" if remembers or not tool.memory else MEMORY_OFF))
        for tool in registry.TOOLS
    ]
    return shipped + _of_servers(row for row in mcp.seen_by(user_id) if row.enabled)


def _shipped(tool: AnyTool, reason: str) -> ToolShown:
    return ToolShown(
        name=tool.name,
        description=tool.description.partition("\n\n")[0],
        server=None,
        asks=tool.approval != "never" or tool.name in settings.ASK_BEFORE_TOOLS,
        available=not reason,
        reason=reason,
    )


def _of_servers(rows: Iterable[McpServer]) -> list[ToolShown]:
    """As their servers listed them last; what a turn would leave out says so."""
    listed: list[tuple[McpServer, mcp.Listed]] = [(row, tool) for row in rows for tool in row.tools]
    named = mcp_listing.names([Place(row.pk, row.name, tool["name"]) for row, tool in listed])
    shown: list[ToolShown] = []
    offered: set[str] = set()
    for name, (row, tool) in sorted(zip(named, listed, strict=True), key=lambda pair: pair[0]):
        reason = tool["left_out"] or _absence(row) or _excess(name, offered)
        if not reason:
            offered.add(name)
        shown.append(
            ToolShown(
                name=name,
                description=tool["description"],
                server=row.name,
                asks=tool["name"] not in row.never_ask and not (row.trusted and tool["read_only"]),
                available=not reason,
                reason=reason,
            )
        )
    return shown


def _absence(row: McpServer) -> str:
    waits = row.retry_at is not None and row.retry_at > timezone.now()
    return f"Its server is not available: {row.last_error}" if waits else ""


def _excess(name: str, offered: set[str]) -> str:
    if name in offered:
        return "Another tool has this name."
    return mcp_listing.TOO_MANY if len(offered) >= mcp_listing.MOST_TOOLS else ""
