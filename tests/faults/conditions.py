"""Produce each condition of D3 with real processes, see that diagnostics names it and nothing else, and mend it.

python -m tests.faults.conditions [condition …]
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from uuid import UUID

from tests.faults.__main__ import _enter
from tests.faults.site import TURNS, Site, running_site

PATIENCE_SECONDS = 60.0
LONG = '{"tokens": 4000}'  # the fake provider speaks for minutes


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.1)


class Scene:
    """One installation, in which one thing after another goes wrong."""

    def __init__(self, site: Site) -> None:
        self.site = site

    # --- what people do --------------------------------------------------------------------------

    def session(self):
        from django.contrib.auth.models import User

        from copilot import sessions

        owner, _ = User.objects.get_or_create(username="sailor", defaults={"email": "sailor@example.com"})
        return sessions.create(owner.pk)

    def begin(self, text: str = LONG) -> UUID:
        from copilot import dispatch
        from copilot.commands import SendMessage
        from copilot.permissions import UNRESTRICTED

        session = self.session()
        message = SendMessage(
            session_id=session.pk, user_id=session.owner_id, text=text, origin="web", permissions=UNRESTRICTED
        )
        return dispatch.submit(message).turn_id

    def running(self) -> UUID:
        turn_id = self.begin()
        until(lambda: self.row(turn_id).status == "running", "a worker takes the turn")
        return turn_id

    def row(self, turn_id: UUID):
        from copilot.models import Turn

        return Turn.objects.get(pk=turn_id)

    def put_back(self, turn_id: UUID, seconds: int, *fields: str) -> None:
        from datetime import timedelta

        from django.utils import timezone

        from copilot.models import Turn

        then = timezone.now() - timedelta(seconds=seconds)
        Turn.objects.filter(pk=turn_id).update(**dict.fromkeys(fields, then))

    # --- what breaks -----------------------------------------------------------------------------

    @contextmanager
    def without(self, *names: str):
        """Killed, and started again afterwards."""
        for name in names:
            self.site.signal(name, signal.SIGKILL)
            self.site.processes[name].wait()
        try:
            yield
        finally:
            self.site.revive()

    @contextmanager
    def frozen(self, *names: str):
        for name in names:
            self.site.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                self.site.signal(name, signal.SIGCONT)

    # --- what is seen ----------------------------------------------------------------------------

    def listed(self, condition: str) -> list[str]:
        from diagnostics import lists

        page = lists.page(lists.Filters(condition=condition), lists.Slice(limit=200))
        return [row.id or row.session_id for row in page.results]

    def sees(self, condition: str, identifier: UUID) -> None:
        """Listed and counted, by the same number; whatever else goes on here may change between the two looks."""
        until(lambda: self._agree(condition, identifier), f"{condition} lists and counts it")

    def _agree(self, condition: str, identifier: UUID) -> bool:
        from diagnostics import snapshot

        named = {
            "long_running": "long_running_24h",
            "invalid": "invalid_total",
            "stranded_pending": "stranded_sessions",
        }
        listed = self.listed(condition)
        counted = getattr(snapshot.compute(), named.get(condition, condition))
        return str(identifier) in listed and counted == len(listed)

    def end(self, turn_id: UUID) -> None:
        from diagnostics import repairs

        user = self.row(turn_id).session.owner
        actor = repairs.Actor(name="faults", admin_id=user.pk)
        asked = {"ids": [str(turn_id)], "reason": "the scene is over", "confirm": True}
        repairs.perform(actor, "stop", asked)
        until(lambda: self.row(turn_id).ended_at, "the turn ends")


# --- one scene per condition -------------------------------------------------------------------------


def running(scene: Scene) -> None:
    turn_id = scene.running()
    scene.sees("running", turn_id)
    scene.end(turn_id)


def queued(scene: Scene) -> None:
    with scene.frozen(*TURNS):
        turn_id = scene.begin('{"tokens": 5}')
        for condition in ("queued", "never_started"):
            scene.sees(condition, turn_id)
    until(lambda: scene.row(turn_id).status == "succeeded", "a worker that woke runs it")


def stuck_queued(scene: Scene) -> None:
    with scene.without(*TURNS):
        turn_id = scene.begin('{"tokens": 5}')
        scene.put_back(turn_id, 3700, "created_at", "queued_at")
        scene.sees("stuck_queued", turn_id)
    until(lambda: scene.row(turn_id).status == "succeeded", "a new worker runs it")


def orphaned_queued(scene: Scene) -> None:
    with scene.without(*TURNS):
        turn_id = scene.begin('{"tokens": 5}')
        scene.put_back(turn_id, 90_000, "created_at", "queued_at")
        scene.sees("orphaned_queued", turn_id)
        assert str(turn_id) not in scene.listed("stuck_queued")
    until(lambda: scene.row(turn_id).status == "succeeded", "a new worker runs it")


def orphaned_running(scene: Scene) -> None:
    """kill -9 while nobody reaps; the reaper that comes back heals it."""
    with scene.without("maintenance"):
        turn_id, neighbour = scene.running(), scene.running()
        worker = scene.row(turn_id).worker
        pid = int(worker.split("-")[-2])
        name = next(name for name in TURNS if scene.site.processes[name].pid == pid)
        with scene.without(name):
            scene.put_back(turn_id, 60, "started_at", "begun_at")
            scene.sees("orphaned_running", turn_id)
            if scene.row(neighbour).worker != worker:
                assert str(neighbour) not in scene.listed("orphaned_running")
    until(lambda: scene.row(turn_id).attempts == 2, "the reaper takes it over")
    scene.end(turn_id)
    scene.end(neighbour)


def long_running(scene: Scene) -> None:
    turn_id = scene.running()
    scene.put_back(turn_id, 90_000, "started_at")
    for condition in ("long_running", "long_running_1h"):
        scene.sees(condition, turn_id)
    assert str(turn_id) not in scene.listed("orphaned_running")
    scene.end(turn_id)


def cancel_backlog(scene: Scene) -> None:
    """A worker that cannot hear, and nobody who overrides it."""
    from copilot import dispatch

    with scene.without("maintenance"):
        turn_id = scene.running()
        with scene.frozen(*TURNS):
            dispatch.stop_execution(turn_id)
            scene.put_back(turn_id, 6, "stop_requested_at")
            scene.sees("cancel_backlog", turn_id)
    until(lambda: scene.row(turn_id).status == "cancelled", "the reaper overrides it")


def waiting_old(scene: Scene) -> None:
    from copilot.models import Turn

    with scene.without("maintenance"):
        turn_id = scene.running()
        scene.put_back(turn_id, 90_000, "paused_at")
        Turn.objects.filter(pk=turn_id).update(status="waiting", worker="")
        scene.sees("waiting_old", turn_id)
        assert str(turn_id) not in scene.listed("orphaned")
    scene.end(turn_id)


def stranded_pending(scene: Scene) -> None:
    from datetime import timedelta

    from django.utils import timezone

    from copilot.models import Message
    from tests import make

    with scene.without("maintenance"):
        session = scene.session()
        message = make.pending(session, '{"tokens": 5}', run_id="stranded")
        Message.objects.filter(pk=message.pk).update(created_at=timezone.now() - timedelta(seconds=20))
        scene.sees("stranded_pending", session.pk)
    until(lambda: session.turns.filter(status="succeeded").exists(), "the reaper starts a turn for it")


def invalid(scene: Scene) -> None:
    from copilot.models import Turn

    with scene.without(*TURNS):
        turn_id = scene.begin('{"tokens": 5}')
        scene.put_back(turn_id, 60, "started_at")
        scene.sees("invalid", turn_id)
        Turn.objects.filter(pk=turn_id).update(started_at=None)
    until(lambda: scene.row(turn_id).status == "succeeded", "a new worker runs it")


SCENES: dict[str, Callable[[Scene], None]] = {
    "running": running,
    "queued": queued,
    "stuck_queued": stuck_queued,
    "orphaned_queued": orphaned_queued,
    "orphaned_running": orphaned_running,
    "long_running": long_running,
    "cancel_backlog": cancel_backlog,
    "waiting_old": waiting_old,
    "stranded_pending": stranded_pending,
    "invalid": invalid,
}


def main(names: list[str]) -> int:
    with running_site(redis_is_durable=True) as site:
        _enter(site)
        from bench.seed import _lift_limits

        _lift_limits()
        scene = Scene(site)
        broken = 0
        for name in names or list(SCENES):
            try:
                SCENES[name](scene)
                print(f"seen and mended  {name}", flush=True)
            except (AssertionError, TimeoutError) as problem:
                broken += 1
                print(f"BROKEN           {name}: {problem}", flush=True)
            site.revive()
        return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
