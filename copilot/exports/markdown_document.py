"""Render a session as Markdown, with one heading per message that no message text can break or forge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import assert_never
from urllib.parse import quote

import msgspec
from markdown_it import MarkdownIt

from config.core.json_values import JSON
from copilot.exports.documents import (
    AnyExportedPart,
    DocumentHead,
    ExportedAssistantPart,
    ExportedFile,
    ExportedMessage,
    ExportedReasoningPart,
    ExportedSummaryPart,
    ExportedToolCallPart,
    ExportedToolResultPart,
    ExportedUserPart,
)

_ROLE_NAMES = {"user": "User", "assistant": "Assistant", "summary": "Summary"}
HEADING = re.compile(r"(User|Assistant|Summary)( \(.*\))? · \d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2} UTC")
_PROBE = "The end of this text"
# Without any of these no Markdown block can stay open.
_SUSPICIOUS_MARKUP = re.compile(r"```|~~~|<|·|^[ >\-+*\d.)]*\[|\t", re.MULTILINE)
_SPECIAL_CHARACTERS = re.compile(r"([\\`*_\[\]<>#|~])")
_BACKTICKS = re.compile(r"`+")
_MAX_CHECKED_CHARACTERS = 100_000  # a longer text is fenced without a check
# Only blocks are parsed: inline markup cannot end a message, and its patterns for raw HTML take quadratic time.
_markdown = MarkdownIt("commonmark").disable("inline")


def render_markdown(
    head: DocumentHead, messages: Iterable[ExportedMessage], files: Mapping[str, ExportedFile]
) -> Iterator[bytes]:
    """Yield the text in pieces. `files` are those the session names; those with a path are linked."""
    title = _escape_line(head.session.title) or "Conversation"
    yield f"# {title}\n\nStarted {_format_time(head.session.created_at)}, exported {_format_time(head.exported_at)}.\n".encode()
    for message in messages:
        yield _render_message(message, files).encode()


def _render_message(message: ExportedMessage, files: Mapping[str, ExportedFile]) -> str:
    author = f" ({_escape_line(message.author)})" if message.author else ""
    pieces = [f"\n## {_ROLE_NAMES[message.role]}{author} · {_format_time(message.created_at)}"]
    pieces += [text for part in message.parts if (text := _render_part(part))]
    if message.attachments:
        pieces.append(
            _render_attachments([files[file_id] for file_id in message.attachments if file_id in files])
        )
    return "\n\n".join(pieces) + "\n"


def _render_part(part: AnyExportedPart) -> str:
    match part:
        case ExportedUserPart() | ExportedAssistantPart() | ExportedSummaryPart():
            return contain_text(part.text)
        case ExportedReasoningPart():
            return _render_details("Reasoning", contain_text(part.text))
        case ExportedToolCallPart():
            return _render_details(
                f"{part.tool} called", _render_json({"call_id": part.call_id, "arguments": part.arguments})
            )
        case ExportedToolResultPart():
            outcome = "returned" if part.success else "failed"
            result: dict[str, JSON] = {"call_id": part.call_id, "success": part.success, "text": part.text}
            return _render_details(f"{part.tool} {outcome}", _render_json(result))
        case unreachable:
            assert_never(unreachable)


def _render_details(label: str, body: str) -> str:
    return f"<details><summary>{_escape_line(label)}</summary>\n\n{body}\n\n</details>"


def _render_json(value: dict[str, JSON]) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return fence_text(text, "json")


def _render_attachments(files: Iterable[ExportedFile]) -> str:
    lines = [
        f"- [{_escape_line(file.name)}]({quote(file.path)})"
        if file.path
        else f"- {_escape_line(file.name)} ({file.mime}, {file.size} bytes)"
        for file in files
    ]
    return "Attachments:\n\n" + "\n".join(lines)


def fence_text(text: str, language: str = "") -> str:
    """Fence a text as code, with a fence longer than any run of backticks inside."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def contain_text(text: str) -> str:
    """Return the text as it is, or fenced if it would swallow the next heading or forge one."""
    if not _SUSPICIOUS_MARKUP.search(text):
        return text
    return (
        text if len(text) <= _MAX_CHECKED_CHARACTERS and _stands_alone(text) else fence_text(text, "markdown")
    )


def _stands_alone(text: str) -> bool:
    """Return whether a heading after the text is still a heading, and none of its own looks like ours."""
    tokens = _markdown.parse(f"{text}\n\n## {_PROBE}\n")
    inlines = [token for opening, token in pairwise(tokens) if opening.type == "heading_open"]
    is_last = bool(inlines) and inlines[-1].content == _PROBE and inlines[-1].level == 1
    return is_last and not any(HEADING.fullmatch(inline.content) for inline in inlines[:-1])


def _escape_line(text: str) -> str:
    return _SPECIAL_CHARACTERS.sub(r"\\\1", " ".join(text.split()))


def _format_time(instant: str) -> str:
    return f"{instant[:10]} {instant[11:19]} UTC"
