"""A turn's answer while it is written, from the session's log; the rows have the last word (T8, T10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from copilot import api_keys
from copilot.bridge import in_thread
from copilot.compat.errors import Unauthenticated
from copilot.compat.running import Run
from copilot.events import ENDING_KINDS
from copilot.live.stream import Entry
from copilot.live.tail import CursorLost, Feed, Overflowed
from copilot.outcomes import LOOK_AGAIN_SECONDS, Outcome, listening, wait

BETWEEN_TEXTS = "\n\n"  # as an outcome's text has it
_NAMING = frozenset({"turn.queued", "turn.started"}) | ENDING_KINDS
_OVER = ENDING_KINDS | {"turn.paused"}
_HEARD = _NAMING | _OVER | {"text.extended"}


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


Happened = Extended | Silence | Over


class _Line(msgspec.Struct):
    """What is read of an event here."""

    turn_id: str = ""
    run_ids: list[str] = []
    row_id: str = ""
    delta: str = ""


_decoder = msgspec.json.Decoder(_Line)


class _Reader:
    """Keeps to the run's own turn, which a run that waits learns by its name."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cursor = run.cursor
        self.text = ""
        self.over = False
        self._turn_id = str(run.turn_id) if run.started else ""
        self._row_id = ""

    def read(self, entries: list[Entry]) -> str:
        """The text that these entries add."""
        begin = len(self.text)
        for entry in entries:
            self.cursor = entry.cursor
            if entry.kind in _HEARD and not self.over:
                self._hear(entry.kind, _decoder.decode(entry.payload))
        return self.text[begin:]

    def _hear(self, kind: str, line: _Line) -> None:
        if kind in _NAMING and self.run.run_id in line.run_ids:
            self._turn_id = line.turn_id
        if line.turn_id != self._turn_id:
            return
        if kind == "text.extended":
            if self.text and line.row_id != self._row_id:
                self.text += BETWEEN_TEXTS
            self._row_id = line.row_id
            self.text += line.delta
        self.over = kind in _OVER

    def rest_of(self, outcome: Outcome) -> str:
        """What the rows have and the log did not tell; text that was taken back cannot be."""
        rest = outcome.text[len(self.text) :] if outcome.text.startswith(self.text) else ""
        self.text += rest
        return rest


async def follow(run: Run) -> AsyncGenerator[Happened, None]:
    """Until the turn has ended or waits for a person; `Over` comes once and last."""
    reader = _Reader(run)
    while not reader.over:
        try:
            async with listening(run.session_id, reader.cursor) as feed:
                async for happened in _heard(feed, reader):
                    yield happened
        except Overflowed:
            continue  # too slow a client: on from its place in the log
        except CursorLost:
            await wait(run.caller.user_id, run.turn_id, run_id=run.run_id, timeout_seconds=3600)
            break
    outcome = await in_thread(run.outcome)
    if rest := reader.rest_of(outcome):
        yield Extended(rest)
    yield Over(outcome, reader.text)


async def _heard(feed: Feed, reader: _Reader) -> AsyncGenerator[Happened, None]:
    while not reader.over:
        try:
            async with asyncio.timeout(LOOK_AGAIN_SECONDS):
                batch = await anext(feed)
        except TimeoutError:
            await in_thread(_look, reader)
            yield Silence()
        else:
            if delta := reader.read(batch):
                yield Extended(delta)


def _look(reader: _Reader) -> None:
    """News can be lost with Redis, the rows cannot; and a key can be revoked meanwhile (L10)."""
    if not api_keys.still_stands(reader.run.caller.key_id):
        raise Unauthenticated
    reader.over = reader.run.outcome().status not in ("queued", "running")
