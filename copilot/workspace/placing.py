"""Where the parts of a document come to stand: rows with new ids, grouped into turns that are over (S16)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never
from uuid import uuid4

from copilot.events import JSON, AttachmentView
from copilot.history import PastRow, result_data
from copilot.rows import storable
from copilot.tags import strip_server_tags
from copilot.turns import PastTurn
from copilot.workspace.incoming import (
    Answered,
    Called,
    Document,
    Message,
    Reasoned,
    Returned,
    Said,
    Summarised,
)

PREVIEW_CHARACTERS = 4_000  # as results made here have
UNANSWERED = "No result: the conversation was imported before one came."
_URI = re.compile(
    r"workspace://(?P<id>[0-9a-z-]{1,128})"
    r"(?P<rest>(?:/(?P<name>[^\s()\[\]<>\"'#]{0,254}[^\s()\[\]<>\"'#.,;:!?]))?(?:#[\w./+-]{0,126}\w)?)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Placed:
    rows: list[PastRow]
    turns: list[PastTurn]


@dataclass(frozen=True, kw_only=True)
class Names:
    """What the document's files are called here: those that came along, and the words for those that did not."""

    stored: Mapping[str, AttachmentView]
    missing: Mapping[str, str]  # id → name

    def rewritten(self, text: str) -> str:
        """No id of the document survives in a reference: what it names here was decided by this import."""
        return _URI.sub(self._reference, text)

    def _reference(self, found: re.Match[str]) -> str:
        file_id = found["id"].lower()
        if (file := self.stored.get(file_id)) is not None:
            return f"workspace://{file.file_id}{found['rest']}"
        return missing(self.missing.get(file_id) or found["name"] or "file")


def missing(name: str) -> str:
    return f"[missing file: {name}]"


def placed(document: Document, names: Names) -> Placed:
    answered = {
        part.call_id for message in document.messages for part in message.parts if isinstance(part, Returned)
    }
    placing = _Placing(names, document.session.model_tier, answered)
    for message in document.messages:
        placing.add(message)
    return Placed(rows=placing.rows, turns=placing.turns)


@dataclass
class _Placing:
    names: Names
    tier: str
    answered: set[str]  # calls that get a result, however late
    rows: list[PastRow] = field(default_factory=list)
    turns: list[PastTurn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # the last place of each message
    open_calls: dict[str, tuple[str, str]] = field(default_factory=dict)  # theirs → ours, and the tool
    was_answered: bool = False  # whoever speaks next begins a turn

    def add(self, message: Message) -> None:
        self._begin(message)
        for number, part in enumerate(message.parts):
            self._add(message, part, first=number == 0)
        self._close_calls()
        self.ends.append(len(self.rows))

    def _begin(self, message: Message) -> None:
        """A turn begins where a person speaks after an answer; what was said between calls belongs to the one going on."""
        speaks = message.role == "user" and not self.open_calls
        if not self.turns or (speaks and self.was_answered):
            self.turns.append(PastTurn(id=uuid4(), began_at=message.created_at, ended_at=message.created_at))
            self.was_answered = False
        else:
            ended = max(self.turns[-1].ended_at, message.created_at)
            self.turns[-1] = replace(self.turns[-1], ended_at=ended)
        self.was_answered = self.was_answered or message.role == "assistant"

    def _add(
        self,
        message: Message,
        part: Said | Answered | Reasoned | Summarised | Called | Returned,
        *,
        first: bool,
    ) -> None:
        match part:
            case Said():
                self._say(message, part, first=first)
            case Answered() | Reasoned():
                self._row(message, part.type, self._text(part.text))
            case Summarised():
                anchor = self.ends[min(part.through, len(self.ends)) - 1] if part.through and self.ends else 0
                self._row(message, "summary", self._text(part.text), data={"anchor": anchor})
            case Called():
                self._call(message, part)
            case Returned():
                self._result(message.created_at, part)
            case unreachable:
                assert_never(unreachable)

    def _say(self, message: Message, part: Said, *, first: bool) -> None:
        text = self._text(part.text)
        wanted = message.attachments if first else []
        lost = [
            self.names.missing.get(one.lower(), "file")
            for one in wanted
            if one.lower() not in self.names.stored
        ]
        row = self._made(message.created_at, "user", "\n\n".join([text, *map(missing, lost)]).strip("\n"))
        self.rows.append(
            replace(
                row,
                author=message.author,
                branch=message.branch,
                tier=self.tier,
                mid_turn=bool(self.open_calls),
                attachments=[
                    self.names.stored[one.lower()] for one in wanted if one.lower() in self.names.stored
                ],
            )
        )

    def _call(self, message: Message, part: Called) -> None:
        ours = f"call_{uuid4().hex}"
        self.open_calls[part.call_id] = (ours, part.tool)
        data: dict[str, JSON] = {"tool": part.tool, "arguments": self._inside(part.arguments)}
        self.rows.append(replace(self._made(message.created_at, "tool_call", ""), call_id=ours, data=data))

    def _result(self, at: datetime, part: Returned) -> None:
        ours, tool = self.open_calls.pop(part.call_id)
        text = self._text(part.text)
        data = result_data(
            tool, success=part.success, preview=text[:PREVIEW_CHARACTERS], duration_ms=part.duration_ms
        )
        self.rows.append(replace(self._made(at, "tool_result", text), call_id=ours, data=data))

    def _close_calls(self) -> None:
        """Calls that nobody answers are over: nothing of a document ever runs."""
        for theirs in [one for one in self.open_calls if one not in self.answered]:
            ours, tool = self.open_calls.pop(theirs)
            data = result_data(tool, success=False, preview=UNANSWERED)
            row = self._made(self.rows[-1].created_at, "tool_result", UNANSWERED)
            self.rows.append(replace(row, call_id=ours, data=data))

    def _row(self, message: Message, kind: str, text: str, data: dict[str, JSON] | None = None) -> None:
        self.rows.append(replace(self._made(message.created_at, kind, text), data=data or {}))

    def _made(self, at: datetime, kind: str, text: str) -> PastRow:
        return PastRow(id=uuid4(), turn_id=self.turns[-1].id, kind=kind, content=text, created_at=at)

    def _text(self, text: str) -> str:
        return self.names.rewritten(text)

    def _inside(self, value: object) -> JSON:
        """Arguments are at most twenty levels deep, as was seen before; their texts are texts like any other."""
        match value:
            case dict():
                return {self._inner(key): self._inside(inner) for key, inner in value.items()}
            case list():
                return [self._inside(inner) for inner in value]
            case str():
                return self._inner(value)
            case bool() | int() | float() | None:
                return value
            case _:
                raise TypeError(f"no JSON: {type(value).__name__}")

    def _inner(self, text: str) -> str:
        return self._text(strip_server_tags(storable(text)))
