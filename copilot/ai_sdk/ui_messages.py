"""Our events as parts of an AI SDK UI message; pure (E4.1).

Blocks of text and thought are opened by their first words and never overlap: whatever else begins closes what is open.
A call's input is told at once, when it is whole. A step ends where the next begins, so that results stand in the step of
their calls.
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
    """One message's parts, in the order of the turn's events; an event told twice says nothing new."""

    message_id: str
    site: str = ""  # before links
    link: str = ""  # where a person decides
    ended: bool = False
    _in_step: bool = False
    _open: _OpenUIBlock | None = None
    _told: dict[str, int] = field(default_factory=dict)  # row → characters
    _opened: int = 0
    _tools: dict[str, str] = field(default_factory=dict)  # call → tool
    _called: set[str] = field(default_factory=set)
    _finished: set[str] = field(default_factory=set)

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
        """What a turn in flight has written until now."""
        return [part for row in rows for part in self._convert_row(row)]

    # --- blocks and steps ------------------------------------------------------------------------

    def _extend_block(self, block: BlockKind, row_id: str, offset: int, delta: str) -> list[UIMessagePart]:
        told = self._told.get(row_id, 0)
        news = delta[max(0, told - offset) :]
        if not news:
            return []
        self._told[row_id] = max(told, offset + len(delta))
        parts = self._open_block(block, row_id)
        assert self._open is not None
        return [*parts, {"type": f"{block}-delta", "id": self._open.part_id, "delta": news}]

    def _open_block(self, block: BlockKind, row_id: str) -> list[UIMessagePart]:
        if self._open is not None and self._open.row_id == row_id and self._open.block == block:
            return []
        parts = [*self._close_block(), *self._ensure_step()]
        self._opened += 1
        self._open = _OpenUIBlock(block, row_id, f"{block}-{self._opened}")
        return [*parts, {"type": f"{block}-start", "id": self._open.part_id}]

    def _close_block(self, row_id: str | None = None) -> list[UIMessagePart]:
        """Whatever is open; or only this row."""
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

    # --- tools -----------------------------------------------------------------------------------

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
        if call_id in self._called:
            return []
        self._called.add(call_id)
        call: UIMessagePart = {"toolCallId": call_id, "toolName": tool, "dynamic": True}
        return [
            *self._close_block(),
            *self._ensure_step(),
            {"type": "tool-input-start", **call},
            {"type": "tool-input-available", **call, "input": dict(arguments)},
        ]

    def _build_result_parts(self, call_id: str, success: bool, preview: str) -> list[UIMessagePart]:
        if call_id in self._finished:
            return []
        self._finished.add(call_id)
        parts = [*self._close_block(), *self._build_call_parts(call_id, self._tools.get(call_id, "tool"), {})]
        result: UIMessagePart = {"toolCallId": call_id, "dynamic": True}
        if success:
            return [*parts, {"type": "tool-output-available", **result, "output": preview}]
        return [*parts, {"type": "tool-output-error", **result, "errorText": preview}]

    # --- what stands beside, and the end ---------------------------------------------------------

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
                items: list[JSON] = [{"text": one.text, "status": one.status} for one in event.items]
                return [_build_data_part("todos", {"items": items})]
            case ApprovalRequested():
                calls: list[JSON] = [{"id": one.id, "tool": one.tool} for one in event.approvals]
                return [_build_data_part("approvals", {"items": calls, "link": self.link})]
            case QuestionAsked():
                asked = event.question
                choices: list[JSON] = list(asked.choices)
                return [
                    _build_data_part(
                        "question", {"id": asked.id, "question": asked.question, "choices": choices}
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
        words = NOTICES.get(code, NOTICES["unknown"])
        return self.close({"type": "error", "errorText": f"{words.label}. {words.hint}"})

    def close(self, last: UIMessagePart) -> list[UIMessagePart]:
        """The one ending."""
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
