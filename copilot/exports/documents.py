"""Define the document format `pilothouse.conversation/1`, and turn rows into its messages."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import msgspec

from config.core.json_values import JSON
from config.core.redaction import redact_secret_patterns
from copilot.tools.argument_previews import redact_arguments

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
    """Consecutive rows of one role. Each message of a person stands alone, because it has its own files."""

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
