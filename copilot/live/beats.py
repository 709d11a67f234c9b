"""Signs of life in Redis: of workers, one key per process that dies with it; of every kind of work; of who leads; of this installation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from copilot.live import keys
from copilot.live.client import blocking, script

SWEEP_MEMORY_SECONDS = 24 * 3600
WORK_MEMORY_SECONDS = 24 * 3600


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


BLIND = b"blind"


def note_sweep(*, blind: bool = False) -> None:
    """The reaper has looked, and perhaps seen nothing."""
    blocking().set(keys.REAPER, BLIND if blind else b"1", ex=SWEEP_MEMORY_SECONDS)


def sweep_was_blind() -> bool:
    return blocking().get(keys.REAPER) == BLIND


def sweep_age_seconds() -> float | None:
    """How long ago the reaper looked last; None when nobody remembers."""
    left = blocking().pttl(keys.REAPER)
    return None if left < 0 else SWEEP_MEMORY_SECONDS - left / 1000


# --- this installation -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InstallationCopy:
    """Redis's copy of the row that names this installation."""

    installation_id: str
    epoch: int
    incarnation: str


def read_installation() -> InstallationCopy | None:
    fields: list[bytes | None] = blocking().hmget(keys.INSTALLATION, ["id", "epoch", "incarnation"])  # type: ignore[assignment]
    identifier, epoch, incarnation = ((field or b"").decode() for field in fields)
    if not (identifier and epoch.isdecimal()):
        return None
    return InstallationCopy(installation_id=identifier, epoch=int(epoch), incarnation=incarnation)


def write_installation(copy: InstallationCopy) -> None:
    blocking().hset(
        keys.INSTALLATION,
        mapping={"id": copy.installation_id, "epoch": copy.epoch, "incarnation": copy.incarnation},
    )


# --- work done -----------------------------------------------------------------------------------------


def note_work(name: str, *, only_if_unknown: bool = False) -> None:
    """Remember that this kind of work was done just now."""
    blocking().set(keys.last_work(name), b"1", ex=WORK_MEMORY_SECONDS, nx=only_if_unknown)


def work_ages(names: Sequence[str]) -> dict[str, float]:
    """Seconds since each kind of work was done last; one that nobody remembers is left out."""
    with blocking().pipeline(transaction=False) as pipe:
        for name in names:
            pipe.pttl(keys.last_work(name))
        lives = pipe.execute()
    return {
        name: WORK_MEMORY_SECONDS - left / 1000 for name, left in zip(names, lives, strict=True) if left >= 0
    }


# --- leadership ----------------------------------------------------------------------------------------


def lead(role: str, holder: str, *, rank: int, life_seconds: float) -> bool:
    """Take or keep the lead. It only saves work: whatever leaders do must be harmless when two do it."""
    arguments: list[str | int] = [holder, rank, int(life_seconds * 1000)]
    return bool(script("lead")(keys=[keys.leader(role)], args=arguments))


def step_down(role: str, holder: str) -> None:
    script("step_down")(keys=[keys.leader(role)], args=[holder])
