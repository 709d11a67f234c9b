"""A document from outside: taken only whole, or refused with the paths of its first problems (S16)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, TypeVar

import msgspec
from django.conf import settings
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from copilot.errors import InvalidRequest
from copilot.events import JSON
from copilot.rows import inside, storable
from copilot.tags import strip_server_tags

MAX_PARTS = 20_000  # rows of all messages together: a short part is a long row
MAX_DEPTH = 20
MAX_FILES = 1_000
MAX_PROBLEMS = 10
LARGEST = 2**53  # a number that every reader of JSON reads the same
CLOCKS_DIFFER = timedelta(days=1)  # a time so little ahead is taken as now; a later one was made up
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")
_SCHEMA = re.compile(r"pilothouse\.conversation/1(\.[0-9]{1,3})?")


class InvalidDocument(InvalidRequest):
    """Names what is wrong and where; nothing of the document was kept."""

    default_code = "invalid_document"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("This document cannot be imported.", hint=problems[0], problems=problems)


# --- the shape ---------------------------------------------------------------------------------------


def _cleaned(value: object) -> object:
    return strip_server_tags(storable(value)) if isinstance(value, str) else value


def _moment(value: object) -> object:
    """When something was said, as it was written down; never later than now."""
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
    if not EARLIEST <= moment <= now + CLOCKS_DIFFER:
        raise ValueError("must not lie in the future, nor before 1970")
    return min(moment, now)


def _short(text: str) -> str:
    if len(text) > settings.IMPORT_TEXT_MAX:
        raise ValueError(f"has more than {settings.IMPORT_TEXT_MAX:,} characters")
    return text


Clean = BeforeValidator(_cleaned)
Text = Annotated[str, Clean, AfterValidator(_short)]
Line = Annotated[str, Clean]
Id = Annotated[str, Field(min_length=1, max_length=128)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Said(_Strict):
    type: Literal["user"]
    text: Text


class Answered(_Strict):
    type: Literal["assistant"]
    text: Text


class Reasoned(_Strict):
    type: Literal["reasoning"]
    text: Text


class Summarised(_Strict):
    type: Literal["summary"]
    text: Text
    through: Count


class Called(_Strict):
    type: Literal["tool_call"]
    call_id: Id
    tool: ToolName
    arguments: dict[str, object]  # JSON; its depth was looked at before


class Returned(_Strict):
    type: Literal["tool_result"]
    call_id: Id
    tool: ToolName
    success: bool
    text: Text
    duration_ms: Annotated[int, Field(ge=0, le=10**9)]


UserPart = Said
AssistantPart = Annotated[Answered | Reasoned | Called | Returned, Field(discriminator="type")]


class _Message(_Strict):
    id: Id
    sequence: Count
    branch: Annotated[int, Field(ge=0, le=10_000)]
    author: Annotated[Line, Field(max_length=150)]
    created_at: Moment
    attachments: Annotated[list[Id], Field(max_length=MAX_FILES)]


class UserMessage(_Message):
    role: Literal["user"]
    parts: Annotated[list[UserPart], Field(min_length=1, max_length=MAX_PARTS)]


class AssistantMessage(_Message):
    role: Literal["assistant"]
    parts: Annotated[list[AssistantPart], Field(min_length=1, max_length=MAX_PARTS)]


class SummaryMessage(_Message):
    role: Literal["summary"]
    parts: Annotated[list[Summarised], Field(min_length=1, max_length=MAX_PARTS)]


Message = UserMessage | AssistantMessage | SummaryMessage


class File(_Strict):
    id: Id
    name: Annotated[Line, Field(min_length=1, max_length=255)]
    mime: Annotated[str, Field(max_length=127)]
    size: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    path: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class Session(_Strict):
    title: Annotated[Line, Field(max_length=200)]
    created_at: Moment
    model_tier: Annotated[str, Field(pattern=r"^[a-z0-9_-]{0,16}$")]


class _Frame(_Strict):
    """The document around its lists, which are looked at item by item."""

    schema_: Annotated[str, Field(alias="schema", max_length=100)]
    exported_at: Moment
    app_version: Annotated[str, Field(max_length=64)]
    session: Session
    messages: list[object]
    files: Annotated[list[object], Field(max_length=MAX_FILES)]


@dataclass(frozen=True, kw_only=True)
class Document:
    session: Session
    messages: list[Message]
    files: list[File]


_message = TypeAdapter[Message](Annotated[Message, Field(discriminator="role")])
_file = TypeAdapter(File)


# --- reading -----------------------------------------------------------------------------------------


def read(content: bytes) -> Document:
    """The document in these bytes, every text of it free of the server's own tags."""
    try:
        value = msgspec.json.decode(content)
    except RecursionError:
        raise InvalidDocument([f"$: nested deeper than {MAX_DEPTH}"]) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidDocument(["$: is not valid JSON in UTF-8"]) from None
    return read_value(value)


def read_value(value: JSON) -> Document:
    """The same of JSON that somebody has read already."""
    problems = _Problems()
    _look_at_nesting(value, problems)
    problems.raise_if_any()
    try:
        frame = _Frame.model_validate(value)
    except ValidationError as invalid:
        problems.add_all("", invalid)
        problems.raise_if_any()
        raise
    if not _SCHEMA.fullmatch(frame.schema_):
        problems.add("schema: must be pilothouse.conversation/1")
    if len(frame.messages) > settings.IMPORT_MESSAGES_MAX:
        problems.add(f"messages: at most {settings.IMPORT_MESSAGES_MAX:,} can be imported")
    problems.raise_if_any()
    document = Document(
        session=frame.session,
        messages=list(_items("messages", frame.messages, _message, problems)),
        files=list(_items("files", frame.files, _file, problems)),
    )
    problems.raise_if_any()
    _look_at_ids(document, problems)
    _look_at_calls(document, problems)
    problems.raise_if_any()
    return document


@dataclass
class _Problems:
    found: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        if not self.full():
            self.found.append(problem[:300])

    def add_all(self, path: str, invalid: ValidationError) -> None:
        for error in invalid.errors(include_url=False, include_context=False, include_input=False):
            self.add(f"{_path(path, error['loc'])}: {error['msg']}")

    def full(self) -> bool:
        return len(self.found) >= MAX_PROBLEMS

    def raise_if_any(self) -> None:
        if self.found:
            raise InvalidDocument(self.found)


def _path(begin: str, places: Iterable[int | str]) -> str:
    """Names of union branches are no part of the document and are left out."""
    path = begin
    for place in places:
        if isinstance(place, int):
            path += f"[{place}]"
        elif place not in _BRANCHES:
            path += f".{place}" if path else place
    return path or "$"


_BRANCHES = {"user", "assistant", "summary", "reasoning", "tool_call", "tool_result"}


def _items(name: str, raw: list[object], shape: TypeAdapter[T], problems: _Problems) -> Iterator[T]:
    """Item by item, so that a document of nothing but mistakes costs no more than its first ten."""
    for place, one in enumerate(raw):
        if problems.full():
            return
        try:
            yield shape.validate_python(one)
        except ValidationError as invalid:
            problems.add_all(f"{name}[{place}]", invalid)


def _look_at_nesting(value: JSON, problems: _Problems) -> None:
    """Iterative: what is nested without end must not nest us. The document itself is the first level."""
    level: list[JSON] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in inside(outer)]
        if any(isinstance(one, int | float) and abs(one) > LARGEST for one in level):
            problems.add("$: holds a number beyond 2^53")
            return
        if not level:
            return
    problems.add(f"$: nested deeper than {MAX_DEPTH}")


def _look_at_ids(document: Document, problems: _Problems) -> None:
    for name, ids in (
        ("messages", [one.id for one in document.messages]),
        ("files", [one.id.lower() for one in document.files]),
    ):
        seen: set[str] = set()
        for place, one in enumerate(ids):
            if one in seen:
                problems.add(f"{name}[{place}].id: is used twice")
            seen.add(one)


def _look_at_calls(document: Document, problems: _Problems) -> None:
    """Every result answers a call made before it, once; a call without a result is closed later."""
    called: set[str] = set()
    answered: set[str] = set()
    parts = 0
    for place, message in enumerate(document.messages):
        for number, part in enumerate(message.parts):
            parts += 1
            where = f"messages[{place}].parts[{number}].call_id"
            if isinstance(part, Called):
                if part.call_id in called:
                    problems.add(f"{where}: is used twice")
                called.add(part.call_id)
            elif isinstance(part, Returned):
                if part.call_id not in called or part.call_id in answered:
                    problems.add(f"{where}: answers no open call")
                answered.add(part.call_id)
    if parts > MAX_PARTS:
        problems.add(f"messages: {parts:,} parts; at most {MAX_PARTS:,} can be imported")
