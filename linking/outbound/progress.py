"""A turn as its readers in a chat see it: what was said, what waits for a person, how it stands (L19). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from copilot.events import (
    ApprovalDecided,
    ApprovalRequested,
    ApprovalView,
    Event,
    MessageView,
    NoticeContent,
    NoticePosted,
    QuestionAsked,
    QuestionClosed,
    QuestionView,
    StepRetracted,
    TextExtended,
    TextStarted,
    ToolCallContent,
    ToolCalled,
    ToolFinished,
    TurnCancelled,
    TurnFailed,
    TurnPaused,
    TurnRecovering,
    TurnStarted,
    TurnSucceeded,
)
from copilot.turns import Asked

Standing = Literal["queued", "working", "waiting", "over"]
SHOWN_ARGUMENTS = 6
ARGUMENT_CHARACTERS = 120
STOPPED = "*Stopped.*"
OPEN = ("requested", "open")
HOW_IT_WENT = {
    "running": "Approved",
    "done": "Approved",
    "timed_out": "Nobody answered in time",
    "superseded": "Passed over",
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """Something that a person has to decide; `closed` says in words how it went, empty while it is open."""

    subject: Literal["approval", "question"]
    subject_id: str
    call_id: str
    text: str
    choices: tuple[tuple[str, str], ...] = ()  # label and answer
    closed: str = ""


@dataclass(frozen=True)
class Block:
    """Words, or a card between them."""

    text: str = ""
    card: Card | None = None


@dataclass
class _Row:
    sequence: int
    text: str = ""
    call_id: str = ""


@dataclass
class Progress:
    """Folds the events of one turn; the same event twice changes nothing."""

    standing: Standing = "queued"
    tool: str = ""  # what is being used just now
    ending: str = ""  # words for an ending that left none
    cards: dict[str, Card] = field(default_factory=dict)  # by call
    _rows: dict[str, _Row] = field(default_factory=dict)

    def begin(self, rows: Iterable[MessageView]) -> None:
        """What stands in the rows, before the first event."""
        for row in rows:
            self._add(row)

    def has_calls(self) -> bool:
        return any(row.call_id for row in self._rows.values())

    def take(self, event: Event) -> bool:
        """Whether anything changed that people see."""
        match event:
            case TextExtended():
                return self._extend(event)
            case TextStarted() if event.message is not None:
                if event.row_id not in self._rows:
                    self._add(event.message)
            case ToolCalled():
                self.tool = event.tool
                if event.message is not None:
                    self._add(event.message)
            case ToolFinished():
                self.tool = ""
            case StepRetracted():
                for row_id in event.row_ids:
                    self._rows.pop(row_id, None)
            case NoticePosted() if event.message is not None:
                self._add(event.message)
            case ApprovalRequested():
                for view in event.approvals:
                    self.ask(approval_card(view))
            case QuestionAsked():
                self.ask(question_card(event.question))
            case ApprovalDecided():
                self._close(event.approval_id, event.state)
            case QuestionClosed():
                self._close(event.question_id, event.outcome)
            case _:
                return self._move(event)
        return True

    def _move(self, event: Event) -> bool:
        match event:
            case TurnStarted():
                self.standing = "working"
            case TurnRecovering():
                self.tool = ""
            case TurnPaused():
                self.standing = "waiting"
            case TurnCancelled():
                self.standing, self.ending = "over", STOPPED
            case TurnSucceeded() | TurnFailed():
                self.standing = "over"
            case _:
                return False
        return True

    def ask(self, card: Card) -> None:
        self.cards.setdefault(card.call_id, card)

    def _close(self, subject_id: str, how: str) -> None:
        for call_id, card in self.cards.items():
            if card.subject_id == subject_id:
                self.cards[call_id] = _closed(card, how)

    def _add(self, row: MessageView) -> None:
        match row.content:
            case str() if row.kind == "assistant":
                self._rows[row.id] = _Row(row.sequence, text=row.content)
            case NoticeContent():
                words = f"{row.content.label}. {row.content.hint}".strip()
                self._rows[row.id] = _Row(row.sequence, text=f"*{words}*")
            case ToolCallContent():
                self._rows[row.id] = _Row(row.sequence, call_id=row.content.call_id)
            case _:
                pass

    def _extend(self, event: TextExtended) -> bool:
        row = self._rows.get(event.row_id)
        if row is None or event.offset > len(row.text):
            return False  # beyond a gap nothing can be known
        if row.text[event.offset : event.offset + len(event.delta)] == event.delta:
            return False
        row.text = row.text[: event.offset] + event.delta
        return True

    def blocks(self) -> list[Block]:
        """In order: words, then what was asked between them, then the words after it."""
        made: list[Block] = []
        words: list[str] = []
        for row in sorted(self._rows.values(), key=lambda row: row.sequence):
            card = self.cards.get(row.call_id) if row.call_id else None
            if card is not None:
                made += [Block(text=_joined(words)), Block(card=card)]
                words = []
            elif row.text:
                words.append(row.text)
        return [block for block in (*made, Block(text=_joined(words))) if block.card or block.text.strip()]


def _joined(words: list[str]) -> str:
    return "\n\n".join(words)


def cards_of(asked: Asked) -> list[Card]:
    """What a person was or is asked, from the rows; `closed` where that is over."""
    made = [_closed(approval_card(view), state) for view, state in asked.approvals]
    return made + [_closed(question_card(view), outcome) for view, outcome in asked.questions]


def _closed(card: Card, state: str) -> Card:
    return card if state in OPEN else replace(card, closed=HOW_IT_WENT.get(state, state.capitalize()))


def approval_card(view: ApprovalView) -> Card:
    shown = [f"- {name}: `{_short(value)}`" for name, value in list(view.arguments.items())[:SHOWN_ARGUMENTS]]
    lines = [f"**May I use {human(view.tool)}?**", view.reason, *shown]
    return Card(
        subject="approval",
        subject_id=view.id,
        call_id=view.call_id,
        text="\n".join(line for line in lines if line),
        choices=(("Approve", "approve"), ("Reject", "reject")),
    )


def question_card(view: QuestionView) -> Card:
    return Card(
        subject="question",
        subject_id=view.id,
        call_id=view.call_id,
        text=f"**{view.question}**" if len(view.question) < 200 else view.question,
        choices=tuple((choice, choice) for choice in view.choices),
    )


def human(tool: str) -> str:
    """A tool's name as words."""
    return tool.replace("__", " ").replace("_", " ")


def _short(value: object) -> str:
    words = " ".join(str(value).replace("`", "'").split())
    return words if len(words) <= ARGUMENT_CHARACTERS else words[: ARGUMENT_CHARACTERS - 1] + "…"
