"""Build the public payload of a share from transcript rows, and find the files it names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import msgspec

from config.core.json_values import JSON
from config.core.redaction import redact_secret_patterns
from copilot.chat.prompt_tags import drop_server_blocks, strip_server_tags

MAX_TOOL_CHARACTERS = 20_000  # of the arguments, and of the output, of one call
MAX_VISITED_NODES = 200_000  # in one payload
MAX_SHARED_FILES = 1_000
MIN_MASKED_NAME_CHARACTERS = 3  # shorter names of people also occur by chance
TRUNCATION_MARK = "\n[…]"

FILE_URI = re.compile(
    r"workspace://([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?![0-9a-f])", re.IGNORECASE
)

SharedCallOutcome = Literal["done", "failed", "stopped"]
ShareKind = Literal["conversation", "file"]


# --- Input -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CallWithResult:
    tool: str
    outcome: SharedCallOutcome
    arguments: Mapping[str, JSON] = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class TranscriptRow:
    """The fields of a message that a share needs."""

    kind: Literal["user", "assistant", "reasoning", "tool_call"]
    created_at: str
    text: str = ""
    member: str = ""  # the author, where others than the owner take part
    spoken: bool = True  # written by a person, not by a schedule, a goal or another turn
    attachments: tuple[str, ...] = ()  # file ids
    call: CallWithResult | None = None


@dataclass(frozen=True, kw_only=True)
class IncludedParts:
    """The parts the owner chose to show besides the messages."""

    reasoning: bool = False
    tools: bool = False


# --- Payload -----------------------------------------------------------------------------------------


class Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    role: Literal["user", "assistant"]
    text: str
    created_at: str
    author: str = ""
    attachments: list[str] = []  # workspace URIs


class Thought(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    text: str
    created_at: str


class Step(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool"):
    tool: str
    outcome: SharedCallOutcome
    created_at: str
    arguments: str = ""
    output: str = ""


SharedEntry = Said | Thought | Step


@dataclass(frozen=True, kw_only=True)
class PublicFile:
    id: str
    name: str
    type: str
    size: int


@dataclass(frozen=True, kw_only=True)
class SharePayload:
    """Everything a share shows. Whatever is not in here is not public."""

    kind: ShareKind
    title: str
    messages: list[SharedEntry] = field(default_factory=list)
    files: list[PublicFile] = field(default_factory=list)
    version: int = 1


def build_payload(rows: Sequence[TranscriptRow], *, title: str, included: IncludedParts) -> SharePayload:
    """Build the session as visitors may read it. Its files are decided afterwards, from the text."""
    members = _number_members(rows)
    clean = _make_cleaner(members)
    entries = (_build_entry(row, members, clean, included) for row in rows)
    return SharePayload(
        kind="conversation", title=clean(title), messages=[entry for entry in entries if entry is not None]
    )


def _build_entry(
    row: TranscriptRow, members: Mapping[str, str], clean: Callable[[str], str], included: IncludedParts
) -> SharedEntry | None:
    match row.kind:
        case "user" | "assistant":
            attachments = [f"workspace://{file_id}" for file_id in row.attachments]
            text = clean(row.text)
            return (
                Said(
                    role=row.kind,
                    text=text,
                    author=members.get(row.member, ""),
                    created_at=row.created_at,
                    attachments=attachments,
                )
                if text.strip() or attachments
                else None
            )
        case "reasoning":
            shown = included.reasoning and row.text.strip()
            return Thought(text=clean(row.text), created_at=row.created_at) if shown else None
        case "tool_call":
            return _build_tool_call(row, clean, included)


def _build_tool_call(row: TranscriptRow, clean: Callable[[str], str], included: IncludedParts) -> Step | None:
    if row.call is None:
        return None
    step = Step(tool=row.call.tool, outcome=row.call.outcome, created_at=row.created_at)
    if not included.tools:
        return step
    arguments = json.dumps(row.call.arguments, ensure_ascii=False, indent=2, sort_keys=True)
    return msgspec.structs.replace(
        step,
        arguments=_truncate(clean(arguments)) if row.call.arguments else "",
        output=_truncate(clean(row.call.output)),
    )


def _truncate(text: str) -> str:
    return (
        text
        if len(text) <= MAX_TOOL_CHARACTERS
        else text[: MAX_TOOL_CHARACTERS - len(TRUNCATION_MARK)] + TRUNCATION_MARK
    )


def _number_members(rows: Iterable[TranscriptRow]) -> dict[str, str]:
    names = dict.fromkeys(row.member for row in rows if row.member)
    return {name: f"Member {number}" for number, name in enumerate(names, start=1)}


def _make_cleaner(members: Mapping[str, str]) -> Callable[[str], str]:
    known = sorted(
        (name for name in members if len(name) >= MIN_MASKED_NAME_CHARACTERS), key=len, reverse=True
    )
    names = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, known))})(?!\w)") if known else None

    def clean(text: str) -> str:
        text = redact_secret_patterns(strip_server_tags(drop_server_blocks(text)))
        return names.sub(lambda found: members[found.group()], text) if names else text

    return clean


# --- Files -------------------------------------------------------------------------------------------


def find_file_ids(value: object) -> list[str]:
    """Return every file that any text in a value names, in order of first mention, up to MAX_SHARED_FILES."""
    texts = _iter_texts(msgspec.to_builtins(value) if isinstance(value, SharePayload) else value)
    named = (found.group(1).lower() for text in texts for found in FILE_URI.finditer(text))
    return list(islice(_iter_distinct(named), MAX_SHARED_FILES))


def find_own_file_ids(payload: SharePayload, rows: Sequence[TranscriptRow]) -> set[str]:
    own = [row for row in rows if row.kind == "user" and row.spoken and not row.member]
    texts = [
        [row.text for row in own],
        [f"workspace://{file_id}" for row in own for file_id in row.attachments],
    ]
    return set(find_file_ids(texts)) & set(find_file_ids(payload))


def _iter_distinct(values: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for value in values:
        if value not in seen:
            seen.add(value)
            yield value


def _iter_texts(value: object) -> Iterator[str]:
    """Yield every string in nested maps and lists, keys included. Iterative, so that depth does not matter."""
    waiting: list[Iterator[object]] = [iter((value,))]
    for _ in range(MAX_VISITED_NODES):
        while waiting and (node := next(waiting[-1], waiting)) is waiting:
            waiting.pop()
        if not waiting:
            return
        if isinstance(node, str):
            yield node
        elif isinstance(node, Mapping):
            waiting.append(part for pair in node.items() for part in pair)
        elif isinstance(node, list | tuple):
            waiting.append(iter(node))
