"""A conversation as a document, `pilothouse.conversation/1`: its shape, and how rows become its messages (S15)."""

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
    """One row of a message; its type is the row's kind (A0.3)."""


class ExportedUserPart(ExportedPart, frozen=True, kw_only=True, tag="user"):
    text: str


class ExportedAssistantPart(ExportedPart, frozen=True, kw_only=True, tag="assistant"):
    text: str


class ExportedReasoningPart(ExportedPart, frozen=True, kw_only=True, tag="reasoning"):
    text: str


class ExportedSummaryPart(ExportedPart, frozen=True, kw_only=True, tag="summary"):
    text: str
    through: int  # sequence of the last message it stands for; 0 = none


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
    """What one side said until the other spoke; every message of a person stands alone, for it has its own files."""

    id: str
    sequence: int  # its place in the document, from 1
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
    path: str | None = None  # inside the archive, when its bytes are there


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    created_at: str
    model_tier: str


class DocumentHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a document says before its messages; the schema's own name comes first."""

    schema: str = DOCUMENT_SCHEMA
    exported_at: str
    app_version: str
    session: ExportedSession


# --- rows → messages ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExportedRow:
    """A shown row as an export needs it."""

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
    """What goes along besides what was said."""

    reasoning: bool = False
    tools: bool = False

    def list_kinds(self) -> tuple[str, ...]:
        left_out = {
            *(() if self.reasoning else ("reasoning",)),
            *(() if self.tools else ("tool_call", "tool_result")),
        }
        return tuple(kind for kind in EXPORTED_KINDS if kind not in left_out)


def group_messages(lines: Iterable[ExportedRow]) -> Iterator[ExportedMessage]:
    """Neighbouring rows of one role, as they come: nothing but the places of earlier ones is remembered."""
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
    """A person's own words stay as they are; whatever a model or a tool wrote loses what looks like a key.

    Values of this installation are not looked for: they were masked before the row was stored, and an imported row
    would tell its author which guesses are secrets.
    """
    match line.kind:
        case "user":
            return ExportedUserPart(text=line.text)
        case "summary":
            anchor = line.data.get("anchor")
            place = anchor if isinstance(anchor, int) else line.sequence
            return ExportedSummaryPart(
                text=redact_secret_patterns(line.text), through=bisect_right(ends, place)
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
            took = line.data.get("duration_ms")
            return ExportedToolResultPart(
                call_id=line.call_id,
                tool=str(line.data.get("tool", "")),
                success=line.data.get("success") is not False,
                text=redact_secret_patterns(line.text),
                duration_ms=took if isinstance(took, int) else 0,
            )
        case _:
            return ExportedAssistantPart(text=redact_secret_patterns(line.text))


# --- messages → bytes --------------------------------------------------------------------------------


def encode_document(
    head: DocumentHead, said: Iterable[ExportedMessage], files: Iterable[ExportedFile]
) -> Iterator[bytes]:
    """The document piece by piece, one message a line; files are asked for when all messages have gone by."""
    encode = msgspec.json.Encoder().encode
    yield encode(head)[:-1] + b',"messages":['
    yield from _join_items(encode(message) for message in said)
    yield b'],"files":['
    yield from _join_items(encode(file) for file in files)
    yield b"]}\n"


def _join_items(items: Iterable[bytes]) -> Iterator[bytes]:
    separator = b"\n"
    for item in items:
        yield separator + item
        separator = b",\n"


# --- what a document names ---------------------------------------------------------------------------

_URI = re.compile(r"workspace://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f-])", re.IGNORECASE)


def find_named_files(message: ExportedMessage) -> Iterator[str]:
    """Ids of the files that go with a message or stand in it, in order; some more than once."""
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
    """Every text inside, keys too, in order; iterative, for arguments may be nested deep."""
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
