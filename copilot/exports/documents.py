"""Define the document format `pilothouse.conversation/1`, turn rows into its messages, and render them as Markdown."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Literal, assert_never
from urllib.parse import quote

import msgspec
from markdown_it import MarkdownIt

from config.core.json_values import JSON
from config.core.redaction import redact_secret_patterns
from copilot.tools.results import redact_arguments

DOCUMENT_SCHEMA = "pilothouse.conversation/1"
EXPORTED_KINDS = ("user", "assistant", "reasoning", "tool_call", "tool_result", "summary")

ExportedRole = Literal["user", "assistant", "summary"]


class ExportedPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """One row of a message; its type is the row's kind."""


class ExportedUserPart(ExportedPart, frozen=True, kw_only=True, tag="user"):
    text: str


class ExportedAssistantPart(ExportedPart, frozen=True, kw_only=True, tag="assistant"):
    text: str


class ExportedReasoningPart(ExportedPart, frozen=True, kw_only=True, tag="reasoning"):
    text: str


class ExportedSummaryPart(ExportedPart, frozen=True, kw_only=True, tag="summary"):
    text: str
    through: int  # sequence of the last message it summarises; 0 for none


class ExportedToolCallPart(ExportedPart, frozen=True, kw_only=True, tag="tool_call"):
    call_id: str
    tool: str
    arguments: dict[str, JSON]


class ExportedToolResultPart(ExportedPart, frozen=True, kw_only=True, tag="tool_result"):
    call_id: str
    tool: str
    success: bool
    text: str
    duration_ms: int


AnyExportedPart = (
    ExportedUserPart
    | ExportedAssistantPart
    | ExportedReasoningPart
    | ExportedSummaryPart
    | ExportedToolCallPart
    | ExportedToolResultPart
)


class ExportedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive rows of one role. Messages of people are not joined, because each has its own files."""

    id: str
    sequence: int  # position in the document, from 1
    branch: int
    role: ExportedRole
    author: str
    created_at: str
    parts: list[AnyExportedPart]
    attachments: list[str]


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    mime: str
    size: int
    sha256: str
    path: str | None = None  # in the archive, if the file is included


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    created_at: str
    model_tier: str


class DocumentHead(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a document, with the schema's name first."""

    schema: str = DOCUMENT_SCHEMA
    exported_at: str
    app_version: str
    session: ExportedSession


# --- Rows to messages --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExportedRow:
    """A visible row with the fields an export needs."""

    id: str
    sequence: int
    kind: str
    text: str
    created_at: str
    data: Mapping[str, JSON] = field(default_factory=dict)
    call_id: str = ""
    author: str = ""
    branch: int = 0
    attachments: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ExportedKindsChoice:
    """The kinds of rows to export besides messages."""

    reasoning: bool = False
    tools: bool = False

    def list_kinds(self) -> tuple[str, ...]:
        left_out = {
            *(() if self.reasoning else ("reasoning",)),
            *(() if self.tools else ("tool_call", "tool_result")),
        }
        return tuple(kind for kind in EXPORTED_KINDS if kind not in left_out)


def group_messages(lines: Iterable[ExportedRow]) -> Iterator[ExportedMessage]:
    """Group neighbouring rows of one role, one at a time, keeping only positions in memory."""
    ends: list[int] = []  # the last row of each message so far
    for _, group in groupby(lines, key=_speaker_key):
        rows = list(group)
        first = rows[0]
        yield ExportedMessage(
            id=first.id,
            sequence=len(ends) + 1,
            branch=first.branch,
            role=get_role(first.kind),
            author=first.author,
            created_at=first.created_at,
            parts=[_build_part(row, ends) for row in rows],
            attachments=list(first.attachments),
        )
        ends.append(rows[-1].sequence)


def _speaker_key(line: ExportedRow) -> str:
    return "assistant" if get_role(line.kind) == "assistant" else line.id


def get_role(kind: str) -> ExportedRole:
    match kind:
        case "user" | "summary":
            return kind
        case _:
            return "assistant"


def _build_part(line: ExportedRow, ends: Sequence[int]) -> AnyExportedPart:
    """Build one part. A person's own text stays as it is; text of models and tools is redacted by pattern.

    It is not searched for the installation's secrets: they were redacted before the row was stored, and an
    imported row could be used to test guesses.
    """
    match line.kind:
        case "user":
            return ExportedUserPart(text=line.text)
        case "summary":
            anchor = line.data.get("anchor")
            anchor_sequence = anchor if isinstance(anchor, int) else line.sequence
            return ExportedSummaryPart(
                text=redact_secret_patterns(line.text), through=bisect_right(ends, anchor_sequence)
            )
        case "reasoning":
            return ExportedReasoningPart(text=redact_secret_patterns(line.text))
        case "tool_call":
            arguments = line.data.get("arguments")
            return ExportedToolCallPart(
                call_id=line.call_id,
                tool=str(line.data.get("tool", "")),
                arguments=redact_arguments(arguments) if isinstance(arguments, dict) else {},
            )
        case "tool_result":
            duration = line.data.get("duration_ms")
            return ExportedToolResultPart(
                call_id=line.call_id,
                tool=str(line.data.get("tool", "")),
                success=line.data.get("success") is not False,
                text=redact_secret_patterns(line.text),
                duration_ms=duration if isinstance(duration, int) else 0,
            )
        case _:
            return ExportedAssistantPart(text=redact_secret_patterns(line.text))


# --- Messages to bytes -------------------------------------------------------------------------------


def encode_document(
    head: DocumentHead, messages: Iterable[ExportedMessage], files: Iterable[ExportedFile]
) -> Iterator[bytes]:
    """Yield the document in pieces, one message a line. `files` is read after all messages."""
    encode = msgspec.json.Encoder().encode
    yield encode(head)[:-1] + b',"messages":['
    yield from _join_items(encode(message) for message in messages)
    yield b'],"files":['
    yield from _join_items(encode(file) for file in files)
    yield b"]}\n"


def _join_items(items: Iterable[bytes]) -> Iterator[bytes]:
    separator = b"\n"
    for item in items:
        yield separator + item
        separator = b",\n"


# --- Named files -------------------------------------------------------------------------------------

_URI = re.compile(r"workspace://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f-])", re.IGNORECASE)


def find_named_files(message: ExportedMessage) -> Iterator[str]:
    yield from message.attachments
    for part in message.parts:
        for text in iter_texts(part):
            yield from (found.lower() for found in _URI.findall(text))


def iter_texts(part: AnyExportedPart) -> Iterator[str]:
    if isinstance(part, ExportedToolCallPart):
        yield from iter_strings(part.arguments)
    else:
        yield part.text


def iter_strings(value: JSON) -> Iterator[str]:
    """Yield every text inside, keys included, in order. Iterative, because arguments may be nested deeply."""
    waiting: list[JSON] = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case list() as items:
                waiting += reversed(items)
            case dict() as entries:
                for key, inner in reversed(entries.items()):
                    waiting += (inner, key)
            case _:
                pass


# --- Markdown ----------------------------------------------------------------------------------------


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
