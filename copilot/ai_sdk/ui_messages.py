"""Convert our events to parts of an AI SDK UI message.

Blocks of text and reasoning open with their first words and never overlap: whatever begins next closes the open one.
The input of a tool call is sent at once, when it is complete. A step ends where the next begins, so that results stand
in the step of their calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from config.core.json_values import JSON
from copilot.chat.notices import NOTICES
from copilot.realtime.events import (
    ApprovalRequested,
    ArtifactAdded,
    Event,
    NoticePosted,
    QuestionAsked,
    ReasoningEnded,
    ReasoningExtended,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TodosChanged,
    ToolCalled,
    ToolFinished,
    ToolProposed,
    TurnCancelled,
    TurnFailed,
    TurnPaused,
    TurnSucceeded,
)
from copilot.realtime.payloads import MessagePayload, NoticeContent, ToolCallContent, ToolResultContent

UIMessagePart = dict[str, JSON]
BlockKind = Literal["text", "reasoning"]


@dataclass(frozen=True)
class _OpenUIBlock:
    block: BlockKind
    row_id: str
    part_id: str


@dataclass
class UIMessageWriter:
    """Write the parts of one message in the order of the turn's events; a repeated event adds nothing."""

    message_id: str
    site: str = ""  # the prefix of links
    link: str = ""  # the page where a person decides
    ended: bool = False
    _in_step: bool = False
    _open: _OpenUIBlock | None = None
    _sent_characters: dict[str, int] = field(default_factory=dict)  # by row
    _block_count: int = 0
    _tools: dict[str, str] = field(default_factory=dict)  #  tool→by call id→ tool
    _called_ids: set[str] = field(default_factory=set)
    _finished_ids: set[str] = field(default_factory=set)

    def begin(self) -> list[UIMessagePart]:
        return [{"type": "start", "messageId": self.message_id}]

    def convert_event(self, event: Event) -> list[UIMessagePart]:
        if self.ended:
            return []
        match event:
            case TextExtended():
                return self._extend_block("text", event.row_id, event.offset, event.delta)
            case ReasoningExtended():
                return self._extend_block("reasoning", event.row_id, event.offset, event.delta)
            case TextEnded() | ReasoningEnded():
                return self._close_block(event.row_id)
            case StepStarted():
                return [*self._end_step(), *self._ensure_step()]
            case StepRetracted():
                rows: list[JSON] = list(event.row_ids)
                return [_build_data_part("retracted", {"row_ids": rows}), *self._end_step()]
            case ToolProposed() | ToolCalled() | ToolFinished():
                return self._convert_tool_event(event)
            case TurnSucceeded() | TurnPaused() | TurnFailed() | TurnCancelled():
                return self._convert_ending(event)
            case _:
                return self._convert_other_event(event)

    def replay_rows(self, rows: Iterable[MessagePayload]) -> list[UIMessagePart]:
        return [part for row in rows for part in self._convert_row(row)]

    # --- Blocks and steps ---

    def _extend_block(self, block: BlockKind, row_id: str, offset: int, delta: str) -> list[UIMessagePart]:
        sent = self._sent_characters.get(row_id, 0)
        new_text = delta[max(0, sent - offset) :]
        if not new_text:
            return []
        self._sent_characters[row_id] = max(sent, offset + len(delta))
        parts = self._open_block(block, row_id)
        assert self._open is not None
        return [*parts, {"type": f"{block}-delta", "id": self._open.part_id, "delta": new_text}]

    def _open_block(self, block: BlockKind, row_id: str) -> list[UIMessagePart]:
        if self._open is not None and self._open.row_id == row_id and self._open.block == block:
            return []
        parts = [*self._close_block(), *self._ensure_step()]
        self._block_count += 1
        self._open = _OpenUIBlock(block, row_id, f"{block}-{self._block_count}")
        return [*parts, {"type": f"{block}-start", "id": self._open.part_id}]

    def _close_block(self, row_id: str | None = None) -> list[UIMessagePart]:
        if self._open is None or row_id not in (None, self._open.row_id):
            return []
        closed, self._open = self._open, None
        return [{"type": f"{closed.block}-end", "id": closed.part_id}]

    def _ensure_step(self) -> list[UIMessagePart]:
        if self._in_step:
            return []
        self._in_step = True
        return [{"type": "start-step"}]

    def _end_step(self) -> list[UIMessagePart]:
        parts = self._close_block()
        if self._in_step:
            self._in_step = False
            parts.append({"type": "finish-step"})
        return parts

    # --- Tools ---

    def _convert_tool_event(self, event: ToolProposed | ToolCalled | ToolFinished) -> list[UIMessagePart]:
        match event:
            case ToolProposed():
                self._tools[event.call_id] = event.tool
                return []
            case ToolCalled():
                return self._build_call_parts(event.call_id, event.tool, event.arguments)
            case ToolFinished():
                return self._build_result_parts(event.call_id, event.success, event.preview)

    def _build_call_parts(self, call_id: str, tool: str, arguments: Mapping[str, str]) -> list[UIMessagePart]:
        if call_id in self._called_ids:
            return []
        self._called_ids.add(call_id)
        call: UIMessagePart = {"toolCallId": call_id, "toolName": tool, "dynamic": True}
        return [
            *self._close_block(),
            *self._ensure_step(),
            {"type": "tool-input-start", **call},
            {"type": "tool-input-available", **call, "input": dict(arguments)},
        ]

    def _build_result_parts(self, call_id: str, success: bool, preview: str) -> list[UIMessagePart]:
        if call_id in self._finished_ids:
            return []
        self._finished_ids.add(call_id)
        parts = [*self._close_block(), *self._build_call_parts(call_id, self._tools.get(call_id, "tool"), {})]
        result: UIMessagePart = {"toolCallId": call_id, "dynamic": True}
        if success:
            return [*parts, {"type": "tool-output-available", **result, "output": preview}]
        return [*parts, {"type": "tool-output-error", **result, "errorText": preview}]

    # --- Other events and endings ---

    def _convert_other_event(self, event: Event) -> list[UIMessagePart]:
        match event:
            case ArtifactAdded():
                url = f"{self.site}/api/v1/files/{event.file_id}/download"
                return [{"type": "file", "url": url, "mediaType": event.type}]
            case NoticePosted():
                return [
                    _build_data_part("notice", {"code": event.code, "label": event.label, "hint": event.hint})
                ]
            case TodosChanged():
                items: list[JSON] = [{"text": item.text, "status": item.status} for item in event.items]
                return [_build_data_part("todos", {"items": items})]
            case ApprovalRequested():
                calls: list[JSON] = [
                    {"id": approval.id, "tool": approval.tool} for approval in event.approvals
                ]
                return [_build_data_part("approvals", {"items": calls, "link": self.link})]
            case QuestionAsked():
                question = event.question
                choices: list[JSON] = list(question.choices)
                return [
                    _build_data_part(
                        "question", {"id": question.id, "question": question.question, "choices": choices}
                    )
                ]
            case _:
                return []

    def _convert_ending(
        self, event: TurnSucceeded | TurnPaused | TurnFailed | TurnCancelled
    ) -> list[UIMessagePart]:
        match event:
            case TurnFailed():
                return self.fail(event.code)
            case TurnCancelled():
                return self.close({"type": "abort"})
            case TurnSucceeded() | TurnPaused():
                return self.close({"type": "finish"})

    def fail(self, code: str) -> list[UIMessagePart]:
        notice = NOTICES.get(code, NOTICES["unknown"])
        return self.close({"type": "error", "errorText": f"{notice.label}. {notice.hint}"})

    def close(self, last: UIMessagePart) -> list[UIMessagePart]:
        if self.ended:
            return []
        self.ended = True
        return [*self._end_step(), last]

    def _convert_row(self, row: MessagePayload) -> list[UIMessagePart]:
        match row.content:
            case ToolCallContent(call_id=call_id, tool=tool, arguments=arguments):
                return self._build_call_parts(call_id, tool, arguments)
            case ToolResultContent(call_id=call_id, success=success, preview=preview):
                return self._build_result_parts(call_id, success, preview)
            case NoticeContent(code=code, label=label, hint=hint):
                return [_build_data_part("notice", {"code": code, "label": label, "hint": hint})]
            case str() as text if row.kind in ("assistant", "reasoning"):
                block: BlockKind = "text" if row.kind == "assistant" else "reasoning"
                return [
                    *self._extend_block(block, row.id, 0, text),
                    *([] if row.streaming else self._close_block()),
                ]
            case _:
                return []


def _build_data_part(name: str, value: dict[str, JSON]) -> UIMessagePart:
    return {"type": f"data-{name}", "data": value}
