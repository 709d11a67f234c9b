"""A turn while it runs, from the session's log; the rows have the last word (T8, T10)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from copilot.bridge import in_thread
from copilot.compat.running import Run
from copilot.events import ENDING_KINDS
from copilot.live.stream import Entry
from copilot.live.tail import CursorLost, Feed, Overflowed
from copilot.outcomes import LOOK_AGAIN_SECONDS, Outcome, wait
from copilot.readers import listening

BETWEEN_TEXTS = "\n\n"  # as an outcome's text has it
LOST_SECONDS = (
    3_600  # a turn lasts no longer; only a log that forgot its beginning makes anybody wait this way
)
_NAMING = frozenset({"turn.queued", "turn.started"}) | ENDING_KINDS
_OVER = ENDING_KINDS | {"turn.paused"}

T = TypeVar("T")


@dataclass(frozen=True)
class Extended:
    delta: str


@dataclass(frozen=True)
class Silence:
    """Nothing for a while: time for a sign of life."""


@dataclass(frozen=True)
class Over:
    """`text` is what was handed out, which is all of the answer."""

    outcome: Outcome
    text: str


class Line(msgspec.Struct):
    """What is read of an event here."""

    turn_id: str = ""
    run_ids: list[str] = []
    row_id: str = ""
    delta: str = ""


_decoder = msgspec.json.Decoder(Line)


class Reader(ABC, Generic[T]):
    """Keeps to the run's own turn, which a run that waits learns by its name."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cursor = run.cursor
        self.over = False
        self._turn_id = str(run.turn_id) if run.started else ""

    def read(self, entries: list[Entry]) -> list[T]:
        """What these entries say of the turn."""
        found: list[T] = []
        for entry in entries:
            self.cursor = entry.cursor
            if not self.over and self.hears(entry.kind):
                self._hear(entry, found)
        return found

    def _hear(self, entry: Entry, found: list[T]) -> None:
        line = _decoder.decode(entry.payload)
        if entry.kind in _NAMING and self.run.run_id in line.run_ids:
            self._turn_id = line.turn_id
        if line.turn_id == self._turn_id:
            found += self.heard(entry, line)
            self.over = entry.kind in _OVER

    def hears(self, kind: str) -> bool:
        """Whether an event of this kind is worth reading at all."""
        return True

    @abstractmethod
    def heard(self, entry: Entry, line: Line) -> list[T]:
        """What an event of the turn says."""


async def read_on(reader: Reader[T]) -> AsyncGenerator[list[T] | Silence, None]:
    """Until the turn has ended or waits for a person."""
    while not reader.over:
        try:
            connection = reader.run.caller.connection
            async with listening(reader.run.session_id, reader.cursor, connection=connection) as feed:
                async for batch in _batches(feed, reader):
                    yield batch
        except Overflowed:
            continue  # too slow a client: on from its place in the log
        except CursorLost:
            run = reader.run
            await wait(
                run.caller.user_id,
                run.turn_id,
                run_id=run.run_id or None,
                timeout_seconds=LOST_SECONDS,
                connection=run.caller.connection,
            )
            return


async def _batches(feed: Feed, reader: Reader[T]) -> AsyncGenerator[list[T] | Silence, None]:
    while not reader.over:
        try:
            async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                batch = await anext(feed)
        except TimeoutError:
            await in_thread(_look, reader)
            yield Silence()
        else:
            if found := reader.read(batch):
                yield found


def _look(reader: Reader[T]) -> None:
    """News can be lost with Redis, the rows cannot."""
    reader.over = reader.run.outcome().status not in ("queued", "running")


# --- the text alone ----------------------------------------------------------------------------------


class _Text(Reader[str]):
    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.text = ""
        self._row_id = ""

    def hears(self, kind: str) -> bool:
        return kind == "text.extended" or kind in _NAMING or kind in _OVER

    def heard(self, entry: Entry, line: Line) -> list[str]:
        if entry.kind != "text.extended":
            return []
        delta = line.delta
        if self.text and line.row_id != self._row_id:
            delta = BETWEEN_TEXTS + delta
        self._row_id = line.row_id
        self.text += delta
        return [delta]

    def rest_of(self, outcome: Outcome) -> str:
        """What the rows have and the log did not tell; text that was taken back cannot be."""
        rest = outcome.text[len(self.text) :] if outcome.text.startswith(self.text) else ""
        self.text += rest
        return rest


async def follow(run: Run) -> AsyncGenerator[Extended | Silence | Over, None]:
    """The answer as it is written; `Over` comes once and last."""
    reader = _Text(run)
    async for deltas in read_on(reader):
        yield deltas if isinstance(deltas, Silence) else Extended("".join(deltas))
    outcome = await in_thread(run.outcome)
    if rest := reader.rest_of(outcome):
        yield Extended(rest)
    yield Over(outcome, reader.text)
