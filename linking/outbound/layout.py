"""Lay out a turn as the messages a chat should show: text in parts that fit, decision cards and a status line."""

from __future__ import annotations

from dataclasses import dataclass

from linking.outbound.turn_view import DecisionCard, TurnView, format_tool_name
from linking.platforms.base import PlatformAdapter
from linking.platforms.text_split import IncrementalSplitter, TextPart

MAX_PARTS = 10  # a longer answer is sent as a file
WORKING_TEXT = "Working…"
TRUNCATED_TEXT = "*The full answer is in the file below.*"
CONTINUES_TEXT = "*Still writing. The full answer will follow as a file.*"
MAX_STATUS_CHARACTERS = 60  # fits between the chunk target and the text limit of every platform


@dataclass(frozen=True)
class MessagePage:
    """The wanted content of one message."""

    text: str
    card: DecisionCard | None = None  # the card whose buttons the message shows
    mark: str = ""  # the file that the message replaces

    @property
    def record_key(self) -> str:
        return self.card.call_id if self.card else self.mark


class TurnLayout:
    """Split a turn's text into messages of one platform. Repeated calls only redo the work for the last part."""

    def __init__(self, adapter: PlatformAdapter) -> None:
        self._adapter = adapter
        self._splitters: dict[int, IncrementalSplitter] = {}  # by block number

    def build_pages(self, view: TurnView) -> list[MessagePage]:
        """Return the pages to show; those before the last do not change while the answer grows."""
        pages: list[MessagePage] = []
        for number, block in enumerate(view.build_blocks()):
            if block.card is not None:
                pages.append(_build_card_page(block.card))
            else:
                pages += [
                    MessagePage(part.full_text)
                    for part in self._split_block(number, block.text)
                    if part.full_text.strip()
                ]
        if len(pages) > MAX_PARTS:
            note = TRUNCATED_TEXT if view.state == "over" else CONTINUES_TEXT
            return [*pages[: MAX_PARTS - 1], MessagePage(note)]
        return _add_status(pages, view, self._adapter)

    def build_full_answer(self, view: TurnView) -> str | None:
        """Return the text for a file if the answer has more parts than a chat should show, else None."""
        blocks = view.build_blocks()
        count = sum(
            1 if block.card is not None else len(self._split_block(number, block.text))
            for number, block in enumerate(blocks)
        )
        return "\n\n".join(block.text for block in blocks if block.text) if count > MAX_PARTS else None

    def _split_block(self, number: int, text: str) -> list[TextPart]:
        if number not in self._splitters:
            self._splitters[number] = IncrementalSplitter(
                measure=self._measure, limit=self._adapter.chunk_target
            )
        return self._splitters[number].split(text)

    def _measure(self, text: str) -> int:
        return self._adapter.measure_text(self._adapter.render_text(text))


def _build_card_page(card: DecisionCard) -> MessagePage:
    if card.closed:
        return MessagePage(f"{card.text}\n\n*{card.closed}.*")
    return MessagePage(card.text, card)


def _add_status(pages: list[MessagePage], view: TurnView, adapter: PlatformAdapter) -> list[MessagePage]:
    status = _format_status(view)
    if not pages:
        if view.state == "over":
            return [MessagePage(view.ending or "*There was no answer.*")]
        typing_suffices = adapter.supports_typing and not view.tool
        return [] if typing_suffices else [MessagePage(f"*{status or WORKING_TEXT}*")]
    last = pages[-1]
    if not status or last.card is not None:
        return pages
    return [*pages[:-1], MessagePage(f"{last.text}\n\n*{status}*")]


def _format_status(view: TurnView) -> str:
    if view.state != "working" or not view.tool:
        return ""
    return f"Using {format_tool_name(view.tool)}…"[:MAX_STATUS_CHARACTERS]
