"""Freeze each server, start workers while one is away, leave maintenance frozen for minutes; then measure how long turns wait.

python -m tests.faults.freezing [--seconds 5 45 120] [--away 240] [--soak 240] [--only freeze start maintenance soak]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from uuid import UUID

from tests.faults.__main__ import _enter
from tests.faults.scene import LONG, SHORT, Scene
from tests.faults.site import TURNS, Site, frozen, running_site

HEALED_SECONDS = 15.0  # what every crash is promised to take at most
SERVED_SECONDS = 60.0  # until deaf consumers have exited and were restarted
MAINTENANCE_AWAY_SECONDS = 240.0
SOAK_SECONDS = 240.0
MOST_WAITING = 10  # tasks of an installation at rest
LOOK_SECONDS = 0.1
OUTAGES = ("freeze", "start", "maintenance", "soak")


class NotHealed(AssertionError):
    """A promise that was broken; the message says which."""


def measure(what: str, condition: Callable[[], object], *, most: float, site: Site) -> float:
    """Return the seconds until it holds; processes that exited meanwhile are restarted, as a supervisor would."""
    began = time.monotonic()
    while True:
        with contextlib.suppress(Exception):  # the server that was away answers with errors for a moment
            if condition():
                return time.monotonic() - began
        if time.monotonic() - began > most:
            raise NotHealed(f"{what}: not within {most:.0f} s")
        site.revive()
        time.sleep(LOOK_SECONDS)


# --- what is measured -----------------------------------------------------------------------------------


def answer_seconds(scene: Scene) -> float:
    """A new message gets its answer."""
    from django.db import connection

    connection.close()
    began = time.monotonic()
    turn_id = begin_patiently(scene, SHORT)
    measure("a new turn ends", lambda: scene.row(turn_id).status == "succeeded", most=40, site=scene.site)
    return time.monotonic() - began


def begin_patiently(scene: Scene, text: str) -> UUID:
    begun: list[UUID] = []

    def begin() -> bool:
        begun.append(scene.begin(text))
        return True

    measure("a turn begins", begin, most=40, site=scene.site)
    return begun[0]


def takeover_seconds(scene: Scene) -> float:
    """From kill -9 of the worker at work to its turn in the hands of another."""
    turn_id = begin_patiently(scene, LONG)
    measure("it runs", lambda: scene.row(turn_id).status == "running", most=40, site=scene.site)
    measure("it speaks", lambda: spoken(turn_id), most=40, site=scene.site)
    name = scene.process_of(turn_id)
    scene.site.signal(name, signal.SIGKILL)
    scene.site.processes[name].wait()
    seconds = measure(
        "another worker takes over", lambda: scene.row(turn_id).attempts > 1, most=60, site=scene.site
    )
    scene.end(turn_id)
    return seconds


def spoken(turn_id: UUID) -> bool:
    from copilot.models import Message

    return Message.objects.filter(turn_id=turn_id, kind="assistant").exists()


def served_seconds(scene: Scene, since: float) -> float:
    """Until the queue `maintenance` is worked on again."""
    from diagnostics.work_ages import read_work_ages

    def served() -> bool:
        silent = read_work_ages().queue_seconds.get("maintenance")
        return silent is not None and silent < time.monotonic() - since

    measure("the queue maintenance is served", served, most=120, site=scene.site)
    return time.monotonic() - since


# --- the outages ----------------------------------------------------------------------------------------


def freeze(scene: Scene, seconds: list[float]) -> list[str]:
    broken = []
    for server in (scene.site.valkey, scene.site.postgres):
        for span in seconds:
            begin_patiently(scene, LONG)
            with frozen(server):
                time.sleep(span)
            thawed = time.monotonic()
            answer, takeover = answer_seconds(scene), takeover_seconds(scene)
            served = served_seconds(scene, thawed)
            print(
                f"{server.name:<9} frozen {span:4.0f} s: answer {answer:5.1f} s, "
                f"takeover {takeover:5.1f} s, maintenance {served:5.1f} s",
                flush=True,
            )
            if max(answer, takeover) > HEALED_SECONDS or served > SERVED_SECONDS:
                broken.append(f"{server.name} frozen for {span:.0f} s")
            end_all(scene)
    return broken


def end_all(scene: Scene) -> None:
    from copilot.chat import stop
    from copilot.models import Turn

    for turn in Turn.objects.filter(status__in=Turn.UNFINISHED):
        stop.stop_turn_as_staff(turn.pk)
    measure(
        "all turns end",
        lambda: not Turn.objects.filter(status__in=Turn.UNFINISHED).exists(),
        most=60,
        site=scene.site,
    )


def start(scene: Scene) -> list[str]:
    """Both workers of turns begin while a server is away."""
    broken = []
    for server in (scene.site.postgres, scene.site.valkey):
        for name in TURNS:
            scene.site.signal(name, signal.SIGKILL)
            scene.site.processes[name].wait()
        with frozen(server):
            for name in TURNS:
                scene.site.spawn(name, scene.site._command(name))
            time.sleep(20)
        began = time.monotonic()
        measure("both workers take turns", lambda: len(listening()) == 2, most=60, site=scene.site)
        ready = time.monotonic() - began
        answer = answer_seconds(scene)
        print(f"{server.name:<9} away at the start: ready {ready:.1f} s, answer {answer:.1f} s", flush=True)
        if max(ready, answer) > HEALED_SECONDS:
            broken.append(f"{server.name} away at the start")
    return broken


def listening() -> list[str]:
    from django.utils import timezone

    from copilot.models import WorkerHeartbeat

    fresh = timezone.now() - timedelta(seconds=4)
    return [
        row.worker for row in WorkerHeartbeat.objects.filter(last_beat_at__gt=fresh) if "turns" in row.queues
    ]


def maintenance(scene: Scene, seconds: float) -> list[str]:
    """Nobody of `maintenance` for minutes: turns are taken over all the same, people are told, nothing piles up."""
    from diagnostics import broker_queues, snapshot
    from diagnostics.findings.rules import evaluate_findings

    broken = []
    before = takeover_seconds(scene)
    scene.site.signal("maintenance", signal.SIGSTOP)
    stopped = time.monotonic()
    told = measure(
        "the finding queue_silent:maintenance",
        lambda: (
            "queue_silent:maintenance" in [one.code for one in evaluate_findings(snapshot.take_snapshot())]
        ),
        most=seconds,
        site=scene.site,
    )
    during = takeover_seconds(scene)
    time.sleep(max(0.0, seconds - (time.monotonic() - stopped)))
    waiting = broker_queues.read_queue_depths().by_queue["maintenance"]
    scene.site.signal("maintenance", signal.SIGCONT)
    thawed = time.monotonic()
    drained = measure(
        "what waited is gone",
        lambda: broker_queues.read_queue_depths().by_queue["maintenance"] < 3,
        most=120,
        site=scene.site,
    )
    served_seconds(scene, thawed)
    after = takeover_seconds(scene)
    print(
        f"maintenance away {seconds:.0f} s: found {told:.0f} s, {waiting} waited, gone {drained:.1f} s later; "
        f"takeover before {before:.1f} s, during {during:.1f} s, after {after:.1f} s",
        flush=True,
    )
    if max(before, during, after) > HEALED_SECONDS or drained > HEALED_SECONDS:
        broken.append("maintenance away")
    return broken


def soak(scene: Scene, seconds: float) -> list[str]:
    """Workers are killed again and again in an installation with a history: the last takeover is as quick as the first."""
    from diagnostics import broker_queues
    from tests.support.factories import make_month_of_turns as a_month_of_turns

    a_month_of_turns(3000, unfinished=0)
    took: list[float] = []
    deepest, over = 0, time.monotonic() + seconds
    while time.monotonic() < over or len(took) < 6:
        took.append(takeover_seconds(scene))
        measure("both workers are back", lambda: len(listening()) == 2, most=60, site=scene.site)
        deepest = max(deepest, broker_queues.read_queue_depths().by_queue["maintenance"])
        time.sleep(5)
    third = len(took) // 3
    first, last = median(took[:third]), median(took[-third:])
    print(
        f"soak {seconds:.0f} s: {len(took)} takeovers, at first {first:.1f} s, at last {last:.1f} s, "
        f"longest {max(took):.1f} s; at most {deepest} tasks waited for maintenance",
        flush=True,
    )
    if max(took) > HEALED_SECONDS or last > 2 * first + 2 or deepest > MOST_WAITING:
        return ["soak"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.freezing")
    parser.add_argument("--seconds", type=float, nargs="+", default=[5, 45, 120])
    parser.add_argument("--only", nargs="+", choices=OUTAGES, default=OUTAGES)
    parser.add_argument("--away", type=float, default=MAINTENANCE_AWAY_SECONDS)
    parser.add_argument("--soak", type=float, default=SOAK_SECONDS)
    options = parser.parse_args()
    wanted = options.only
    with running_site(redis_is_durable=True) as site:
        _enter(site)
        from bench.seed import _lift_limits

        _lift_limits()
        scene = Scene(site)
        broken: list[str] = []
        try:
            if "freeze" in wanted:
                broken += freeze(scene, options.seconds)
            if "start" in wanted:
                broken += start(scene)
            if "maintenance" in wanted:
                broken += maintenance(scene, options.away)
            if "soak" in wanted:
                broken += soak(scene, options.soak)
        except NotHealed as problem:
            broken.append(str(problem))
        for one in broken:
            print(f"BROKEN  {one}", flush=True)
        if broken:
            from bench.installation import keep

            keep(site.directory)
        return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
