"""Our events as parts of an AI SDK UI message; pure (E4.1).

Blocks of text and thought are opened by their first words and never overlap: whatever else begins closes what is open.
A call's input is told at once, when it is whole. A step ends where the next begins, so that results stand in the step of
their calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from copilot.events import (
    JSON,
    ApprovalRequested,
    ArtifactAdded,
    Event,
    MessageView,
    NoticeContent,
    NoticePosted,
    QuestionAsked,
    ReasoningEnded,
    ReasoningExtended,
    StepRetracted,
    StepStarted,
    TextEnded,
    TextExtended,
    TodosChanged,
    ToolCallContent,
    ToolCalled,
    ToolFinished,
    ToolProposed,
    ToolResultContent,
    TurnCancelled,
    TurnFailed,
    TurnPaused,
    TurnSucceeded,
)
from copilot.notices import NOTICES

Part = dict[str, JSON]
Block = Literal["text", "reasoning"]


@dataclass(frozen=True)
class _Open:
    block: Block
    row_id: str
    part_id: str


@dataclass
class Parts:
    """One message's parts, in the order of the turn's events; an event told twice says nothing new."""

    message_id: str
    site: str = ""  # before links
    link: str = ""  # where a person decides
    ended: bool = False
    _in_step: bool = False
    _open: _Open | None = None
    _told: dict[str, int] = field(default_factory=dict)  # row → characters
    _opened: int = 0
    _tools: dict[str, str] = field(default_factory=dict)  # call → tool
    _called: set[str] = field(default_factory=set)
    _finished: set[str] = field(default_factory=set)

    def begin(self) -> list[Part]:
        return [{"type": "start", "messageId": self.message_id}]

    def of(self, event: Event) -> list[Part]:
        if self.ended:
            return []
        match event:
            case TextExtended():
                return self._extend("text", event.row_id, event.offset, event.delta)
            case ReasoningExtended():
                return self._extend("reasoning", event.row_id, event.offset, event.delta)
            case TextEnded() | ReasoningEnded():
                return self._close(event.row_id)
            case StepStarted():
                return [*self._end_step(), *self._step()]
            case StepRetracted():
                rows: list[JSON] = list(event.row_ids)
                return [_data("retracted", {"row_ids": rows}), *self._end_step()]
            case ToolProposed() | ToolCalled() | ToolFinished():
                return self._of_tool(event)
            case TurnSucceeded() | TurnPaused() | TurnFailed() | TurnCancelled():
                return self._end(event)
            case _:
                return self._beside(event)

    def replay(self, rows: Iterable[MessageView]) -> list[Part]:
        """What a turn in flight has written until now."""
        return [part for row in rows for part in self._of_row(row)]

    # --- blocks and steps ------------------------------------------------------------------------

    def _extend(self, block: Block, row_id: str, offset: int, delta: str) -> list[Part]:
        told = self._told.get(row_id, 0)
        news = delta[max(0, told - offset) :]
        if not news:
            return []
        self._told[row_id] = max(told, offset + len(delta))
        parts = self._opening(block, row_id)
        assert self._open is not None
        return [*parts, {"type": f"{block}-delta", "id": self._open.part_id, "delta": news}]

    def _opening(self, block: Block, row_id: str) -> list[Part]:
        if self._open is not None and self._open.row_id == row_id and self._open.block == block:
            return []
        parts = [*self._close(), *self._step()]
        self._opened += 1
        self._open = _Open(block, row_id, f"{block}-{self._opened}")
        return [*parts, {"type": f"{block}-start", "id": self._open.part_id}]

    def _close(self, row_id: str | None = None) -> list[Part]:
        """Whatever is open; or only this row."""
        if self._open is None or row_id not in (None, self._open.row_id):
            return []
        closed, self._open = self._open, None
        return [{"type": f"{closed.block}-end", "id": closed.part_id}]

    def _step(self) -> list[Part]:
        if self._in_step:
            return []
        self._in_step = True
        return [{"type": "start-step"}]

    def _end_step(self) -> list[Part]:
        parts = self._close()
        if self._in_step:
            self._in_step = False
            parts.append({"type": "finish-step"})
        return parts

    # --- tools -----------------------------------------------------------------------------------

    def _of_tool(self, event: ToolProposed | ToolCalled | ToolFinished) -> list[Part]:
        match event:
            case ToolProposed():
                self._tools[event.call_id] = event.tool
                return []
            case ToolCalled():
                return self._call(event.call_id, event.tool, event.arguments)
            case ToolFinished():
                return self._result(event.call_id, event.success, event.preview)

    def _call(self, call_id: str, tool: str, arguments: Mapping[str, str]) -> list[Part]:
        if call_id in self._called:
            return []
        self._called.add(call_id)
        call: Part = {"toolCallId": call_id, "toolName": tool, "dynamic": True}
        return [
            *self._close(),
            *self._step(),
            {"type": "tool-input-start", **call},
            {"type": "tool-input-available", **call, "input": dict(arguments)},
        ]

    def _result(self, call_id: str, success: bool, preview: str) -> list[Part]:
        if call_id in self._finished:
            return []
        self._finished.add(call_id)
        parts = [*self._close(), *self._call(call_id, self._tools.get(call_id, "tool"), {})]
        result: Part = {"toolCallId": call_id, "dynamic": True}
        if success:
            return [*parts, {"type": "tool-output-available", **result, "output": preview}]
        return [*parts, {"type": "tool-output-error", **result, "errorText": preview}]

    # --- what stands beside, and the end ---------------------------------------------------------

    def _beside(self, event: Event) -> list[Part]:
        match event:
            case ArtifactAdded():
                url = f"{self.site}/api/v1/files/{event.file_id}/download"
                return [{"type": "file", "url": url, "mediaType": event.type}]
            case NoticePosted():
                return [_data("notice", {"code": event.code, "label": event.label, "hint": event.hint})]
            case TodosChanged():
                items: list[JSON] = [{"text": one.text, "status": one.status} for one in event.items]
                return [_data("todos", {"items": items})]
            case ApprovalRequested():
                calls: list[JSON] = [{"id": one.id, "tool": one.tool} for one in event.approvals]
                return [_data("approvals", {"items": calls, "link": self.link})]
            case QuestionAsked():
                asked = event.question
                choices: list[JSON] = list(asked.choices)
                return [_data("question", {"id": asked.id, "question": asked.question, "choices": choices})]
            case _:
                return []

    def _end(self, event: TurnSucceeded | TurnPaused | TurnFailed | TurnCancelled) -> list[Part]:
        match event:
            case TurnFailed():
                return self.fail(event.code)
            case TurnCancelled():
                return self.close({"type": "abort"})
            case TurnSucceeded() | TurnPaused():
                return self.close({"type": "finish"})

    def fail(self, code: str) -> list[Part]:
        words = NOTICES.get(code, NOTICES["unknown"])
        return self.close({"type": "error", "errorText": f"{words.label}. {words.hint}"})

    def close(self, last: Part) -> list[Part]:
        """The one ending."""
        if self.ended:
            return []
        self.ended = True
        return [*self._end_step(), last]

    def _of_row(self, row: MessageView) -> list[Part]:
        match row.content:
            case ToolCallContent(call_id=call_id, tool=tool, arguments=arguments):
                return self._call(call_id, tool, arguments)
            case ToolResultContent(call_id=call_id, success=success, preview=preview):
                return self._result(call_id, success, preview)
            case NoticeContent(code=code, label=label, hint=hint):
                return [_data("notice", {"code": code, "label": label, "hint": hint})]
            case str() as text if row.kind in ("assistant", "reasoning"):
                block: Block = "text" if row.kind == "assistant" else "reasoning"
                return [*self._extend(block, row.id, 0, text), *([] if row.streaming else self._close())]
            case _:
                return []


def _data(name: str, value: dict[str, JSON]) -> Part:
    return {"type": f"data-{name}", "data": value}
