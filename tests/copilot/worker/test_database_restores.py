"""Postgres restored from a backup while Redis kept its state: noticed by the sweep, and Redis is rebuilt from the rows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, connections
from django.utils import timezone

from billing import plans, redis_counters
from billing.usage import limit_checks
from config.core.db import build_connection_string
from config.core.redis import get_redis
from config.dev.servers import EmbeddedPostgres, find_postgres_binaries
from copilot.chat import admission
from copilot.models import Installation, Session, Turn, WorkerHeartbeat
from copilot.providers.scripted import ScriptedText
from copilot.realtime import lease, redis_keys
from copilot.worker import database_restores, heartbeat, recovery
from diagnostics import reaper
from tests.support import factories
from tests.support.database_cleanup import _AS_REPLICA, _TABLES, KEPT, _tables
from tests.support.turn_engine import answer, command, cue, ended, queue, quiet, said, start, status, until
from tests.support.usage import record_usage


class Backup:
    """All rows of this test's database as pg_dump writes them, and back by psql."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def take(self) -> None:
        kept = [f"--exclude-table={name}" for name in KEPT]
        self._run("pg_dump", "--data-only", "--schema=public", *kept, f"--file={self.file}")

    def restore(self) -> None:
        """In one transaction that no heartbeat can write into: the workers of these tests live on."""
        with psycopg.connect(build_connection_string()) as server:
            names = _tables(server.execute(_TABLES).fetchall())
        emptied = self.file.with_suffix(".emptied")
        heartbeats = f"lock table {WorkerHeartbeat._meta.db_table}"
        emptied.write_text(
            ";\n".join([_AS_REPLICA, heartbeats, *(f'delete from "{name}"' for name in names), ""])
        )
        files = [f"--file={emptied}", f"--file={self.file}"]
        self._run("psql", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction", *files)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(find_postgres_binaries() / program), "--dbname", build_connection_string(), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture
def backup(tmp_path: Path) -> Backup:
    if not (find_postgres_binaries() / "pg_dump").exists():
        pytest.skip("pg_dump is not installed")
    return Backup(tmp_path / "backup")


@pytest.fixture(autouse=True)
def _fresh_memory() -> Iterator[None]:
    database_restores._state = database_restores.RestoreCheckState()
    yield
    database_restores._state = database_restores.RestoreCheckState()


@pytest.fixture
def session(rig) -> Session:
    return factories.session()


def talk(session: Session, *texts: str) -> None:
    for text in texts:
        assert ended(start(session, text)).status == "succeeded"
        quiet(session)


def judge_old(turn_id) -> int:
    """The reaper's look at a turn that nobody has beaten for since long."""
    Turn.objects.filter(pk=turn_id).update(attempt_started_at="2026-01-01T00:00:00Z")
    return reaper.take_over_dead_turns()


# --- noticed, and mended ------------------------------------------------------------------------------


def test_a_chat_continues_after_postgres_was_restored(session, backup):
    recovery.rebuild_redis_if_restored()
    talk(session, "One", "Two")
    backup.take()
    talk(session, "Three", "Four", "Five")
    assert recovery.rebuild_redis_if_restored() is False
    backup.restore()
    assert (
        int(get_redis().get(redis_keys.fence_key(str(session.pk))).split(b":")[0])
        > Session.objects.get(pk=session.pk).fence
    )
    assert recovery.rebuild_redis_if_restored() is True
    assert recovery.rebuild_redis_if_restored() is False
    turn = ended(start(session, "After"))
    assert (turn.status, turn.attempts) == ("succeeded", 1)
    assert answer(turn.pk)
    assert said(session) == ["One", "Two", "After"]
    assert Installation.objects.get().rebuilt_at is not None


def test_what_was_accepted_before_the_restore_was_noticed_is_answered(session, backup, rig, caplog):
    recovery.rebuild_redis_if_restored()
    talk(session, "One")
    backup.take()
    talk(session, "Two", "Three")
    recovery.rebuild_redis_if_restored()
    backup.restore()
    turn_id = start(session, "Early")  # under a fence that Redis holds for an old one
    until(lambda: "turn_lost" in caplog.text and not rig.worker.running())
    assert status(turn_id) == "running"
    queue(session, "Behind it", run_id="behind")
    assert recovery.rebuild_redis_if_restored() is True
    assert judge_old(turn_id) == 1
    assert ended(turn_id).status == "succeeded"
    until(lambda: said(session) == ["One", "Early", "Behind it"])
    until(lambda: not Turn.objects.filter(session=session, status__in=Turn.UNFINISHED).exists())
    assert not Turn.objects.filter(failure_code="worker_lost").exists()


def test_a_turn_that_ran_when_the_backup_was_taken_continues(session, backup, rig, model):
    recovery.rebuild_redis_if_restored()
    model.will(ScriptedText("Before the backup"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    backup.take()
    model.give(1)
    ended(turn_id)
    quiet(session)
    talk(session, "Later", "Later still")
    recovery.rebuild_redis_if_restored()
    backup.restore()
    assert status(turn_id) == "running"
    reaper._probe_and_sweep()
    assert judge_old(turn_id) == 1
    turn = ended(turn_id)
    assert (turn.status, turn.attempts) == ("succeeded", 2)
    quiet(session)


def test_nothing_is_left_of_sessions_that_the_backup_does_not_hold(rig, backup):
    recovery.rebuild_redis_if_restored()
    backup.take()
    lost = factories.session()
    talk(lost, "Gone")
    recovery.rebuild_redis_if_restored()
    assert get_redis().exists(redis_keys.event_log_key(str(lost.pk)))
    backup.restore()
    recovery.rebuild_redis_if_restored()
    assert not [key for key in get_redis().keys("*") if str(lost.pk).encode() in key]


def test_messages_queued_when_the_backup_was_taken_are_answered(session, backup, model):
    recovery.rebuild_redis_if_restored()
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "Waits", run_id="waits")
    backup.take()
    model.give(1)
    ended(turn_id)
    until(lambda: said(session) == ["Hello", "Waits"])
    quiet(session)
    talk(session, "Later")
    recovery.rebuild_redis_if_restored()
    backup.restore()
    recovery.rebuild_redis_if_restored()
    assert judge_old(turn_id) == 1
    ended(turn_id)
    until(lambda: said(session) == ["Hello", "Waits"])
    until(lambda: not Turn.objects.filter(session=session, status__in=Turn.UNFINISHED).exists())


def test_limits_are_counted_from_the_restored_rows(session, backup):
    """A copy of a newer row would outrank every publication until the row had caught up with it."""
    owner, day, week = (
        session.owner_id,
        plans.get_day_window(timezone.now()),
        plans.get_week_window(timezone.now()),
    )
    recovery.rebuild_redis_if_restored()
    record_usage(session.owner, 100_000)
    limit_checks.check_limits(owner)
    backup.take()
    for _ in range(3):
        record_usage(session.owner, 400_000)
    recovery.rebuild_redis_if_restored()
    backup.restore()
    recovery.rebuild_redis_if_restored()
    assert redis_counters.read_cached_usage(owner, day, week).daily is None
    limit_checks.check_limits(owner)
    record_usage(session.owner, 50_000)
    copy = redis_counters.read_cached_usage(owner, day, week).daily
    assert copy is not None
    assert copy.used_microdollars == 150_000


def test_messages_that_arrive_while_redis_is_rebuilt_are_all_answered(rig, backup):
    recovery.rebuild_redis_if_restored()
    chats = [factories.session() for _ in range(4)]
    for one in chats:
        talk(one, "One")
    backup.take()
    for one in chats:
        talk(one, "Two")
    recovery.rebuild_redis_if_restored()
    backup.restore()
    together = Barrier(len(chats) + 1)

    def submit(one: Session) -> None:
        together.wait()
        for text in ("Red", "Green", "Blue"):
            admission.submit_message(command(one, text))
        connections.close_all()

    threads = [Thread(target=submit, args=[one]) for one in chats]
    for thread in threads:
        thread.start()
    together.wait()
    assert recovery.rebuild_redis_if_restored() is True
    for thread in threads:
        thread.join()

    def all_answered() -> bool:
        Turn.objects.filter(status="running").update(attempt_started_at="2026-01-01T00:00:00Z")
        reaper.take_over_dead_turns()
        reaper.run_sweep_steps()
        return all(
            sorted(said(one)) == ["Blue", "Green", "One", "Red"]
            and not Turn.objects.filter(session=one, status__in=Turn.UNFINISHED).exists()
            for one in chats
        )

    until(all_answered)
    assert not Turn.objects.filter(status="failed").exists()


# --- never mistaken -----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestNoRestore:
    def test_an_installation_has_one_id_and_counts_its_sweeps(self):
        assert [recovery.rebuild_redis_if_restored() for _ in range(3)] == [False, False, False]
        row = Installation.objects.get()
        copy = heartbeat.read_installation_copy()
        assert copy is not None
        assert (copy.installation_id, copy.epoch, row.epoch) == (str(row.pk), 3, 3)
        assert row.rebuilt_at is None

    def test_a_wiped_redis_is_no_restored_postgres(self):
        recovery.rebuild_redis_if_restored()
        get_redis().flushdb()
        assert recovery.rebuild_redis_if_restored() is False
        assert recovery.rebuild_redis_if_restored() is False

    def test_a_redis_that_lost_its_last_seconds_is_no_restored_postgres(self):
        recovery.rebuild_redis_if_restored()
        copy = heartbeat.read_installation_copy()
        assert copy is not None
        for _ in range(5):
            recovery.rebuild_redis_if_restored()
        heartbeat.write_installation_copy(copy)
        assert recovery.rebuild_redis_if_restored() is False

    def test_a_sweep_that_dies_between_the_two_servers_leaves_redis_behind_not_ahead(self, monkeypatch):
        recovery.rebuild_redis_if_restored()

        def die(copy: heartbeat.InstallationCopy) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(heartbeat, "write_installation_copy", die)
            with pytest.raises(KeyboardInterrupt):
                recovery.rebuild_redis_if_restored()
        assert recovery.rebuild_redis_if_restored() is False

    def test_the_epoch_is_on_disk_before_redis_hears_of_it(self):
        """The server of the tests does not wait for its disk by default."""
        recovery.rebuild_redis_if_restored()
        database = database_restores.compare_with_redis()[1]
        with connection.cursor() as cursor:
            cursor.execute("show synchronous_commit")
            assert cursor.fetchone() == ("off",)
            database_restores.count_epoch(database)
        with psycopg.connect(build_connection_string()) as server, server.transaction():
            server.execute(database_restores._COUNT_EPOCH)
            assert server.execute("show synchronous_commit").fetchone() == ("on",)

    def test_another_history_of_the_database_is_a_restore(self):
        """A standby that was promoted may have lost less than one epoch."""
        recovery.rebuild_redis_if_restored()
        copy = heartbeat.read_installation_copy()
        assert copy is not None
        heartbeat.write_installation_copy(replace(copy, incarnation="1/00000009"))
        assert recovery.rebuild_redis_if_restored() is True

    def test_a_server_that_does_not_tell_its_timeline_is_watched_by_the_epoch_alone(self, monkeypatch):
        monkeypatch.setattr(database_restores, "_TIMELINE", "pg_no_such_function()")
        assert recovery.rebuild_redis_if_restored() is False
        assert recovery.rebuild_redis_if_restored() is False
        Installation.objects.update(epoch=0)
        assert recovery.rebuild_redis_if_restored() is True


# --- two installations on the same keys ---------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestStrangers:
    def stranger(self, epoch: int) -> heartbeat.InstallationCopy:
        return heartbeat.InstallationCopy(installation_id=self.id, epoch=epoch, incarnation="1/00000001")

    def test_an_installation_that_lives_is_left_alone(self, caplog):
        self.id = str(uuid4())
        recovery.rebuild_redis_if_restored()
        lease.claim_or_queue("theirs", turn_id="t", token="t", member=None, order=0.0)
        for epoch in range(5):
            heartbeat.write_installation_copy(self.stranger(epoch))
            _let_time_pass()
            assert recovery.rebuild_redis_if_restored() is False
        assert lease.is_session_held("theirs")
        assert "redis_shared" in caplog.text
        assert database_restores.is_copy_foreign()

    def test_what_another_database_left_behind_is_rebuilt(self):
        self.id = str(uuid4())
        heartbeat.write_installation_copy(self.stranger(5))
        lease.claim_or_queue("theirs", turn_id="t", token="t", member=None, order=0.0)
        assert recovery.rebuild_redis_if_restored() is False
        _let_time_pass()
        assert recovery.rebuild_redis_if_restored() is True
        assert not lease.is_session_held("theirs")
        assert not database_restores.is_copy_foreign()


def _let_time_pass() -> None:
    """As if the copy that was seen last had been seen a minute ago."""
    if database_restores._state.foreign_copy is not None:
        copy, at = database_restores._state.foreign_copy
        database_restores._state.foreign_copy = (copy, at - 60)


# --- a crash that loses the last second ---------------------------------------------------------------


@pytest.mark.slow
def test_a_crash_that_loses_the_last_commits_never_leaves_postgres_behind_redis(tmp_path):
    """A real server that acknowledges before it writes is killed between two sweeps, again and again."""
    tmp_path.chmod(0o755)
    server = EmbeddedPostgres(tmp_path / "postgres", durable=True)
    server.launch()
    server.wait_ready()
    try:
        with psycopg.connect(server.url, autocommit=True) as first:
            first.execute("alter system set synchronous_commit = off")
            first.execute("alter system set wal_writer_delay = '10s'")
            first.execute("select pg_reload_conf()")
            first.execute("create table copilot_installation (epoch bigint)")
            first.execute("insert into copilot_installation values (0)")
            first.execute("create table chatter (number int)")
        known = lost = 0
        for number in range(5):
            with psycopg.connect(server.url, autocommit=True) as client:
                found = client.execute("select epoch from copilot_installation").fetchone()
                assert found is not None
                assert found[0] >= known
                rows = client.execute("select count(*) from chatter").fetchone()
                assert rows is not None
                lost += rows[0] < 2 * number
                client.execute("insert into chatter values (1)")
                for _ in range(3):
                    counted = client.execute(database_restores._COUNT_EPOCH).fetchone()
                    assert counted is not None
                    known = counted[0]  # as Redis would
                client.execute("insert into chatter values (2)")
                assert server.process is not None
                server.process.kill()
            server.process.wait(30)
            server.launch()
            server.wait_ready()
        assert lost, "nothing was lost, so nothing was tried"
    finally:
        server.stop()
