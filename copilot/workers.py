"""Worker processes and their signs of life: the only writer of WorkerBeat (D2)."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import psycopg
from django.conf import settings
from django.db import connection
from django.db.utils import DatabaseError

from config.core.database import connection_string
from copilot.errors import Unavailable
from copilot.evidence import LOCK_SPACE
from copilot.live import beats
from copilot.live.client import RedisDown
from copilot.models import WorkerBeat

log = logging.getLogger(__name__)

REDIS_BEAT_SECONDS = 0.5  # cheap, and what tells a dead process from a cut connection within a second
DRAIN_SECONDS = 2.0  # whoever leaves says so, but waits for no server that hangs

Running = Callable[[], Sequence[tuple[str, int]]]  # the (turn, fence) pairs a process runs now


@dataclass(frozen=True)
class Identity:
    worker: str
    lock_key: int


def new_identity() -> Identity:
    """A name no other process has ever had, and the number of its advisory lock."""
    worker = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
    digest = hashlib.blake2b(worker.encode(), digest_size=4).digest()
    return Identity(worker, int.from_bytes(digest, "big", signed=True))


class Beat(threading.Thread):
    """A thread of its own, so that a busy event loop never looks like a dead process (A-D2.3).

    Two, for each of the two servers: one that hangs must not silence the beat in the other (A-D2.4).
    """

    def __init__(
        self,
        identity: Identity,
        running: Running,
        queues: Sequence[str],
        *,
        is_listening: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(name="beat", daemon=True)
        self._writer = threading.Thread(target=self._write_on, name="beat in Postgres", daemon=True)
        self._writing = threading.Lock()
        # Read once, by whoever makes it: not by its threads.
        self._period, self._life = settings.WORKER_BEAT_SECONDS, settings.WORKER_BEAT_LIFE_SECONDS
        self._version = settings.VERSION
        self.identity = identity
        self._running = running
        self._queues = list(queues)
        self._is_listening = is_listening
        self._draining = False
        self._over = threading.Event()
        self._lock: psycopg.Connection[tuple[object, ...]] | None = None

    def begin(self) -> None:
        """Hold the lock and beat once before any turn is taken, then go on in the background."""
        try:
            self._hold_lock()
            self._write()
        except (DatabaseError, psycopg.Error):
            self._drop_lock()  # whoever tries again begins with a new connection
            raise
        self._beat_in_redis()
        connection.close()
        self.start()
        self._writer.start()

    def run(self) -> None:
        while not self._over.wait(REDIS_BEAT_SECONDS):
            self._beat_in_redis()

    def _write_on(self) -> None:
        while not self._over.wait(self._period):
            self.beat_once()
        connection.close()  # this thread's own

    def _beat_in_redis(self) -> None:
        try:
            beats.write(self.identity.worker, self._running(), life_seconds=self._life)
        except RedisDown:
            log.warning("this worker's beat did not reach Redis")

    def beat_once(self, *, patience_seconds: float = -1) -> None:
        """In Postgres, with the lock held or taken again before anything else; -1: however long another one hangs."""
        if not self._writing.acquire(timeout=patience_seconds):
            return
        try:
            self._hold_lock()
            self._write()
        except (DatabaseError, psycopg.Error):
            log.warning("this worker's beat did not reach Postgres")
            connection.close()
            self._drop_lock()
        finally:
            self._writing.release()

    def drain(self) -> None:
        self._draining = True
        self.beat_once(patience_seconds=DRAIN_SECONDS)

    def end(self) -> None:
        """The process leaves on purpose: nothing of it is left to judge."""
        self._over.set()
        for thread in (self, self._writer):
            if thread.is_alive():
                thread.join(timeout=5)
        try:
            WorkerBeat.objects.filter(pk=self.identity.worker).delete()
            beats.forget(self.identity.worker)
        except (DatabaseError, *RedisDown):
            log.warning("this worker's beat could not be removed; it will be purged later")
        self._drop_lock()

    def _hold_lock(self) -> None:
        """The lock lives on a connection of its own: the server frees it the moment this process dies."""
        if self._lock is None or self._lock.closed:
            self._lock = psycopg.connect(connection_string(), autocommit=True)
            self._lock.execute("SELECT pg_advisory_lock(%s, %s)", [LOCK_SPACE, self.identity.lock_key])
        else:
            self._lock.execute("SELECT 1")

    def _drop_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write(self) -> None:
        turns = msgspec.json.encode([list(pair) for pair in self._running()]).decode()
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO copilot_workerbeat (worker, lock_key, host, pid, version, queues, turns, draining)
                VALUES (%(worker)s, %(lock)s, %(host)s, %(pid)s, %(version)s, %(queues)s, %(turns)s, %(draining)s)
                ON CONFLICT (worker) DO UPDATE SET beat_at = now(), turns = excluded.turns,
                       queues = excluded.queues, draining = excluded.draining
                """,
                {
                    "worker": self.identity.worker,
                    "lock": self.identity.lock_key,
                    "host": socket.gethostname(),
                    "pid": os.getpid(),
                    "version": self._version,
                    # Only what it really takes from: a worker that hears nothing serves no queue.
                    "queues": msgspec.json.encode(self._queues if self._is_listening() else []).decode(),
                    "turns": turns,
                    "draining": self._draining,
                },
            )


# --- work done and leadership ----------------------------------------------------------------------------

LEAD_SECONDS = 5.0  # a leader that does not renew for this long has lost the lead


def note_work(name: str, *, only_if_unknown: bool = False) -> bool:
    """Remember in Redis that this kind of work was done just now; False when Redis is away."""
    try:
        beats.note_work(name, only_if_unknown=only_if_unknown)
    except RedisDown:
        return False
    return True


def take_lead(role: str, holder: str, *, rank: int, life_seconds: float = LEAD_SECONDS) -> bool:
    """Take or keep the lead of a role among all processes; raises `Unavailable` while Redis is away."""
    try:
        return beats.lead(role, holder, rank=rank, life_seconds=life_seconds)
    except RedisDown as problem:
        raise Unavailable(type(problem).__name__) from problem


def step_down(role: str, holder: str) -> None:
    """Let somebody else lead at once; while Redis is away the lead expires by itself."""
    with suppress(*RedisDown):
        beats.step_down(role, holder)


# --- the dead -----------------------------------------------------------------------------------------


def dead() -> list[str]:
    """Workers whose process is gone and which nobody has heard of since."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT b.worker FROM copilot_workerbeat b
            WHERE b.beat_at < now() - %(life)s * interval '1 second' AND NOT EXISTS (
                SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
                  AND l.classid = %(space)s AND l.objid = (b.lock_key & 4294967295)
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
              AND NOT EXISTS (SELECT 1 FROM copilot_turn t WHERE t.worker = b.worker AND t.status = 'running')
            """,
            {"life": settings.WORKER_BEAT_LIFE_SECONDS, "space": LOCK_SPACE},
        )
        silent = [row[0] for row in cursor.fetchall()]
    heard = beats.read(silent, life_seconds=settings.WORKER_BEAT_LIFE_SECONDS)
    return [worker for worker in silent if worker not in heard]


def forget(worker: str) -> None:
    """Nothing of it is left to judge; should it live after all, its next beat brings the row back."""
    WorkerBeat.objects.filter(pk=worker).delete()


def purge_lost(hours: int = 24) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM copilot_workerbeat WHERE beat_at < now() - %s * interval '1 hour'",
            [hours],
        )
        return int(cursor.rowcount)
