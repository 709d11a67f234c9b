"""One installation in which one thing after another goes wrong: what people do there, what breaks, and what staff see."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from tests.faults.site import TURNS, Site
from tests.faults.staff import Staff

if TYPE_CHECKING:
    from copilot.models import Session, Turn

PATIENCE_SECONDS = 90.0
LOOK_SECONDS = 1.0  # an administrator may look 120 times a minute (D14)
LONG = 'fake:{"tokens": 6000, "gap_ms": 50}'  # speaks for minutes
SHORT = 'fake:{"tokens": 5}'
ASKING = 'fake:{"tools": [{"name": "delete_file", "arguments": "{\\"file\\": \\"log.txt\\"}"}]}'
FIGURES = {
    "long_running": "long_running_24h",
    "invalid": "invalid_total",
    "stranded_pending": "stranded_sessions",
}  # of the summary, where they are named differently


def until(condition: Callable[[], object], what: str, *, every: float = 0.1) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(every)


@dataclass(frozen=True, kw_only=True)
class Mended:
    """One line of the table: where the page showed it, what it said was wrong, and who mended it."""

    place: str
    finding: str
    by: str


class Scene:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.staff = Staff("grace", site.urls[0])

    # --- what people do --------------------------------------------------------------------------

    def session(self) -> Session:
        from django.contrib.auth.models import User

        from copilot.chat import sessions

        owner, _ = User.objects.get_or_create(username="sailor", defaults={"email": "sailor@example.com"})
        return sessions.create_session(owner.pk)

    def begin(self, text: str = LONG) -> UUID:
        from copilot.chat import admission
        from copilot.chat.commands import SendMessage
        from copilot.chat.permissions import UNRESTRICTED

        session = self.session()
        message = SendMessage(
            session_id=session.pk, user_id=session.owner_id, text=text, origin="web", permissions=UNRESTRICTED
        )
        return admission.submit_message(message).turn_id

    def running(self) -> UUID:
        turn_id = self.begin()
        self.becomes(turn_id, "running")
        return turn_id

    def becomes(self, turn_id: UUID, status: str) -> None:
        until(lambda: self.row(turn_id).status == status, f"the turn becomes {status}")

    def stranded(self) -> Session:
        """A session whose message waits although nothing runs there."""
        from django.utils import timezone

        from copilot.models import Message
        from tests.support import factories

        session = self.session()
        message = factories.pending(session, SHORT, run_id=f"stranded-{session.pk}")
        Message.objects.filter(pk=message.pk).update(created_at=timezone.now() - timedelta(seconds=20))
        return session

    # --- rows ------------------------------------------------------------------------------------

    def row(self, turn_id: UUID) -> Turn:
        from copilot.models import Turn

        return Turn.objects.get(pk=turn_id)

    def put_back(self, turn_id: UUID, seconds: int, *fields: str) -> None:
        from django.utils import timezone

        from copilot.models import Turn

        then = timezone.now() - timedelta(seconds=seconds)
        Turn.objects.filter(pk=turn_id).update(**dict.fromkeys(fields, then))

    def process_of(self, turn_id: UUID) -> str:
        pid = int(self.row(turn_id).worker.split("-")[-2])
        return next(name for name in TURNS if self.site.processes[name].pid == pid)

    def present(self) -> list[str]:
        """Those that take turns: they beat."""
        from copilot.models import WorkerHeartbeat

        pids = set(WorkerHeartbeat.objects.values_list("pid", flat=True))
        return [name for name in TURNS if self.site.processes[name].pid in pids]

    # --- what breaks -----------------------------------------------------------------------------

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Killed, and started again afterwards."""
        for name in names:
            self.site.signal(name, signal.SIGKILL)
            self.site.processes[name].wait()
        try:
            yield
        finally:
            self.site.revive()

    @contextmanager
    def without_reaper(self) -> Iterator[None]:
        """Nobody sweeps: somebody of a rank above all others has the lead, and does nothing."""
        from copilot.worker import heartbeat

        def hold() -> None:
            while not over.wait(1.0):
                with contextlib.suppress(*REDIS_OUTAGE_ERRORS):
                    heartbeat.acquire_leadership("reaper", "scene", rank=-1, life_seconds=30)

        from config.core.redis import REDIS_OUTAGE_ERRORS

        over = threading.Event()
        heartbeat.acquire_leadership("reaper", "scene", rank=-1, life_seconds=30)
        holding = threading.Thread(target=hold, daemon=True)
        holding.start()
        time.sleep(2.5)  # a sweep that had begun is over
        try:
            yield
        finally:
            over.set()
            holding.join()
            heartbeat.release_leadership("reaper", "scene")

    @contextmanager
    def frozen(self, *names: str) -> Iterator[None]:
        for name in names:
            self.site.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                self.site.signal(name, signal.SIGCONT)

    # --- what staff see and do -------------------------------------------------------------------

    def listed(self, condition: str) -> list[str]:
        from diagnostics import execution_list

        page = execution_list.get_page(
            execution_list.ExecutionFilters(condition=condition), execution_list.PageSlice(limit=200)
        )
        return [row.id or row.session_id for row in page.results]

    def sees(self, condition: str, identifier: UUID, place: str, finding: str = "") -> None:
        """Listed and counted by the same number, shown on the page, and explained where it is trouble."""
        until(lambda: self._agree(condition, identifier), f"{condition} lists and counts it")
        until(
            lambda: self.staff.lists(place, identifier), f"the page shows it at {place}", every=LOOK_SECONDS
        )
        if finding:
            until(lambda: self.staff.finds(finding), f"the first page says {finding}", every=LOOK_SECONDS)

    def _agree(self, condition: str, identifier: UUID) -> bool:
        from diagnostics import snapshot

        listed = self.listed(condition)
        counted = getattr(snapshot.compute_summary(), FIGURES.get(condition, condition))
        return str(identifier) in listed and counted == len(listed)

    def mended(self, turn_id: UUID, place: str, action: str, status: str) -> Mended:
        """By the page's own dialog; the row tells, and so does the audit."""
        changed = self.staff.repair(place, action, turn_id)
        assert changed == 1, f"{action} changed {changed}"
        assert self.row(turn_id).status == status, f"{action} left it {self.row(turn_id).status}"
        finding = next((code for code in FINDINGS if place.startswith(FINDINGS[code])), "")
        return Mended(place=place, finding=finding, by=self.audited(turn_id, action))

    def audited(self, identifier: UUID, action: str) -> str:
        """Who mended it, as the audit and its tab tell."""
        from diagnostics.models import RepairAudit

        rows = RepairAudit.objects.filter(ids__contains=[identifier], action=action, outcome="done")
        until(rows.exists, f"an audit row of {action}")
        row = rows.latest("at")
        assert str(row.pk)[:8] in self.staff.look("audit"), "the tab Audit shows it"
        return f"{row.actor}: {row.action}"

    def end(self, turn_id: UUID) -> None:
        from copilot.chat import stop

        stop.stop_turn_as_staff(turn_id)
        until(lambda: self.row(turn_id).ended_at, "the turn ends")


FINDINGS = {
    "stuck_queue": "stuck-queued",
    "orphans": "orphaned",
    "long_running": "long-running",
    "cancel_backlog": "running?only=cancel_backlog",
}  # code → where the page leads from it
