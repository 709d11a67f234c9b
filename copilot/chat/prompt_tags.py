"""Build the prompt blocks that only the server may write, and disarm their tags in all other text."""

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

MAX_STRIP_PASSES = 10  # removing a tag can join a new one; nobody nests this deep in good faith

_GAP = r"[\s\u200b-\u200d\u2060\ufeff]*+"  # possessive, so that a long gap is scanned once
_OPENING = rf"<(?={_GAP}(?:/{_GAP})?(?:{'|'.join(SERVER_TAGS)})(?!\w))"
_opening = re.compile(_OPENING, re.IGNORECASE)
_block = re.compile(rf"<({'|'.join(SERVER_TAGS)})>", re.IGNORECASE)
_closings: dict[str, re.Pattern[str]] = {tag: re.compile(f"</{tag}>", re.IGNORECASE) for tag in SERVER_TAGS}
_marker = re.compile(rf"{_OPENING}{_GAP}(?:/{_GAP})?\w+(?:[^<>]*>)?", re.IGNORECASE)


def strip_server_tags(text: str) -> str:
    """Remove the tags and keep the text between them. For everything that people write."""
    for _ in range(MAX_STRIP_PASSES):
        stripped = _marker.sub("", text)
        if stripped == text:
            return text
        text = stripped
    return text.replace("<", "&lt;")


def drop_server_blocks(text: str) -> str:
    """Remove the server's blocks with their content. For text that leaves the account."""
    kept: list[str] = []
    end = 0
    open_ended: set[str] = set()  # tags without a closing tag ahead, so that each is searched for once
    for opening in _block.finditer(text):
        tag = opening.group(1).lower()
        if opening.start() < end or tag in open_ended:
            continue
        closing = _closings[tag].search(text, opening.end())
        if closing is None:
            open_ended.add(tag)
            continue
        kept.append(text[end : opening.start()])
        end = closing.end()
    return "".join((*kept, text[end:]))


def escape_server_tags(text: str) -> str:
    """Escape the tags without losing a character. For untrusted text that the model reads."""
    return _opening.sub("&lt;", text)


def escape_text(text: str) -> str:
    return html.escape(text, quote=False)


def build_server_block(tag: ServerTag, body: str) -> str:
    """Wrap `body` in a server tag; its dynamic parts must be escaped already."""
    return f"<{tag}>\n{body}\n</{tag}>"
