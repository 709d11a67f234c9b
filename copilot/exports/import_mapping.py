"""Map the parts of an imported document to rows with new ids, grouped into ended turns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never
from uuid import uuid4

from config.core.json_values import JSON
from config.core.text import make_storable
from copilot.chat.imported_history import ImportedMessage, ImportedTurn
from copilot.chat.messages import build_result_data
from copilot.chat.prompt_tags import strip_server_tags
from copilot.exports.import_parser import (
    ImportedAssistantPart,
    ImportedDocument,
    ImportedReasoningPart,
    ImportedSummaryPart,
    ImportedToolCallPart,
    ImportedToolResultPart,
    ImportedUserPart,
)
from copilot.exports.import_parser import ImportedMessage as ParsedMessage
from copilot.realtime.payloads import AttachmentPayload

MAX_PREVIEW_CHARACTERS = 4_000  # as for our own results
UNANSWERED_CALL_TEXT = "No result: the chat was exported before the call finished."
_URI = re.compile(
    r"workspace://(?P<id>[0-9a-z-]{1,128})"
    r"(?P<rest>(?:/(?P<name>[^\s()\[\]<>\"'#]{0,254}[^\s()\[\]<>\"'#.,;:!?]))?(?:#[\w./+-]{0,126}\w)?)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class MappedDocument:
    rows: list[ImportedMessage]
    turns: list[ImportedTurn]


@dataclass(frozen=True, kw_only=True)
class ImportedFileNames:
    """The document's files: the stored copies, and the names of those that are missing."""

    stored: Mapping[str, AttachmentPayload]
    missing: Mapping[str, str]  # id → name

    def rewrite_references(self, text: str) -> str:
        """Replace every file reference, so that no id of the document survives."""
        return _URI.sub(self._replace_reference, text)

    def _replace_reference(self, found: re.Match[str]) -> str:
        file_id = found["id"].lower()
        if (file := self.stored.get(file_id)) is not None:
            return f"workspace://{file.file_id}{found['rest']}"
        return describe_missing_file(self.missing.get(file_id) or found["name"] or "file")


def describe_missing_file(name: str) -> str:
    return f"[missing file: {name}]"


def map_document(document: ImportedDocument, names: ImportedFileNames) -> MappedDocument:
    answered = {
        part.call_id
        for message in document.messages
        for part in message.parts
        if isinstance(part, ImportedToolResultPart)
    }
    mapper = _DocumentMapper(names, document.session.model_tier, answered)
    for message in document.messages:
        mapper.add_message(message)
    return MappedDocument(rows=mapper.rows, turns=mapper.turns)


@dataclass
class _DocumentMapper:
    names: ImportedFileNames
    tier: str
    answered: set[str]  # calls that have a result anywhere in the document
    rows: list[ImportedMessage] = field(default_factory=list)
    turns: list[ImportedTurn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # the last row of each message
    open_calls: dict[str, tuple[str, str]] = field(default_factory=dict)  # their id → our id and the tool
    was_answered: bool = False  # the next user message begins a turn

    def add_message(self, message: ParsedMessage) -> None:
        self._begin_turn(message)
        for number, part in enumerate(message.parts):
            self._add_part(message, part, first=number == 0)
        self._close_calls()
        self.ends.append(len(self.rows))

    def _begin_turn(self, message: ParsedMessage) -> None:
        """Begin a turn at a user message after an answer. Messages between calls belong to the running turn."""
        is_user_turn = message.role == "user" and not self.open_calls
        if not self.turns or (is_user_turn and self.was_answered):
            self.turns.append(
                ImportedTurn(id=uuid4(), began_at=message.created_at, ended_at=message.created_at)
            )
            self.was_answered = False
        else:
            ended = max(self.turns[-1].ended_at, message.created_at)
            self.turns[-1] = replace(self.turns[-1], ended_at=ended)
        self.was_answered = self.was_answered or message.role == "assistant"

    def _add_part(
        self,
        message: ParsedMessage,
        part: ImportedUserPart
        | ImportedAssistantPart
        | ImportedReasoningPart
        | ImportedSummaryPart
        | ImportedToolCallPart
        | ImportedToolResultPart,
        *,
        first: bool,
    ) -> None:
        match part:
            case ImportedUserPart():
                self._add_user_row(message, part, first=first)
            case ImportedAssistantPart() | ImportedReasoningPart():
                self._add_row(message, part.type, self._rewrite_text(part.text))
            case ImportedSummaryPart():
                anchor = self.ends[min(part.through, len(self.ends)) - 1] if part.through and self.ends else 0
                self._add_row(message, "summary", self._rewrite_text(part.text), data={"anchor": anchor})
            case ImportedToolCallPart():
                self._add_call(message, part)
            case ImportedToolResultPart():
                self._add_result(message.created_at, part)
            case unreachable:
                assert_never(unreachable)

    def _add_user_row(self, message: ParsedMessage, part: ImportedUserPart, *, first: bool) -> None:
        text = self._rewrite_text(part.text)
        wanted = message.attachments if first else []
        missing_names = [
            self.names.missing.get(file_id.lower(), "file")
            for file_id in wanted
            if file_id.lower() not in self.names.stored
        ]
        row = self._make_row(
            message.created_at,
            "user",
            "\n\n".join([text, *map(describe_missing_file, missing_names)]).strip("\n"),
        )
        self.rows.append(
            replace(
                row,
                author=message.author,
                branch=message.branch,
                tier=self.tier,
                mid_turn=bool(self.open_calls),
                attachments=[
                    self.names.stored[file_id.lower()]
                    for file_id in wanted
                    if file_id.lower() in self.names.stored
                ],
            )
        )

    def _add_call(self, message: ParsedMessage, part: ImportedToolCallPart) -> None:
        call_id = f"call_{uuid4().hex}"
        self.open_calls[part.call_id] = (call_id, part.tool)
        data: dict[str, JSON] = {"tool": part.tool, "arguments": self._rewrite_json(part.arguments)}
        self.rows.append(
            replace(self._make_row(message.created_at, "tool_call", ""), call_id=call_id, data=data)
        )

    def _add_result(self, at: datetime, part: ImportedToolResultPart) -> None:
        call_id, tool = self.open_calls.pop(part.call_id)
        text = self._rewrite_text(part.text)
        data = build_result_data(
            tool, success=part.success, preview=text[:MAX_PREVIEW_CHARACTERS], duration_ms=part.duration_ms
        )
        self.rows.append(replace(self._make_row(at, "tool_result", text), call_id=call_id, data=data))

    def _close_calls(self) -> None:
        """Give calls without a result a failed one: nothing of a document ever runs."""
        for imported_id in [call_id for call_id in self.open_calls if call_id not in self.answered]:
            call_id, tool = self.open_calls.pop(imported_id)
            data = build_result_data(tool, success=False, preview=UNANSWERED_CALL_TEXT)
            row = self._make_row(self.rows[-1].created_at, "tool_result", UNANSWERED_CALL_TEXT)
            self.rows.append(replace(row, call_id=call_id, data=data))

    def _add_row(
        self, message: ParsedMessage, kind: str, text: str, data: dict[str, JSON] | None = None
    ) -> None:
        self.rows.append(replace(self._make_row(message.created_at, kind, text), data=data or {}))

    def _make_row(self, at: datetime, kind: str, text: str) -> ImportedMessage:
        return ImportedMessage(id=uuid4(), turn_id=self.turns[-1].id, kind=kind, content=text, created_at=at)

    def _rewrite_text(self, text: str) -> str:
        return self.names.rewrite_references(text)

    def _rewrite_json(self, value: object) -> JSON:
        """Rewrite the texts in arguments. The parser has limited their depth."""
        match value:
            case dict():
                return {self._rewrite_string(key): self._rewrite_json(inner) for key, inner in value.items()}
            case list():
                return [self._rewrite_json(inner) for inner in value]
            case str():
                return self._rewrite_string(value)
            case bool() | int() | float() | None:
                return value
            case _:
                raise TypeError(f"not JSON: {type(value).__name__}")

    def _rewrite_string(self, text: str) -> str:
        return self._rewrite_text(strip_server_tags(make_storable(text)))
