"""What a chat should show of a turn now: its words in parts that fit, its cards with buttons, a line on how it stands (L19)."""

from __future__ import annotations

from dataclasses import dataclass

from linking.outbound.turn_view import DecisionCard, TurnView, format_tool_name
from linking.platforms.base import PlatformAdapter
from linking.platforms.text_split import IncrementalSplitter, TextPart

MAX_PARTS = 10  # the rest goes as a file
WORKING_TEXT = "Working…"
TRUNCATED_TEXT = "*The whole answer is in the file below.*"
CONTINUES_TEXT = "*More is being written; the whole answer comes as a file.*"
MAX_STATUS_CHARACTERS = 60  # fits between every platform's target and its limit


@dataclass(frozen=True)
class MessagePage:
    """One message as it should be; `card` names whose buttons it bears, `mark` which file it stands for."""

    text: str
    card: DecisionCard | None = None
    mark: str = ""

    @property
    def record_key(self) -> str:
        return self.card.call_id if self.card else self.mark


class TurnLayout:
    """A turn's words in messages of one platform; asked at every look, it does the work of the last part alone."""

    def __init__(self, adapter: PlatformAdapter) -> None:
        self._adapter = adapter
        self._splitters: dict[int, IncrementalSplitter] = {}  # by the place of the block

    def build_pages(self, progress: TurnView) -> list[MessagePage]:
        """Pages before the last do not change while the answer grows."""
        made: list[MessagePage] = []
        for number, block in enumerate(progress.build_blocks()):
            if block.card is not None:
                made.append(_build_card_page(block.card))
            else:
                made += [
                    MessagePage(part.full_text)
                    for part in self._split_block(number, block.text)
                    if part.full_text.strip()
                ]
        if len(made) > MAX_PARTS:
            note = TRUNCATED_TEXT if progress.standing == "over" else CONTINUES_TEXT
            return [*made[: MAX_PARTS - 1], MessagePage(note)]
        return _add_status(made, progress, self._adapter)

    def build_full_answer(self, progress: TurnView) -> str | None:
        """The text for a file, if it is more than a chat bears."""
        blocks = progress.build_blocks()
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


def _add_status(pages: list[MessagePage], progress: TurnView, adapter: PlatformAdapter) -> list[MessagePage]:
    status = _format_status(progress)
    if not pages:
        if progress.standing == "over":
            return [MessagePage(progress.ending or "*Nothing was answered.*")]
        silent = adapter.supports_typing and not progress.tool
        return (
            [] if silent else [MessagePage(f"*{status or WORKING_TEXT}*")]
        )  # somebody looks for a sign of life
    last = pages[-1]
    if not status or last.card is not None:
        return pages
    return [*pages[:-1], MessagePage(f"{last.text}\n\n*{status}*")]


def _format_status(progress: TurnView) -> str:
    if progress.standing != "working" or not progress.tool:
        return ""
    return f"Using {format_tool_name(progress.tool)}…"[:MAX_STATUS_CHARACTERS]
