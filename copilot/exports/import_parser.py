"""Parse and validate an untrusted document as a whole, or refuse it with the paths of its first problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)

from config.core.errors import InvalidRequest
from config.core.json_values import JSON, iterate_children
from config.core.text import make_storable
from copilot.chat.prompt_tags import strip_server_tags

MAX_DOCUMENT_MESSAGES = 5_000
MAX_TEXT_CHARACTERS = 64_000  # as long as a message may be
WITHOUT_TEXT_LIMIT = "without_text_limit"
MAX_DOCUMENT_PARTS = 20_000  # in all messages together: even a short part makes a whole row
MAX_DOCUMENT_DEPTH = 20
MAX_DOCUMENT_FILES = 1_000
MAX_REPORTED_PROBLEMS = 10
MAX_NUMBER = 2**53  # every JSON parser reads numbers up to this the same
MAX_CLOCK_SKEW = timedelta(days=1)  # times slightly ahead count as now; later ones are refused
EARLIEST_TIME = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")
_SCHEMA_PATTERN = re.compile(r"pilothouse\.conversation/1(\.[0-9]{1,3})?")


class InvalidDocument(InvalidRequest):
    """Names the problems and where they are. Nothing of the document was stored."""

    default_code = "invalid_document"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("This file can't be imported.", hint=problems[0], problems=problems)


# --- Models ------------------------------------------------------------------------------------------


def _clean_value(value: object) -> object:
    return strip_server_tags(make_storable(value)) if isinstance(value, str) else value


def _parse_time(value: object) -> object:
    """Parse a timestamp; never later than now."""
    if not isinstance(value, str) or len(value) > 40:
        raise ValueError("must be a time such as 2026-11-16T10:00:00.000Z")
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError("no zone")
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("must be a time such as 2026-11-16T10:00:00.000Z") from None
    now = datetime.now(UTC)
    if not EARLIEST_TIME <= moment <= now + MAX_CLOCK_SKEW:
        raise ValueError("must not be in the future or before 1970")
    return min(moment, now)


def _check_length(text: str, info: ValidationInfo) -> str:
    """Check the length, unless the caller has bounded the document as a whole."""
    if len(text) > MAX_TEXT_CHARACTERS and info.context != WITHOUT_TEXT_LIMIT:
        raise ValueError(f"has more than {MAX_TEXT_CHARACTERS:,} characters")
    return text


CleanedText = BeforeValidator(_clean_value)
ImportedText = Annotated[str, CleanedText, AfterValidator(_check_length)]
ImportedLine = Annotated[str, CleanedText]
ImportedId = Annotated[str, Field(min_length=1, max_length=128)]
ImportedTime = Annotated[datetime, BeforeValidator(_parse_time)]
ImportedCount = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
ImportedToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ImportedUserPart(_StrictModel):
    type: Literal["user"]
    text: ImportedText


class ImportedAssistantPart(_StrictModel):
    type: Literal["assistant"]
    text: ImportedText


class ImportedReasoningPart(_StrictModel):
    type: Literal["reasoning"]
    text: ImportedText


class ImportedSummaryPart(_StrictModel):
    type: Literal["summary"]
    text: ImportedText
    through: ImportedCount


class ImportedToolCallPart(_StrictModel):
    type: Literal["tool_call"]
    call_id: ImportedId
    tool: ImportedToolName
    arguments: dict[str, object]  # JSON; its depth was checked before


class ImportedToolResultPart(_StrictModel):
    type: Literal["tool_result"]
    call_id: ImportedId
    tool: ImportedToolName
    success: bool
    text: ImportedText
    duration_ms: Annotated[int, Field(ge=0, le=10**9)]


AnyImportedUserPart = ImportedUserPart
AnyImportedAssistantPart = Annotated[
    ImportedAssistantPart | ImportedReasoningPart | ImportedToolCallPart | ImportedToolResultPart,
    Field(discriminator="type"),
]


class _ImportedMessageBase(_StrictModel):
    id: ImportedId
    sequence: ImportedCount
    branch: Annotated[int, Field(ge=0, le=10_000)]
    author: Annotated[ImportedLine, Field(max_length=150)]
    created_at: ImportedTime
    attachments: Annotated[list[ImportedId], Field(max_length=MAX_DOCUMENT_FILES)]


class ImportedUserMessage(_ImportedMessageBase):
    role: Literal["user"]
    parts: Annotated[list[AnyImportedUserPart], Field(min_length=1, max_length=MAX_DOCUMENT_PARTS)]


class ImportedAssistantMessage(_ImportedMessageBase):
    role: Literal["assistant"]
    parts: Annotated[list[AnyImportedAssistantPart], Field(min_length=1, max_length=MAX_DOCUMENT_PARTS)]


class ImportedSummaryMessage(_ImportedMessageBase):
    role: Literal["summary"]
    parts: Annotated[list[ImportedSummaryPart], Field(min_length=1, max_length=MAX_DOCUMENT_PARTS)]


ImportedMessage = ImportedUserMessage | ImportedAssistantMessage | ImportedSummaryMessage


class ImportedFile(_StrictModel):
    id: ImportedId
    name: Annotated[ImportedLine, Field(min_length=1, max_length=255)]
    mime: Annotated[str, Field(max_length=127)]
    size: ImportedCount
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    path: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class ImportedSession(_StrictModel):
    title: Annotated[ImportedLine, Field(max_length=200)]
    created_at: ImportedTime
    model_tier: Annotated[str, Field(pattern=r"^[a-z0-9_-]{0,16}$")]


class _DocumentFrame(_StrictModel):
    """The document around its lists, whose items are validated one by one."""

    schema_: Annotated[str, Field(alias="schema", max_length=100)]
    exported_at: ImportedTime
    app_version: Annotated[str, Field(max_length=64)]
    session: ImportedSession
    messages: list[object]
    files: Annotated[list[object], Field(max_length=MAX_DOCUMENT_FILES)]


@dataclass(frozen=True, kw_only=True)
class ImportedDocument:
    session: ImportedSession
    messages: list[ImportedMessage]
    files: list[ImportedFile]


_message_adapter = TypeAdapter[ImportedMessage](Annotated[ImportedMessage, Field(discriminator="role")])
_file_adapter = TypeAdapter(ImportedFile)


# --- Parse -------------------------------------------------------------------------------------------


def parse_document(content: bytes) -> ImportedDocument:
    """Parse a document, stripping server tags from every text."""
    try:
        value = msgspec.json.decode(content)
    except RecursionError:
        raise InvalidDocument([f"$: nested deeper than {MAX_DOCUMENT_DEPTH}"]) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidDocument(["$: is not valid JSON in UTF-8"]) from None
    return parse_document_value(value)


def parse_document_value(value: JSON, *, limits_texts: bool = True) -> ImportedDocument:
    context = None if limits_texts else WITHOUT_TEXT_LIMIT
    problems = _ProblemList()
    _check_nesting(value, problems)
    if not isinstance(value, dict):  # such as other products' exports, which are lists
        problems.add("$: is not a chat exported from Pilothouse")
    problems.raise_if_any()
    try:
        frame = _DocumentFrame.model_validate(value)
    except ValidationError as invalid:
        problems.add_all("", invalid)
        problems.raise_if_any()
        raise
    if not _SCHEMA_PATTERN.fullmatch(frame.schema_):
        problems.add("schema: must be pilothouse.conversation/1")
    if len(frame.messages) > MAX_DOCUMENT_MESSAGES:
        problems.add(f"messages: at most {MAX_DOCUMENT_MESSAGES:,} can be imported")
    problems.raise_if_any()
    document = ImportedDocument(
        session=frame.session,
        messages=list(_parse_items("messages", frame.messages, _message_adapter, problems, context)),
        files=list(_parse_items("files", frame.files, _file_adapter, problems)),
    )
    problems.raise_if_any()
    _check_ids(document, problems)
    _check_calls(document, problems)
    problems.raise_if_any()
    return document


@dataclass
class _ProblemList:
    found: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        if not self.is_full():
            self.found.append(problem[:300])

    def add_all(self, path: str, invalid: ValidationError) -> None:
        for error in invalid.errors(include_url=False, include_context=False, include_input=False):
            is_object_missing = error["type"] in ("model_type", "model_attributes_type", "dataclass_type")
            # Pydantic would name the class here, which means nothing to the reader.
            text = "must be an object" if is_object_missing else error["msg"]
            self.add(f"{_format_path(path, error['loc'])}: {text}")

    def is_full(self) -> bool:
        return len(self.found) >= MAX_REPORTED_PROBLEMS

    def raise_if_any(self) -> None:
        if self.found:
            raise InvalidDocument(self.found)


def _format_path(begin: str, places: Iterable[int | str]) -> str:
    """Format a path, leaving out names of union branches, which are not part of the document."""
    path = begin
    for place in places:
        if isinstance(place, int):
            path += f"[{place}]"
        elif place not in _UNION_TAGS:
            path += f".{place}" if path else place
    return path or "$"


_UNION_TAGS = {"user", "assistant", "summary", "reasoning", "tool_call", "tool_result"}


def _parse_items(
    name: str,
    raw: list[object],
    shape: TypeAdapter[T],
    problems: _ProblemList,
    context: str | None = None,
) -> Iterator[T]:
    """Validate item by item, so that a document full of errors costs no more than its first ten."""
    for place, item in enumerate(raw):
        if problems.is_full():
            return
        try:
            yield shape.validate_python(item, context=context)
        except ValidationError as invalid:
            problems.add_all(f"{name}[{place}]", invalid)


def _check_nesting(value: JSON, problems: _ProblemList) -> None:
    """Check the depth iteratively, so that deep nesting cannot exhaust our own stack."""
    level: list[JSON] = [value]
    for _ in range(MAX_DOCUMENT_DEPTH + 1):
        level = [inner for outer in level for inner in iterate_children(outer)]
        if any(isinstance(item, int | float) and abs(item) > MAX_NUMBER for item in level):
            problems.add("$: contains a number beyond 2^53")
            return
        if not level:
            return
    problems.add(f"$: nested deeper than {MAX_DOCUMENT_DEPTH}")


def _check_ids(document: ImportedDocument, problems: _ProblemList) -> None:
    for name, ids in (
        ("messages", [message.id for message in document.messages]),
        ("files", [file.id.lower() for file in document.files]),
    ):
        seen: set[str] = set()
        for place, item_id in enumerate(ids):
            if item_id in seen:
                problems.add(f"{name}[{place}].id: is used twice")
            seen.add(item_id)


def _check_calls(document: ImportedDocument, problems: _ProblemList) -> None:
    """Check that every result answers an earlier call exactly once. Calls without a result are allowed."""
    called: set[str] = set()
    answered: set[str] = set()
    parts = 0
    for place, message in enumerate(document.messages):
        for number, part in enumerate(message.parts):
            parts += 1
            where = f"messages[{place}].parts[{number}].call_id"
            if isinstance(part, ImportedToolCallPart):
                if part.call_id in called:
                    problems.add(f"{where}: is used twice")
                called.add(part.call_id)
            elif isinstance(part, ImportedToolResultPart):
                if part.call_id not in called or part.call_id in answered:
                    problems.add(f"{where}: answers no open call")
                answered.add(part.call_id)
    if parts > MAX_DOCUMENT_PARTS:
        problems.add(f"messages: {parts:,} parts; at most {MAX_DOCUMENT_PARTS:,} can be imported")
