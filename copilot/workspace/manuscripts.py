"""A conversation as Markdown: one heading a message, and nothing inside a message that could end it (S15)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import assert_never
from urllib.parse import quote

import msgspec
from markdown_it import MarkdownIt

from copilot.events import JSON
from copilot.workspace.documents import (
    Answered,
    AnyPart,
    Called,
    File,
    Head,
    Message,
    Reasoned,
    Returned,
    Said,
    Summarised,
)

_NAMES = {"user": "User", "assistant": "Assistant", "summary": "Summary"}
HEADING = re.compile(r"(User|Assistant|Summary)( \(.*\))? · \d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2} UTC")
_PROBE = "The end of this text"
_SUSPECT = re.compile(r"```|~~~|<|·|^[ >\-+*\d.)]*\[|\t", re.MULTILINE)  # else nothing can stay open
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~])")
_TICKS = re.compile(r"`+")
_LOOKED_AT = 100_000  # characters; a longer text is fenced without a look
# Blocks alone: what is inside a line ends no message, and its expressions for raw HTML take quadratic time.
_markdown = MarkdownIt("commonmark").disable("inline")


def written(head: Head, said: Iterable[Message], files: Mapping[str, File]) -> Iterator[bytes]:
    """The text piece by piece. `files` are those the conversation names; those with a path are linked."""
    title = _plain(head.session.title) or "Conversation"
    yield f"# {title}\n\nStarted {_moment(head.session.created_at)}, exported {_moment(head.exported_at)}.\n".encode()
    for message in said:
        yield _message(message, files).encode()


def _message(message: Message, files: Mapping[str, File]) -> str:
    author = f" ({_plain(message.author)})" if message.author else ""
    pieces = [f"\n## {_NAMES[message.role]}{author} · {_moment(message.created_at)}"]
    pieces += [text for part in message.parts if (text := _part(part))]
    if message.attachments:
        pieces.append(_attachments([files[one] for one in message.attachments if one in files]))
    return "\n\n".join(pieces) + "\n"


def _part(part: AnyPart) -> str:
    match part:
        case Said() | Answered() | Summarised():
            return contained(part.text)
        case Reasoned():
            return _folded("Reasoning", contained(part.text))
        case Called():
            return _folded(
                f"{part.tool} called", _json({"call_id": part.call_id, "arguments": part.arguments})
            )
        case Returned():
            outcome = "returned" if part.success else "failed"
            result: dict[str, JSON] = {"call_id": part.call_id, "success": part.success, "text": part.text}
            return _folded(f"{part.tool} {outcome}", _json(result))
        case unreachable:
            assert_never(unreachable)


def _folded(label: str, body: str) -> str:
    return f"<details><summary>{_plain(label)}</summary>\n\n{body}\n\n</details>"


def _json(value: dict[str, JSON]) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return fenced(text, "json")


def _attachments(files: Iterable[File]) -> str:
    lines = [
        f"- [{_plain(file.name)}]({quote(file.path)})"
        if file.path
        else f"- {_plain(file.name)} ({file.mime}, {file.size} bytes)"
        for file in files
    ]
    return "Attachments:\n\n" + "\n".join(lines)


def fenced(text: str, language: str = "") -> str:
    """As code, between fences longer than any run of backticks inside."""
    longest = max((len(run) for run in _TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def contained(text: str) -> str:
    """The text as it is; one that would swallow the next heading, or forge one, stands between fences."""
    if not _SUSPECT.search(text):
        return text
    return text if len(text) <= _LOOKED_AT and _stands_alone(text) else fenced(text, "markdown")


def _stands_alone(text: str) -> bool:
    """A heading put after it is still a heading, and none of its own could be taken for ours."""
    tokens = _markdown.parse(f"{text}\n\n## {_PROBE}\n")
    inlines = [token for opening, token in pairwise(tokens) if opening.type == "heading_open"]
    is_last = bool(inlines) and inlines[-1].content == _PROBE and inlines[-1].level == 1
    return is_last and not any(HEADING.fullmatch(inline.content) for inline in inlines[:-1])


def _plain(text: str) -> str:
    """One line of words, whatever marks they are made of."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _moment(instant: str) -> str:
    return f"{instant[:10]} {instant[11:19]} UTC"
