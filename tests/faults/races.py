"""Repairs against real processes that live, wake and act at the same moment: nobody who lives is touched, nothing is done twice (D8–D10).

python -m tests.faults.races [rounds]
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from uuid import UUID

from tests.faults.__main__ import _enter
from tests.faults.scene import SHORT, Scene, until
from tests.faults.site import TURNS, running_site
from tests.faults.staff import Staff

DELAYS = cycle((0.0, 0.1, 0.3, 0.6, 1.2))


def together(*acts: Callable[[], object]) -> None:
    """At the same moment, each on a thread; whatever one raises is raised here."""
    barrier = threading.Barrier(len(acts))
    problems: list[BaseException] = []

    def run(act: Callable[[], object]) -> None:
        from django.db import connection

        try:
            barrier.wait()
            act()
        except BaseException as problem:
            problems.append(problem)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def waking_while_repaired(scene: Scene) -> str:
    """A-D9.4, A-D2.2: a frozen worker wakes in the moment of the repair: its turn ends once, and nobody writes after the end"""
    with scene.without_reaper():
        turn_id = scene.running()
        until(lambda: text_of(turn_id), "it speaks")
        name = scene.process_of(turn_id)
        scene.site.signal(name, signal.SIGSTOP)
        try:
            until(
                lambda: str(turn_id) in scene.listed("orphaned_running") or aged(scene, turn_id), "it is dead"
            )
            dialog = scene.staff.ask("orphaned", "cleanup_orphaned", turn_id)
            together(
                lambda: scene.staff.confirm(*dialog),
                lambda: wake(scene, name, next(DELAYS)),
            )
        finally:
            scene.site.signal(name, signal.SIGCONT)
    status = scene.row(turn_id).status
    if status == "failed":
        said = text_of(turn_id)
        until(lambda: not beats_for(turn_id), "the worker that woke lets it go")
        assert text_of(turn_id) == said, "it wrote after the end"
    else:
        assert status == "running", status
        scene.end(turn_id)
    until(lambda: endings(turn_id), "its end is told")  # after the row
    assert endings(turn_id) == 1, f"{endings(turn_id)} endings"
    return "ended by the repair" if status == "failed" else "left alone, went on"


def wake(scene: Scene, name: str, seconds: float) -> None:
    """Sooner or later: before the repair has judged, while it does, and after it."""
    time.sleep(seconds)
    scene.site.signal(name, signal.SIGCONT)


def aged(scene: Scene, turn_id: UUID) -> bool:
    """Thirty seconds need not be waited for; that its beats end cannot be hurried."""
    scene.put_back(turn_id, 60, "started_at", "attempt_started_at")
    return False


def two_admins(scene: Scene) -> str:
    """A-D8.2: both repair the same list at once, at two web processes: every id is changed once"""
    others = [Staff(name, url) for name, url in zip(("grace", "hopper"), scene.site.urls, strict=True)]
    with scene.without_reaper(), scene.frozen(*TURNS):
        ids = [scene.begin(SHORT) for _ in range(10)]
        for one in ids:
            scene.put_back(one, 90_000, "created_at", "queued_at", "dispatched_at")
        changed: Counter[str] = Counter()

        def act(staff: Staff) -> None:
            changed[staff.name] = staff.repair("orphaned", "cleanup_orphaned", *ids)

        together(*(lambda staff=staff: act(staff) for staff in others))
    assert sum(changed.values()) == len(ids), dict(changed)
    until(lambda: all(endings(one) for one in ids), "their ends are told")
    assert [endings(one) for one in ids] == [1] * len(ids)
    assert [changes_of(one) for one in ids] == [1] * len(ids), "one audit row for each"
    return " and ".join(f"{name} {number}" for name, number in sorted(changed.items()))


def live_ones_stay(scene: Scene) -> str:
    """D8, D10: all dead ones are ended at once; live ones run to their own end, at the first attempt"""
    with scene.without_reaper():
        until(lambda: len(scene.present()) == len(TURNS), "both workers are there")
        turns = [scene.running() for _ in range(4)]
        while len({scene.process_of(one) for one in turns}) < len(TURNS):  # each has some
            turns.append(scene.running())
        victim = scene.process_of(turns[0])
        dead = [one for one in turns if scene.process_of(one) == victim]
        live = [one for one in turns if one not in dead]
        with scene.without(victim):
            for one in turns:
                scene.put_back(one, 60, "started_at", "attempt_started_at")
            until(
                lambda: set(scene.listed("orphaned_running")) >= {str(one) for one in dead}, "they are dead"
            )
            changed = scene.staff.repair("orphaned", "cleanup_all_orphaned")
        assert changed == len(dead), f"{changed} of {len(dead)}"
        assert {scene.row(one).status for one in live} == {"running"}
    for one in live:
        scene.end(one)
        assert (scene.row(one).status, scene.row(one).attempts) == ("cancelled", 1)
    return f"{len(dead)} dead ended, {len(live)} live went on"


# --- what is left behind -----------------------------------------------------------------------------


def text_of(turn_id: UUID) -> str:
    from copilot.models import Message

    return "".join(Message.objects.filter(turn=turn_id, kind="assistant").values_list("content", flat=True))


def endings(turn_id: UUID) -> int:
    """Ending events in the log of its session."""
    from copilot.models import Turn
    from tests.support import turn_engine

    return len(turn_engine.endings(Turn.objects.get(pk=turn_id).session_id, turn_id))


def beats_for(turn_id: UUID) -> bool:
    from copilot.models import WorkerHeartbeat

    return any(str(turn_id) in str(beat.turns) for beat in WorkerHeartbeat.objects.all())


def changes_of(turn_id: UUID) -> int:
    from diagnostics.models import RepairAudit

    rows = RepairAudit.objects.filter(ids__contains=[turn_id], outcome="done")
    return sum(change["id"] == str(turn_id) for row in rows for change in row.changes)


RACES = {
    "waking while repaired": waking_while_repaired,
    "two admins": two_admins,
    "live ones stay": live_ones_stay,
}


def play(scene: Scene, rounds: int) -> int:
    broken = 0
    for name, race in RACES.items():
        outcomes: Counter[str] = Counter()
        for _ in range(rounds):
            try:
                outcomes[race(scene)] += 1
            except (AssertionError, TimeoutError) as problem:
                broken += 1
                outcomes[f"BROKEN: {str(problem) or type(problem).__name__}"] += 1
            scene.site.revive()
        told = "; ".join(f"{times} × {outcome}" for outcome, times in outcomes.items())
        print(f"{name:<22} {told}", flush=True)
    return broken


def main(rounds: int) -> int:
    with running_site(redis_is_durable=True) as site:
        _enter(site)
        from bench.seed import _lift_limits

        _lift_limits()
        return 1 if play(Scene(site), rounds) else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
