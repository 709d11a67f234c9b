"""A conversation as a document, `pilothouse.conversation/1`: its shape, and how rows become its messages (S15)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import msgspec

from copilot.events import JSON
from copilot.previews import redacted_arguments
from copilot.redaction import redact_shapes

SCHEMA = "pilothouse.conversation/1"
KINDS = ("user", "assistant", "reasoning", "tool_call", "tool_result", "summary")

Role = Literal["user", "assistant", "summary"]


class Part(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """One row of a message; its type is the row's kind (A0.3)."""


class Said(Part, frozen=True, kw_only=True, tag="user"):
    text: str


class Answered(Part, frozen=True, kw_only=True, tag="assistant"):
    text: str


class Reasoned(Part, frozen=True, kw_only=True, tag="reasoning"):
    text: str


class Summarised(Part, frozen=True, kw_only=True, tag="summary"):
    text: str
    through: int  # sequence of the last message it stands for; 0 = none


class Called(Part, frozen=True, kw_only=True, tag="tool_call"):
    call_id: str
    tool: str
    arguments: dict[str, JSON]


class Returned(Part, frozen=True, kw_only=True, tag="tool_result"):
    call_id: str
    tool: str
    success: bool
    text: str
    duration_ms: int


AnyPart = Said | Answered | Reasoned | Summarised | Called | Returned


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What one side said until the other spoke; every message of a person stands alone, for it has its own files."""

    id: str
    sequence: int  # its place in the document, from 1
    branch: int
    role: Role
    author: str
    created_at: str
    parts: list[AnyPart]
    attachments: list[str]


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    mime: str
    size: int
    sha256: str
    path: str | None = None  # inside the archive, when its bytes are there


class Session(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    created_at: str
    model_tier: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a document says before its messages; the schema's own name comes first."""

    schema: str = SCHEMA
    exported_at: str
    app_version: str
    session: Session


# --- rows → messages ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Line:
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
class Choice:
    """What goes along besides what was said."""

    reasoning: bool = False
    tools: bool = False

    def kinds(self) -> tuple[str, ...]:
        left_out = {
            *(() if self.reasoning else ("reasoning",)),
            *(() if self.tools else ("tool_call", "tool_result")),
        }
        return tuple(kind for kind in KINDS if kind not in left_out)


def messages(lines: Iterable[Line]) -> Iterator[Message]:
    """Neighbouring rows of one role, as they come: nothing but the places of earlier ones is remembered."""
    ends: list[int] = []  # the last row of each message so far
    for _, group in groupby(lines, key=_speaker):
        rows = list(group)
        first = rows[0]
        yield Message(
            id=first.id,
            sequence=len(ends) + 1,
            branch=first.branch,
            role=role_of(first.kind),
            author=first.author,
            created_at=first.created_at,
            parts=[_part(row, ends) for row in rows],
            attachments=list(first.attachments),
        )
        ends.append(rows[-1].sequence)


def _speaker(line: Line) -> str:
    return "assistant" if role_of(line.kind) == "assistant" else line.id


def role_of(kind: str) -> Role:
    match kind:
        case "user" | "summary":
            return kind
        case _:
            return "assistant"


def _part(line: Line, ends: Sequence[int]) -> AnyPart:
    """A person's own words stay as they are; whatever a model or a tool wrote loses what looks like a key.

    Values of this installation are not looked for: they were masked before the row was stored, and an imported row
    would tell its author which guesses are secrets.
    """
    match line.kind:
        case "user":
            return Said(text=line.text)
        case "summary":
            anchor = line.data.get("anchor")
            place = anchor if isinstance(anchor, int) else line.sequence
            return Summarised(text=redact_shapes(line.text), through=bisect_right(ends, place))
        case "reasoning":
            return Reasoned(text=redact_shapes(line.text))
        case "tool_call":
            arguments = line.data.get("arguments")
            return Called(
                call_id=line.call_id,
                tool=str(line.data.get("tool", "")),
                arguments=redacted_arguments(arguments) if isinstance(arguments, dict) else {},
            )
        case "tool_result":
            took = line.data.get("duration_ms")
            return Returned(
                call_id=line.call_id,
                tool=str(line.data.get("tool", "")),
                success=line.data.get("success") is not False,
                text=redact_shapes(line.text),
                duration_ms=took if isinstance(took, int) else 0,
            )
        case _:
            return Answered(text=redact_shapes(line.text))


# --- messages → bytes --------------------------------------------------------------------------------


def encoded(head: Head, said: Iterable[Message], files: Iterable[File]) -> Iterator[bytes]:
    """The document piece by piece, one message a line; files are asked for when all messages have gone by."""
    encode = msgspec.json.Encoder().encode
    yield encode(head)[:-1] + b',"messages":['
    yield from _listed(encode(message) for message in said)
    yield b'],"files":['
    yield from _listed(encode(file) for file in files)
    yield b"]}\n"


def _listed(items: Iterable[bytes]) -> Iterator[bytes]:
    separator = b"\n"
    for item in items:
        yield separator + item
        separator = b",\n"


# --- what a document names ---------------------------------------------------------------------------

_URI = re.compile(r"workspace://([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f-])", re.IGNORECASE)


def named_files(message: Message) -> Iterator[str]:
    """Ids of the files that go with a message or stand in it, in order; some more than once."""
    yield from message.attachments
    for part in message.parts:
        for text in texts_of(part):
            yield from (found.lower() for found in _URI.findall(text))


def texts_of(part: AnyPart) -> Iterator[str]:
    if isinstance(part, Called):
        yield from strings(part.arguments)
    else:
        yield part.text


def strings(value: JSON) -> Iterator[str]:
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
