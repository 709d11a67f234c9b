"""The tags that only the server may write, and how copies made by others are disarmed (A15.4, A15.6)."""

from __future__ import annotations

import html
import re
from typing import Literal, get_args

ServerTag = Literal[
    "user_context",
    "memory_context",
    "env_context",
    "builder_session",
    "builder_context",
    "user_follow_up",
    "system_note",
    "conversation_summary",
    "mcp_instructions",
    "attached_files",
]
SERVER_TAGS: tuple[ServerTag, ...] = get_args(ServerTag)

STRIP_PASSES = 10  # removing a marker can join a new one; nobody nests this deep in good faith

_GAP = r"[\s\u200b-\u200d\u2060\ufeff]*"
_OPENING = rf"<(?={_GAP}/?{_GAP}(?:{'|'.join(SERVER_TAGS)})(?!\w))"
_opening = re.compile(_OPENING, re.IGNORECASE)
_marker = re.compile(rf"{_OPENING}{_GAP}/?{_GAP}\w+(?:[^<>]*>)?", re.IGNORECASE)


def strip_server_tags(text: str) -> str:
    """Remove the markers and keep what stands between them; for what people write, at every door."""
    for _ in range(STRIP_PASSES):
        stripped = _marker.sub("", text)
        if stripped == text:
            return text
        text = stripped
    return text.replace("<", "&lt;")


def escape_server_tags(text: str) -> str:
    """Make the markers harmless without losing a character; for the model's copy of foreign text."""
    return _opening.sub("&lt;", text)


def escape(text: str) -> str:
    """A dynamic value inside a server block."""
    return html.escape(text, quote=False)


def block(tag: ServerTag, body: str) -> str:
    """`body`, whose dynamic parts are escaped already, as the server's own word."""
    return f"<{tag}>\n{body}\n</{tag}>"
