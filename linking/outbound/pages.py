"""What a chat should show of a turn now: its words in parts that fit, its cards with buttons, a line on how it stands (L19)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from linking.outbound.progress import Card, Progress, human
from linking.platforms.base import Adapter
from linking.platforms.splitting import split

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


def pages_of(progress: Progress, adapter: Adapter) -> list[Page]:
    """Pages before the last do not change while the answer grows."""
    measure = _measure(adapter)
    made: list[Page] = []
    for block in progress.blocks():
        if block.card is not None:
            made.append(_card_page(block.card))
        else:
            parts = split(block.text, measure=measure, limit=adapter.chunk_target)
            made += [Page(part.shown) for part in parts if part.shown.strip()]
    if len(made) > MOST_PARTS:
        note = CUT_OFF if progress.standing == "over" else STILL_COMING
        return [*made[: MOST_PARTS - 1], Page(note)]
    return _with_status(made, progress, adapter)


def whole_answer(progress: Progress, adapter: Adapter) -> str | None:
    """The text for a file, if it is more than a chat bears."""
    blocks = progress.blocks()
    parts = [
        part
        for block in blocks
        for part in split(block.text, measure=_measure(adapter), limit=adapter.chunk_target)
    ]
    if len(parts) + sum(block.card is not None for block in blocks) <= MOST_PARTS:
        return None
    return "\n\n".join(block.text for block in blocks if block.text)


def _measure(adapter: Adapter) -> Callable[[str], int]:
    return lambda text: adapter.measure(adapter.render(text))


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
