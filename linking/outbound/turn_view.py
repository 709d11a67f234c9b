"""Fold a turn's rows and events into what a chat shows of it: text, decision cards and state. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from copilot.chat.turn_details import TurnRequests
from copilot.realtime.events import (
    ApprovalDecided,
    ApprovalRequested,
    Event,
    NoticePosted,
    QuestionAsked,
    QuestionClosed,
    StepRetracted,
    TextExtended,
    TextStarted,
    ToolCalled,
    ToolFinished,
    TurnCancelled,
    TurnFailed,
    TurnPaused,
    TurnRecovering,
    TurnStarted,
    TurnSucceeded,
)
from copilot.realtime.payloads import (
    ApprovalPayload,
    MessagePayload,
    NoticeContent,
    QuestionPayload,
    ToolCallContent,
)

ViewState = Literal["queued", "working", "waiting", "over"]
MAX_ARGUMENTS = 6
MAX_ARGUMENT_CHARACTERS = 120
STOPPED_TEXT = "*Stopped.*"
OPEN_STATES = ("requested", "open")
OUTCOME_LABELS = {
    "running": "Approved",
    "done": "Approved",
    "timed_out": "No answer in time",
    "superseded": "Skipped",
}


@dataclass(frozen=True, kw_only=True)
class DecisionCard:
    """An approval or a question that a person has to decide."""

    subject: Literal["approval", "question"]
    subject_id: str
    call_id: str
    text: str
    choices: tuple[tuple[str, str], ...] = ()  # label and answer
    closed: str = ""  # the outcome in words; empty while the card is open


@dataclass(frozen=True)
class TurnBlock:
    """Either text or a card."""

    text: str = ""
    card: DecisionCard | None = None


@dataclass
class _ViewRow:
    sequence: int
    text: str = ""
    call_id: str = ""


@dataclass
class TurnView:
    """The visible state of one turn. Applying the same event twice changes nothing."""

    state: ViewState = "queued"
    tool: str = ""  # the tool in use
    ending: str = ""  # shown if the turn ended without any text
    cards: dict[str, DecisionCard] = field(default_factory=dict)  # by call id
    _rows: dict[str, _ViewRow] = field(default_factory=dict)

    def load_messages(self, rows: Iterable[MessagePayload]) -> None:
        for row in rows:
            self._add_message(row)

    def has_tool_calls(self) -> bool:
        return any(row.call_id for row in self._rows.values())

    def apply_event(self, event: Event) -> bool:
        """Apply an event and return True if anything visible changed."""
        match event:
            case TextExtended():
                return self._extend_text(event)
            case TextStarted() if event.message is not None:
                if event.row_id not in self._rows:
                    self._add_message(event.message)
            case ToolCalled():
                self.tool = event.tool
                if event.message is not None:
                    self._add_message(event.message)
            case ToolFinished():
                self.tool = ""
            case StepRetracted():
                for row_id in event.row_ids:
                    self._rows.pop(row_id, None)
            case NoticePosted() if event.message is not None:
                self._add_message(event.message)
            case ApprovalRequested():
                for view in event.approvals:
                    self.add_card(build_approval_card(view))
            case QuestionAsked():
                self.add_card(build_question_card(event.question))
            case ApprovalDecided():
                self._close_card(event.approval_id, event.state)
            case QuestionClosed():
                self._close_card(event.question_id, event.outcome)
            case _:
                return self._apply_status(event)
        return True

    def _apply_status(self, event: Event) -> bool:
        match event:
            case TurnStarted():
                self.state = "working"
            case TurnRecovering():
                self.tool = ""
            case TurnPaused():
                self.state = "waiting"
            case TurnCancelled():
                self.state, self.ending = "over", STOPPED_TEXT
            case TurnSucceeded() | TurnFailed():
                self.state = "over"
            case _:
                return False
        return True

    def add_card(self, card: DecisionCard) -> None:
        self.cards.setdefault(card.call_id, card)

    def _close_card(self, subject_id: str, outcome: str) -> None:
        for call_id, card in self.cards.items():
            if card.subject_id == subject_id:
                self.cards[call_id] = _with_outcome(card, outcome)

    def _add_message(self, row: MessagePayload) -> None:
        match row.content:
            case str() if row.kind == "assistant":
                self._rows[row.id] = _ViewRow(row.sequence, text=row.content)
            case NoticeContent():
                notice = f"{row.content.label}. {row.content.hint}".strip()
                self._rows[row.id] = _ViewRow(row.sequence, text=f"*{notice}*")
            case ToolCallContent():
                self._rows[row.id] = _ViewRow(row.sequence, call_id=row.content.call_id)
            case _:
                pass

    def _extend_text(self, event: TextExtended) -> bool:
        row = self._rows.get(event.row_id)
        if row is None or event.offset > len(row.text):
            return False  # there is a gap before this delta
        if row.text[event.offset : event.offset + len(event.delta)] == event.delta:
            return False
        row.text = row.text[: event.offset] + event.delta
        return True

    def build_blocks(self) -> list[TurnBlock]:
        """Return texts and cards in the order of their rows."""
        blocks: list[TurnBlock] = []
        paragraphs: list[str] = []
        for row in sorted(self._rows.values(), key=lambda row: row.sequence):
            card = self.cards.get(row.call_id) if row.call_id else None
            if card is not None:
                blocks += [TurnBlock(text=_join_paragraphs(paragraphs)), TurnBlock(card=card)]
                paragraphs = []
            elif row.text:
                paragraphs.append(row.text)
        return [
            block
            for block in (*blocks, TurnBlock(text=_join_paragraphs(paragraphs)))
            if block.card or block.text.strip()
        ]


def _join_paragraphs(paragraphs: list[str]) -> str:
    return "\n\n".join(paragraphs)


def build_cards(requests: TurnRequests) -> list[DecisionCard]:
    approvals = [_with_outcome(build_approval_card(view), state) for view, state in requests.approvals]
    questions = [_with_outcome(build_question_card(view), outcome) for view, outcome in requests.questions]
    return approvals + questions


def _with_outcome(card: DecisionCard, state: str) -> DecisionCard:
    return (
        card if state in OPEN_STATES else replace(card, closed=OUTCOME_LABELS.get(state, state.capitalize()))
    )


def build_approval_card(view: ApprovalPayload) -> DecisionCard:
    arguments = [
        f"- {name}: `{_shorten(value)}`" for name, value in list(view.arguments.items())[:MAX_ARGUMENTS]
    ]
    lines = [f"**May I use {format_tool_name(view.tool)}?**", view.reason, *arguments]
    return DecisionCard(
        subject="approval",
        subject_id=view.id,
        call_id=view.call_id,
        text="\n".join(line for line in lines if line),
        choices=(("Approve", "approve"), ("Reject", "reject")),
    )


def build_question_card(view: QuestionPayload) -> DecisionCard:
    return DecisionCard(
        subject="question",
        subject_id=view.id,
        call_id=view.call_id,
        text=f"**{view.question}**" if len(view.question) < 200 else view.question,
        choices=tuple((choice, choice) for choice in view.choices),
    )


def format_tool_name(tool: str) -> str:
    return tool.replace("__", " ").replace("_", " ")


def _shorten(value: object) -> str:
    text = " ".join(str(value).replace("`", "'").split())
    return text if len(text) <= MAX_ARGUMENT_CHARACTERS else text[: MAX_ARGUMENT_CHARACTERS - 1] + "…"
