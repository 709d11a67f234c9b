"""Produce each condition of D3 with real processes, see that the page lists, counts and explains it, and mend it there.

python -m tests.faults.conditions [condition …]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.faults.__main__ import _enter
from tests.faults.scene import ASKING, SHORT, Mended, Scene, until
from tests.faults.site import TURNS, running_site


def running(scene: Scene) -> Mended:
    turn_id = scene.running()
    scene.sees("running", turn_id, "running")
    return scene.mended(turn_id, "running", "stop", "cancelled")


def queued(scene: Scene) -> Mended:
    with scene.without_reaper(), scene.frozen(*TURNS):
        turn_id = scene.begin(SHORT)
        scene.put_back(turn_id, 120, "dispatched_at")
        scene.sees("queued", turn_id, "queued")
        scene.sees("never_started", turn_id, "queued?only=never_started")
        mended = scene.mended(turn_id, "queued?only=never_started", "requeue", "queued")
    scene.becomes(turn_id, "succeeded")
    return mended


def stuck_queued(scene: Scene) -> Mended:
    with scene.without_reaper(), scene.frozen(*TURNS):
        turn_id = scene.begin(SHORT)
        scene.put_back(turn_id, 3700, "created_at", "queued_at", "dispatched_at")
        scene.sees("stuck_queued", turn_id, "stuck-queued", "stuck_queue")
        mended = scene.mended(turn_id, "stuck-queued", "requeue", "queued")
    scene.becomes(turn_id, "succeeded")
    return mended


def orphaned_queued(scene: Scene) -> Mended:
    with scene.without_reaper(), scene.frozen(*TURNS):
        turn_id = scene.begin(SHORT)
        scene.put_back(turn_id, 90_000, "created_at", "queued_at", "dispatched_at")
        scene.sees("orphaned_queued", turn_id, "orphaned?only=orphaned_queued", "orphans")
        assert str(turn_id) not in scene.listed("stuck_queued")
        return scene.mended(turn_id, "orphaned", "cleanup_orphaned", "failed")


def orphaned_running(scene: Scene) -> Mended:
    """kill -9 while no reaper runs; its neighbours are not touched."""
    with scene.without_reaper():
        turn_id, neighbours = scene.running(), [scene.running(), scene.running()]
        with scene.without(scene.process_of(turn_id)):
            live = [one for one in neighbours if scene.row(one).worker != scene.row(turn_id).worker]
            scene.put_back(turn_id, 60, "started_at", "attempt_started_at")
            scene.sees("orphaned_running", turn_id, "orphaned?only=orphaned_running", "orphans")
            assert not {str(one) for one in live} & set(scene.listed("orphaned_running"))
            mended = scene.mended(turn_id, "orphaned", "cleanup_orphaned", "failed")
            assert [scene.row(one).status for one in live] == ["running"] * len(live)
    for one in neighbours:
        scene.end(one)
    return mended


def taken_over(scene: Scene) -> Mended:
    """The same, left to the reaper."""
    turn_id = scene.running()
    with scene.without(scene.process_of(turn_id)):
        pass
    until(lambda: scene.row(turn_id).attempts == 2, "the reaper takes it over")
    by = scene.audited(turn_id, "take_over")
    scene.end(turn_id)
    return Mended(place="audit", finding="", by=by)


def long_running(scene: Scene) -> Mended:
    turn_id = scene.running()
    scene.put_back(turn_id, 90_000, "started_at")
    scene.sees("long_running", turn_id, "long-running", "long_running")
    scene.sees("long_running_1h", turn_id, "running?only=long_running_1h", "long_running")
    assert str(turn_id) not in scene.listed("orphaned_running")
    return scene.mended(turn_id, "long-running", "stop", "cancelled")


def cancel_backlog(scene: Scene) -> Mended:
    """A worker that cannot hear, and nobody who overrides it but the person on call."""
    from copilot.chat import stop

    with scene.without_reaper():
        turn_id = scene.running()
        with scene.frozen(*TURNS):
            stop.stop_turn_as_staff(turn_id)
            scene.put_back(turn_id, 6, "stop_requested_at")
            place = "running?only=cancel_backlog"
            scene.sees("cancel_backlog", turn_id, place, "cancel_backlog")
            return scene.mended(turn_id, place, "stop", "cancelled")


def waiting_old(scene: Scene) -> Mended:
    turn_id = scene.begin(ASKING)
    scene.becomes(turn_id, "waiting")
    scene.put_back(turn_id, 90_000, "paused_at")
    scene.sees("waiting_old", turn_id, "waiting?only=waiting_old")
    assert str(turn_id) not in scene.listed("orphaned")
    return scene.mended(turn_id, "waiting?only=waiting_old", "stop", "cancelled")


def stranded_pending(scene: Scene) -> Mended:
    with scene.without_reaper():
        session, place = scene.stranded(), "queued?only=stranded_pending"
        scene.sees("stranded_pending", session.pk, place, "stranded_pending")
        assert scene.staff.repair(place, "start_stranded", session.pk) == 1
        until(lambda: session.turns.filter(status="succeeded").exists(), "its message is answered")
        by = scene.audited(session.pk, "start_stranded")
    return Mended(place=place, finding="stranded_pending", by=by)


def started_by_itself(scene: Scene) -> Mended:
    """The same, left to the reaper that comes back."""
    with scene.without_reaper():
        session, place = scene.stranded(), "queued?only=stranded_pending"
        scene.sees("stranded_pending", session.pk, place, "stranded_pending")
    until(lambda: session.turns.filter(status="succeeded").exists(), "the reaper starts a turn for it")
    return Mended(place=place, finding="stranded_pending", by=scene.audited(session.pk, "start_stranded"))


def invalid(scene: Scene) -> Mended:
    """Found here and repaired by nothing: no form and no endpoint exists (D5)."""
    from copilot.models import Turn

    with scene.without_reaper(), scene.frozen(*TURNS):
        turn_id = scene.begin(SHORT)
        scene.put_back(turn_id, 60, "started_at")
        scene.sees("invalid", turn_id, "invalid", "invalid_state")
        assert "name=ids" not in scene.staff.look("invalid").replace('"', "")
        Turn.objects.filter(pk=turn_id).update(started_at=None)
    scene.becomes(turn_id, "succeeded")
    return Mended(place="invalid", finding="invalid_state", by="nobody: read only (D5)")


SCENES: dict[str, Callable[[Scene], Mended]] = {
    "running": running,
    "queued, never_started": queued,
    "stuck_queued": stuck_queued,
    "orphaned_queued": orphaned_queued,
    "orphaned_running": orphaned_running,
    "orphaned_running, by itself": taken_over,
    "long_running": long_running,
    "cancel_backlog": cancel_backlog,
    "waiting_old": waiting_old,
    "stranded_pending": stranded_pending,
    "stranded_pending, by itself": started_by_itself,
    "invalid": invalid,
}


def main(names: list[str]) -> int:
    with running_site(redis_is_durable=True) as site:
        _enter(site)
        from bench.seed import _lift_limits

        _lift_limits()
        scene = Scene(site)
        broken = 0
        print(f"{'condition':<28} {'shown at':<30} {'finding':<17} mended by (audit)")
        for name in [name for name in SCENES if not names or set(names) & set(name.split(", "))]:
            try:
                done = SCENES[name](scene)
                print(f"{name:<28} {done.place:<30} {done.finding or '–':<17} {done.by}", flush=True)
            except (AssertionError, TimeoutError) as problem:
                broken += 1
                print(f"{name:<28} BROKEN: {str(problem) or type(problem).__name__}", flush=True)
            site.revive()
        return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
