"""Workers' signs of life in Redis: one key per process that dies with it (D2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from copilot.live import keys
from copilot.live.client import blocking


def write(worker: str, running: Sequence[tuple[str, int]], *, life_seconds: float) -> None:
    value = msgspec.json.encode([list(pair) for pair in running])
    blocking().set(keys.beat(worker), value, px=int(life_seconds * 1000))


def forget(worker: str) -> None:
    blocking().delete(keys.beat(worker))


@dataclass(frozen=True)
class RedisBeat:
    age_seconds: float
    turns: frozenset[tuple[str, int]]


def read(workers: Iterable[str], *, life_seconds: float) -> dict[str, RedisBeat]:
    """What each living worker says it runs, and how long ago; a worker without a beat is missing."""
    names = list(workers)
    if not names:
        return {}
    with blocking().pipeline(transaction=False) as pipe:
        for worker in names:
            pipe.get(keys.beat(worker))
            pipe.pttl(keys.beat(worker))
        answers = pipe.execute()
    found = {}
    for worker, value, left in zip(names, answers[::2], answers[1::2], strict=True):
        if value is not None:
            turns = frozenset((turn_id, fence) for turn_id, fence in msgspec.json.decode(value))
            found[worker] = RedisBeat(age_seconds=life_seconds - left / 1000, turns=turns)
    return found
