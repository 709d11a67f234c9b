"""A turn as its readers in a chat see it: what was said, what waits for a person, how it stands (L19). Pure."""

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
    "timed_out": "Nobody answered in time",
    "superseded": "Passed over",
}


@dataclass(frozen=True, kw_only=True)
class DecisionCard:
    """Something that a person has to decide; `closed` says in words how it went, empty while it is open."""

    subject: Literal["approval", "question"]
    subject_id: str
    call_id: str
    text: str
    choices: tuple[tuple[str, str], ...] = ()  # label and answer
    closed: str = ""


@dataclass(frozen=True)
class TurnBlock:
    """Words, or a card between them."""

    text: str = ""
    card: DecisionCard | None = None


@dataclass
class _ViewRow:
    sequence: int
    text: str = ""
    call_id: str = ""


@dataclass
class TurnView:
    """Folds the events of one turn; the same event twice changes nothing."""

    standing: ViewState = "queued"
    tool: str = ""  # what is being used just now
    ending: str = ""  # words for an ending that left none
    cards: dict[str, DecisionCard] = field(default_factory=dict)  # by call
    _rows: dict[str, _ViewRow] = field(default_factory=dict)

    def load_messages(self, rows: Iterable[MessagePayload]) -> None:
        """What stands in the rows, before the first event."""
        for row in rows:
            self._add_message(row)

    def has_tool_calls(self) -> bool:
        return any(row.call_id for row in self._rows.values())

    def apply_event(self, event: Event) -> bool:
        """Whether anything changed that people see."""
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
                self.standing = "working"
            case TurnRecovering():
                self.tool = ""
            case TurnPaused():
                self.standing = "waiting"
            case TurnCancelled():
                self.standing, self.ending = "over", STOPPED_TEXT
            case TurnSucceeded() | TurnFailed():
                self.standing = "over"
            case _:
                return False
        return True

    def add_card(self, card: DecisionCard) -> None:
        self.cards.setdefault(card.call_id, card)

    def _close_card(self, subject_id: str, how: str) -> None:
        for call_id, card in self.cards.items():
            if card.subject_id == subject_id:
                self.cards[call_id] = _with_outcome(card, how)

    def _add_message(self, row: MessagePayload) -> None:
        match row.content:
            case str() if row.kind == "assistant":
                self._rows[row.id] = _ViewRow(row.sequence, text=row.content)
            case NoticeContent():
                words = f"{row.content.label}. {row.content.hint}".strip()
                self._rows[row.id] = _ViewRow(row.sequence, text=f"*{words}*")
            case ToolCallContent():
                self._rows[row.id] = _ViewRow(row.sequence, call_id=row.content.call_id)
            case _:
                pass

    def _extend_text(self, event: TextExtended) -> bool:
        row = self._rows.get(event.row_id)
        if row is None or event.offset > len(row.text):
            return False  # beyond a gap nothing can be known
        if row.text[event.offset : event.offset + len(event.delta)] == event.delta:
            return False
        row.text = row.text[: event.offset] + event.delta
        return True

    def build_blocks(self) -> list[TurnBlock]:
        """In order: words, then what was asked between them, then the words after it."""
        made: list[TurnBlock] = []
        words: list[str] = []
        for row in sorted(self._rows.values(), key=lambda row: row.sequence):
            card = self.cards.get(row.call_id) if row.call_id else None
            if card is not None:
                made += [TurnBlock(text=_join_paragraphs(words)), TurnBlock(card=card)]
                words = []
            elif row.text:
                words.append(row.text)
        return [
            block
            for block in (*made, TurnBlock(text=_join_paragraphs(words)))
            if block.card or block.text.strip()
        ]


def _join_paragraphs(words: list[str]) -> str:
    return "\n\n".join(words)


def build_cards(asked: TurnRequests) -> list[DecisionCard]:
    """What a person was or is asked, from the rows; `closed` where that is over."""
    made = [_with_outcome(build_approval_card(view), state) for view, state in asked.approvals]
    return made + [_with_outcome(build_question_card(view), outcome) for view, outcome in asked.questions]


def _with_outcome(card: DecisionCard, state: str) -> DecisionCard:
    return (
        card if state in OPEN_STATES else replace(card, closed=OUTCOME_LABELS.get(state, state.capitalize()))
    )


def build_approval_card(view: ApprovalPayload) -> DecisionCard:
    shown = [f"- {name}: `{_shorten(value)}`" for name, value in list(view.arguments.items())[:MAX_ARGUMENTS]]
    lines = [f"**May I use {format_tool_name(view.tool)}?**", view.reason, *shown]
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
    """A tool's name as words."""
    return tool.replace("__", " ").replace("_", " ")


def _shorten(value: object) -> str:
    words = " ".join(str(value).replace("`", "'").split())
    return words if len(words) <= MAX_ARGUMENT_CHARACTERS else words[: MAX_ARGUMENT_CHARACTERS - 1] + "…"
