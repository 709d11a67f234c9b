"""Send and read heartbeats: of workers in Postgres and Redis, and in Redis of sweeps, periodic work and leaders.

This module alone writes `WorkerHeartbeat`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import psycopg
import structlog
from django.conf import settings
from django.db import connection
from django.db.utils import DatabaseError

from config.core.db import build_connection_string
from config.core.errors import ServiceUnavailable
from config.core.redis import REDIS_OUTAGE_ERRORS, get_redis, get_script
from copilot.models import WorkerHeartbeat
from copilot.realtime import redis_keys

log = structlog.get_logger(__name__)

SWEEP_LIFETIME_SECONDS = 24 * 3600
WORK_LIFETIME_SECONDS = 24 * 3600
REDIS_HEARTBEAT_SECONDS = (
    0.5  # while turns run: it tells a dead process from a cut connection within a second
)
DRAIN_TIMEOUT_SECONDS = 2.0  # a draining worker does not wait longer than this for a Postgres that hangs
LEADERSHIP_LIFETIME_SECONDS = 5.0  # a leader that does not renew for this long has lost the lead
WORKER_LOCK_SPACE = 0x50484F55  # keeps our advisory locks apart from other programs' in the same database
BLIND_SWEEP = b"blind"


# --- Workers in Redis --------------------------------------------------------------------------------


def write_redis_heartbeat(worker: str, running: Sequence[tuple[str, int]], *, life_seconds: float) -> None:
    value = msgspec.json.encode([list(pair) for pair in running])
    get_redis().set(redis_keys.heartbeat_key(worker), value, px=int(life_seconds * 1000))


def delete_redis_heartbeat(worker: str) -> None:
    get_redis().delete(redis_keys.heartbeat_key(worker))


@dataclass(frozen=True)
class RedisHeartbeat:
    age_seconds: float
    turns: frozenset[tuple[str, int]]


def read_redis_heartbeats(workers: Iterable[str], *, life_seconds: float) -> dict[str, RedisHeartbeat]:
    """Return the last heartbeat of each worker; workers without one are left out."""
    names = list(workers)
    if not names:
        return {}
    with get_redis().pipeline(transaction=False) as pipe:
        for worker in names:
            pipe.get(redis_keys.heartbeat_key(worker))
            pipe.pttl(redis_keys.heartbeat_key(worker))
        answers = pipe.execute()
    found = {}
    for worker, value, ttl_ms in zip(names, answers[::2], answers[1::2], strict=True):
        if value is not None:
            turns = frozenset((turn_id, fence) for turn_id, fence in msgspec.json.decode(value))
            found[worker] = RedisHeartbeat(age_seconds=life_seconds - ttl_ms / 1000, turns=turns)
    return found


# --- Sweeps ------------------------------------------------------------------------------------------


def write_sweep(*, blind: bool = False) -> None:
    """Record that the reaper swept just now; `blind` when it could not see the state of the workers."""
    get_redis().set(redis_keys.REAPER_KEY, BLIND_SWEEP if blind else b"1", ex=SWEEP_LIFETIME_SECONDS)


def was_last_sweep_blind() -> bool:
    return get_redis().get(redis_keys.REAPER_KEY) == BLIND_SWEEP


def read_sweep_age_seconds() -> float | None:
    """Return the seconds since the last sweep; None when Redis knows of none."""
    ttl_ms = get_redis().pttl(redis_keys.REAPER_KEY)
    return None if ttl_ms < 0 else SWEEP_LIFETIME_SECONDS - ttl_ms / 1000


# --- The installation --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class InstallationCopy:
    """The copy in Redis of the row that names this installation."""

    installation_id: str
    epoch: int
    incarnation: str


def read_installation_copy() -> InstallationCopy | None:
    fields: list[bytes | None] = get_redis().hmget(
        redis_keys.INSTALLATION_KEY, ["id", "epoch", "incarnation"]
    )  # type: ignore[assignment]
    identifier, epoch, incarnation = ((field or b"").decode() for field in fields)
    if not (identifier and epoch.isdecimal()):
        return None
    return InstallationCopy(installation_id=identifier, epoch=int(epoch), incarnation=incarnation)


def write_installation_copy(copy: InstallationCopy) -> None:
    get_redis().hset(
        redis_keys.INSTALLATION_KEY,
        mapping={"id": copy.installation_id, "epoch": copy.epoch, "incarnation": copy.incarnation},
    )


# --- Periodic work -----------------------------------------------------------------------------------


def write_work_time(name: str, *, only_if_unknown: bool = False) -> None:
    get_redis().set(redis_keys.last_work_key(name), b"1", ex=WORK_LIFETIME_SECONDS, nx=only_if_unknown)


def read_work_ages(names: Sequence[str]) -> dict[str, float]:
    """Return the seconds since each kind of work was last done; kinds that Redis does not know are left out."""
    with get_redis().pipeline(transaction=False) as pipe:
        for name in names:
            pipe.pttl(redis_keys.last_work_key(name))
        ttls_ms = pipe.execute()
    return {
        name: WORK_LIFETIME_SECONDS - ttl_ms / 1000
        for name, ttl_ms in zip(names, ttls_ms, strict=True)
        if ttl_ms >= 0
    }


def record_work(name: str, *, only_if_unknown: bool = False) -> bool:
    """Record that this kind of work was done just now; False when Redis is down."""
    try:
        write_work_time(name, only_if_unknown=only_if_unknown)
    except REDIS_OUTAGE_ERRORS:
        return False
    return True


# --- Leadership --------------------------------------------------------------------------------------


def acquire_leadership(role: str, holder: str, *, rank: int, life_seconds: float) -> bool:
    """Take or keep the lead. Leadership only saves work: two leaders at once must do no harm."""
    arguments: list[str | int] = [holder, rank, int(life_seconds * 1000)]
    return bool(get_script("acquire_leadership")(keys=[redis_keys.leader_key(role)], args=arguments))


def release_leadership(role: str, holder: str) -> None:
    get_script("release_leadership")(keys=[redis_keys.leader_key(role)], args=[holder])


def take_leadership(
    role: str, holder: str, *, rank: int, life_seconds: float = LEADERSHIP_LIFETIME_SECONDS
) -> bool:
    """Take or keep the lead of a role among all processes; raise `ServiceUnavailable` while Redis is down."""
    try:
        return acquire_leadership(role, holder, rank=rank, life_seconds=life_seconds)
    except REDIS_OUTAGE_ERRORS as problem:
        raise ServiceUnavailable(type(problem).__name__) from problem


def give_up_leadership(role: str, holder: str) -> None:
    """Release the lead at once. While Redis is down it expires by itself."""
    with suppress(*REDIS_OUTAGE_ERRORS):
        release_leadership(role, holder)


# --- The heartbeat of this process -------------------------------------------------------------------

ListRunningTurns = Callable[[], Sequence[tuple[str, int]]]  # the (turn id, fence) pairs that a process runs


@dataclass(frozen=True)
class WorkerIdentity:
    worker: str
    lock_key: int


def create_worker_identity() -> WorkerIdentity:
    """Return a name that no other process has ever had, and the number of its advisory lock."""
    worker = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
    digest = hashlib.blake2b(worker.encode(), digest_size=4).digest()
    return WorkerIdentity(worker, int.from_bytes(digest, "big", signed=True))


class HeartbeatThread(threading.Thread):
    """Send the heartbeats of this process outside its event loop, so that a busy loop never looks like a dead process.

    There is one thread for Redis and one for Postgres: a server that hangs must not silence the heartbeat in the other.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        list_running: ListRunningTurns,
        queues: Sequence[str],
        *,
        is_listening: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(name="beat", daemon=True)
        self._writer = threading.Thread(target=self._write_forever, name="beat in Postgres", daemon=True)
        self._writing = threading.Lock()
        # Read settings once, in the thread that creates this, not in the heartbeat threads.
        self._period, self._life = settings.WORKER_BEAT_SECONDS, settings.WORKER_BEAT_LIFE_SECONDS
        self._version = settings.VERSION
        self.identity = identity
        self._list_running = list_running
        self._queues = list(queues)
        self._is_listening = is_listening
        self._draining = False
        self._stop_event = threading.Event()
        self._lists_turns = False  # the last heartbeat in Redis lists some
        self._lock: psycopg.Connection[tuple[object, ...]] | None = None

    def start_heartbeat(self) -> None:
        """Take the lock and send one heartbeat before any turn is claimed, then continue in the background."""
        try:
            self._write_to_postgres()
        except psycopg.Error:
            self._drop_lock()  # the next attempt begins with a new connection
            raise
        self._write_to_redis()
        self.start()
        self._writer.start()

    def run(self) -> None:
        """Send often after a heartbeat that listed turns, and otherwise as often as to Postgres."""
        while not self._stop_event.wait(REDIS_HEARTBEAT_SECONDS if self._lists_turns else self._period):
            self._write_to_redis()

    def _write_forever(self) -> None:
        while not self._stop_event.wait(self._period):
            self.write_once()

    def _write_to_redis(self) -> None:
        running = self._list_running()
        self._lists_turns = bool(running)
        try:
            write_redis_heartbeat(self.identity.worker, running, life_seconds=self._life)
        except REDIS_OUTAGE_ERRORS:
            log.warning("heartbeat_not_sent", server="redis")

    def write_once(self, *, timeout_seconds: float = -1) -> None:
        """Send one heartbeat to Postgres while the advisory lock is held. -1 waits for a hanging write without limit."""
        if not self._writing.acquire(timeout=timeout_seconds):
            return
        try:
            self._write_to_postgres()
        except psycopg.Error:
            log.warning("heartbeat_not_sent", server="postgres")
            self._drop_lock()
        finally:
            self._writing.release()

    def mark_draining(self) -> None:
        self._draining = True
        self.write_once(timeout_seconds=DRAIN_TIMEOUT_SECONDS)

    def stop_heartbeat(self) -> None:
        """Stop the threads and remove all traces, so that a planned exit does not look like a lost worker."""
        self._stop_event.set()
        for thread in (self, self._writer):
            if thread.is_alive():
                thread.join(timeout=5)
        try:
            WorkerHeartbeat.objects.filter(pk=self.identity.worker).delete()
            delete_redis_heartbeat(self.identity.worker)
        except (DatabaseError, *REDIS_OUTAGE_ERRORS):
            log.warning("heartbeat_not_removed")  # it is purged later
        self._drop_lock()

    def _hold_lock(self) -> psycopg.Connection[tuple[object, ...]]:
        """Hold the lock on a connection of its own: Postgres frees it the moment this process dies."""
        if self._lock is None or self._lock.closed:
            self._lock = psycopg.connect(build_connection_string(), autocommit=True)
            self._lock.execute("SELECT pg_advisory_lock(%s, %s)", [WORKER_LOCK_SPACE, self.identity.lock_key])
        return self._lock

    def _drop_lock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write_to_postgres(self) -> None:
        """Write on the lock's connection, so that the heartbeat also proves that the lock is held."""
        turns = msgspec.json.encode([list(pair) for pair in self._list_running()]).decode()
        self._hold_lock().execute(
            """
            INSERT INTO copilot_workerheartbeat (worker, lock_key, host, pid, version, queues, turns, draining)
            VALUES (%(worker)s, %(lock)s, %(host)s, %(pid)s, %(version)s, %(queues)s, %(turns)s, %(draining)s)
            ON CONFLICT (worker) DO UPDATE SET last_beat_at = now(), turns = excluded.turns,
                   queues = excluded.queues, draining = excluded.draining
            """,
            {
                "worker": self.identity.worker,
                "lock": self.identity.lock_key,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "version": self._version,
                # A worker that does not listen serves no queue.
                "queues": msgspec.json.encode(self._queues if self._is_listening() else []).decode(),
                "turns": turns,
                "draining": self._draining,
            },
        )


# --- Dead workers ------------------------------------------------------------------------------------


def list_dead_workers() -> list[str]:
    """List workers that hold no advisory lock, run no turn, and have no fresh heartbeat in either server."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT b.worker FROM copilot_workerheartbeat b
            WHERE b.last_beat_at < now() - %(life)s * interval '1 second' AND NOT EXISTS (
                SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
                  AND l.classid = %(space)s AND l.objid = (b.lock_key & 4294967295)
                  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
              AND NOT EXISTS (SELECT 1 FROM copilot_turn t WHERE t.worker = b.worker AND t.status = 'running')
            """,
            {"life": settings.WORKER_BEAT_LIFE_SECONDS, "space": WORKER_LOCK_SPACE},
        )
        silent = [row[0] for row in cursor.fetchall()]
    alive = read_redis_heartbeats(silent, life_seconds=settings.WORKER_BEAT_LIFE_SECONDS)
    return [worker for worker in silent if worker not in alive]


def delete_worker(worker: str) -> None:
    """Delete a worker's row. Should the worker live after all, its next heartbeat inserts the row again."""
    WorkerHeartbeat.objects.filter(pk=worker).delete()


def purge_old_workers(hours: int = 24) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM copilot_workerheartbeat WHERE last_beat_at < now() - %s * interval '1 hour'",
            [hours],
        )
        return int(cursor.rowcount)
