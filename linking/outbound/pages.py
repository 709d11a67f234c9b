"""What a chat should show of a turn now: its words in parts that fit, its cards with buttons, a line on how it stands (L19)."""

from __future__ import annotations

from dataclasses import dataclass

from linking.outbound.progress import Card, Progress, human
from linking.platforms.base import Adapter
from linking.platforms.splitting import Growing, Part

MOST_PARTS = 10  # the rest goes as a file
WORKING = "Working…"
CUT_OFF = "*The whole answer is in the file below.*"
STILL_COMING = "*More is being written; the whole answer comes as a file.*"
STATUS_CHARACTERS = 60  # fits between every platform's target and its limit


@dataclass(frozen=True)
class Page:
    """One message as it should be; `card` names whose buttons it bears, `mark` which file it stands for."""

    text: str
    card: Card | None = None
    mark: str = ""

    @property
    def kept_as(self) -> str:
        return self.card.call_id if self.card else self.mark


class Layout:
    """A turn's words in messages of one platform; asked at every look, it does the work of the last part alone."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._growing: dict[int, Growing] = {}  # by the place of the block

    def pages(self, progress: Progress) -> list[Page]:
        """Pages before the last do not change while the answer grows."""
        made: list[Page] = []
        for number, block in enumerate(progress.blocks()):
            if block.card is not None:
                made.append(_card_page(block.card))
            else:
                made += [Page(part.shown) for part in self._parts(number, block.text) if part.shown.strip()]
        if len(made) > MOST_PARTS:
            note = CUT_OFF if progress.standing == "over" else STILL_COMING
            return [*made[: MOST_PARTS - 1], Page(note)]
        return _with_status(made, progress, self._adapter)

    def whole_answer(self, progress: Progress) -> str | None:
        """The text for a file, if it is more than a chat bears."""
        blocks = progress.blocks()
        count = sum(
            1 if block.card is not None else len(self._parts(number, block.text))
            for number, block in enumerate(blocks)
        )
        return "\n\n".join(block.text for block in blocks if block.text) if count > MOST_PARTS else None

    def _parts(self, number: int, text: str) -> list[Part]:
        if number not in self._growing:
            self._growing[number] = Growing(measure=self._measure, limit=self._adapter.chunk_target)
        return self._growing[number].split(text)

    def _measure(self, text: str) -> int:
        return self._adapter.measure(self._adapter.render(text))


def _card_page(card: Card) -> Page:
    if card.closed:
        return Page(f"{card.text}\n\n*{card.closed}.*")
    return Page(card.text, card)


def _with_status(pages: list[Page], progress: Progress, adapter: Adapter) -> list[Page]:
    status = _status(progress)
    if not pages:
        if progress.standing == "over":
            return [Page(progress.ending or "*Nothing was answered.*")]
        silent = adapter.supports_typing and not progress.tool
        return [] if silent else [Page(f"*{status or WORKING}*")]  # somebody looks for a sign of life
    last = pages[-1]
    if not status or last.card is not None:
        return pages
    return [*pages[:-1], Page(f"{last.text}\n\n*{status}*")]


def _status(progress: Progress) -> str:
    if progress.standing != "working" or not progress.tool:
        return ""
    return f"Using {human(progress.tool)}…"[:STATUS_CHARACTERS]
