"""A-D22.1: a hundred turns while a worker at work is killed every two seconds for at least two minutes, then what became of each.

python -m tests.faults.killing [--turns 100] [--seconds 120] [--every 2]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from uuid import UUID

from tests.faults.__main__ import _enter
from tests.faults.scene import Scene
from tests.faults.site import TURNS, Site, running_site

QUIET_SECONDS = 420.0
LONGEST_SECONDS = 420.0  # of the storm, where machines are slow to start workers again
AT_ONCE = 10
LONGEST_TOKENS, GAP_MS = 240, 40  # up to ten seconds: a kill meets several turns
FEWEST_LOST = 0.1  # of all turns must lose a worker at least once: milder is no storm
LOST_IT = "turn_lost"  # what a worker logs that loses a turn while it lives


def said(number: int, tokens: int) -> str:
    """One call of a tool that is not repeatable, and then text, short or long."""
    written = json.dumps({"name": f"note-{number}.txt", "content": "once", "overwrite": True})
    plan = {"tools": [{"name": "write_file", "arguments": written}], "tokens": tokens, "gap_ms": GAP_MS}
    return f"fake:{json.dumps(plan)}"


def storm(scene: Scene, *, turns: int, seconds: float, every: float, seed: int) -> tuple[list[UUID], int]:
    """Some always run; one of the workers that run them is killed, again and again, and started again at once.

    Who only starts is not worth a kill: on a busy machine nobody would ever get to work.
    """
    chance = random.Random(seed)
    ids, kills, began, killed_at = list[UUID](), 0, time.monotonic(), 0.0
    while (passed := time.monotonic() - began) < seconds or (len(ids) < turns and passed < LONGEST_SECONDS):
        while len(ids) < turns and unfinished(ids) < AT_ONCE:
            ids.append(scene.begin(said(len(ids), chance.randint(LONGEST_TOKENS // 6, LONGEST_TOKENS))))
        if passed - killed_at >= every and (busy := at_work(scene)):
            name = chance.choice(busy)
            scene.site.signal(name, signal.SIGKILL)
            scene.site.processes[name].wait()
            killed_at, kills = passed, kills + 1
        scene.site.revive()
        time.sleep(0.05)
    while len(ids) < turns:
        ids.append(scene.begin(said(len(ids), LONGEST_TOKENS)))
    return ids, kills


def unfinished(ids: list[UUID]) -> int:
    from copilot.models import Turn

    return Turn.objects.filter(pk__in=ids, ended_at=None).count()


def at_work(scene: Scene) -> list[str]:
    """The processes that have a turn."""
    from copilot.models import Turn

    workers = set(Turn.objects.filter(status="running").values_list("worker", flat=True))
    pids = {int(worker.split("-")[-2]) for worker in workers if worker}
    return [name for name in TURNS if scene.site.processes[name].pid in pids]


def settle(ids: list[UUID]) -> int:
    """How many have not ended when patience does."""
    deadline = time.monotonic() + QUIET_SECONDS
    while left := unfinished(ids):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return left


def broken(site: Site, ids: list[UUID]) -> Iterator[str]:
    from billing.models import UsageRecord
    from copilot.models import ModelCall, Turn, WorkspaceFile
    from tests.faults import checks
    from tests.support import turn_engine

    for turn in Turn.objects.filter(pk__in=ids):
        told = turn_engine.endings(turn.session_id, turn.pk)
        if turn.status not in Turn.ENDINGS or len(told) != 1:
            yield f"turn {turn.pk} is {turn.status} and was told to have ended {len(told)} times"
    files = (
        WorkspaceFile.objects.filter(session__turns__in=ids).distinct().values_list("session_id", "call_id")
    )
    for (session_id, call_id), times in Counter(files).items():
        if times > 1:
            yield f"call {call_id} of session {session_id} wrote its file {times} times"
    calls = set(ModelCall.objects.values_list("pk", flat=True))
    for charged in UsageRecord.objects.exclude(call_id__in=calls).values_list("call_id", flat=True):
        yield f"call {charged} was charged and has no turn"
    yield from checks._texts()
    for name in TURNS:
        lost = site.log(name).read_text(errors="replace").count(LOST_IT)
        if lost:
            yield f"{name} lost {lost} turns while it lived"


def play(scene: Scene, *, turns: int, seconds: float, every: float, seed: int = 1) -> int:
    from copilot.models import Turn

    ids, kills = storm(scene, turns=turns, seconds=seconds, every=every, seed=seed)
    left = settle(ids)
    time.sleep(1)  # the last ending is told after its row
    problems = list(broken(scene.site, ids))
    rows = Turn.objects.filter(pk__in=ids)
    ended = Counter(rows.values_list("status", flat=True))
    print(f"{kills} kills of workers at work, {len(ids)} turns: {dict(ended)}, {left} unfinished")
    print(f"attempts: {dict(sorted(Counter(rows.values_list('attempts', flat=True)).items()))}")
    print(f"failed as: {dict(Counter(rows.filter(status='failed').values_list('failure_code', flat=True)))}")
    lost = rows.filter(attempts__gt=1).count()
    if lost < FEWEST_LOST * len(ids):
        problems.append(f"this was no storm: {lost} turns lost a worker")
    for problem in problems:
        print(f"BROKEN  {problem}")
    return 1 if problems or left else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.killing")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--every", type=float, default=2)
    options = parser.parse_args()
    with running_site(redis_is_durable=True) as site:
        _enter(site)
        from bench.seed import _lift_limits

        _lift_limits()
        return play(Scene(site), turns=options.turns, seconds=options.seconds, every=options.every)


if __name__ == "__main__":
    sys.exit(main())
