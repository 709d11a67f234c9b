"""Probe Postgres, Redis, the broker, the workers, the storage and the mail server."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import psycopg
from celery import current_app
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.mail import get_connection
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.utils.module_loading import import_string
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import class_row

from config.core import demo_login
from config.core.db import build_connection_string, has_pooler
from config.core.errors import ServiceUnavailable
from copilot.worker import health, recovery
from copilot.worker.health import get_redis_health, get_sweep_age_seconds, list_workers
from diagnostics.broker_queues import QUEUES, UNREACHABLE_ERRORS, read_queue_depths
from diagnostics.probes.runner import SLOW_TIMEOUT_SECONDS, Probe, ProbeFinding, describe_failure, redact_url
from diagnostics.work_ages import (
    MAX_WAITING_TASKS,
    QUEUE_SILENT_SECONDS,
    SCHEDULER_SILENT_SECONDS,
    WORKER_START_SECONDS,
    read_work_ages,
)

MAX_SKEW_SECONDS = 2.0
CONNECT_TIMEOUT_SECONDS = 2  # libpq's minimum
STATEMENT_TIMEOUT_SECONDS = 1
MAX_TRANSACTION_AGE_SECONDS = 3600
HEARTBEAT_LIFE_SECONDS = 6.0
ANSWER_TIMEOUT_SECONDS = 2.0
REAPER_SILENT_SECONDS = 20.0  # ten sweeps; a long sweep takes the time of several


# --- Postgres ---


class _ServerState(NamedTuple):
    version: str
    connections: int
    max_connections: int
    oldest_transaction_seconds: int


def probe_postgres() -> ProbeFinding:
    try:
        database = _connect()
    except psycopg.OperationalError as problem:
        return _explain_postgres_refusal(str(problem))
    with database:
        cursor = database.cursor(row_factory=class_row(_ServerState))
        server = cursor.execute(
            """
            select current_setting('server_version') as version,
                   (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
                   current_setting('max_connections')::int as max_connections,
                   coalesce((select extract(epoch from now() - min(xact_start)) from pg_stat_activity
                             where backend_type = 'client backend'), 0)::int as oldest_transaction_seconds
            """
        ).fetchone()
    assert server is not None
    detail = (
        f"Postgres {server.version.split(maxsplit=1)[0]}, "
        f"{server.connections} of {server.max_connections} connections, "
        f"oldest transaction {server.oldest_transaction_seconds} s"
    )
    if server.connections > 0.9 * server.max_connections:
        return ProbeFinding(status="warn", detail=detail, next_step="Raise max_connections or use a pooler.")
    if server.oldest_transaction_seconds > MAX_TRANSACTION_AGE_SECONDS:
        return ProbeFinding(
            status="warn", detail=detail, next_step="Find it in pg_stat_activity: it blocks vacuum."
        )
    return ProbeFinding(detail=detail)


# Patterns of error messages, what they mean and what to do; the first match counts.
_POSTGRES_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        r"password authentication failed",
        "Postgres at {where} refuses the password of user {user}",
        "Correct the password in DATABASE_URL.",
    ),
    (
        r"no password supplied",
        "Postgres at {where} requires a password, and DATABASE_URL has none",
        "Put the password into DATABASE_URL.",
    ),
    (
        r'role "[^"]*" does not exist',
        "Postgres at {where} has no user {user}",
        "Correct the user in DATABASE_URL, or create the role.",
    ),
    (
        r'database "[^"]*" does not exist',
        "Postgres at {where} has no database {dbname}",
        "Correct the name in DATABASE_URL, or create it with `createdb`.",
    ),
    (
        r"no pg_hba.conf entry",
        "Postgres at {where} does not let this host in",
        "Add a line for this host to pg_hba.conf.",
    ),
    (
        r"server does not support SSL|SSL error|certificate|sslrootcert|root\.crt",
        "Postgres at {where} cannot be reached by TLS as DATABASE_URL asks: {said}",
        "Correct sslmode and sslrootcert in DATABASE_URL, or the certificate of the server.",
    ),
    (
        r"too many clients|remaining connection slots",
        "Postgres at {where} has no connection left",
        "Raise max_connections or use a pooler.",
    ),
    (
        r"starting up|shutting down|in recovery mode",
        "Postgres at {where} is starting or stopping",
        "Wait a moment and try again.",
    ),
    (
        r"unsupported startup parameter",
        "{where} is a pooler, not Postgres itself",
        "Set DATABASE_DIRECT_URL to the address of Postgres.",
    ),
    (
        r"Connection refused",
        "nothing listens at {where}",
        "Start Postgres, or correct host and port in DATABASE_URL.",
    ),
    (
        r"could not translate host name|Name or service not known|failed to resolve|getaddrinfo",
        "the host name of {where} does not resolve",
        "Correct the host in DATABASE_URL.",
    ),
    (
        r"timeout|timed out|No route to host|unreachable",
        "nothing answers at {where}",
        "Check host and port in DATABASE_URL, the network and the firewall.",
    ),
)


def _explain_postgres_refusal(message: str) -> ProbeFinding:
    """Say what is wrong with the connection, so that nobody looks for a dead server when a password is wrong."""
    params = conninfo_to_dict(build_connection_string())
    where = f"{params.get('host', 'the local socket')}:{params.get('port', 5432)}"
    plain = " ".join(message.split())
    for pattern, what, next_step in _POSTGRES_REFUSALS:
        if re.search(pattern, plain, re.IGNORECASE):
            meaning = what.format(
                where=where,
                user=params.get("user", ""),
                dbname=params.get("dbname", ""),
                said=plain.rpartition("failed: ")[2][:200],
            )
            return ProbeFinding(status="fail", detail=meaning, next_step=next_step)
    return ProbeFinding(
        status="fail",
        detail=f"Postgres at {where} cannot be used: {plain.rpartition('failed: ')[2][:200].rstrip('.')}",
        next_step="Check DATABASE_URL and the server's log.",
    )


def probe_postgres_writes() -> ProbeFinding:
    """Check for a standby or a read-only server, which answers everything but stores nothing."""
    with _connect() as database:
        row = database.execute(
            "select pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'"
        ).fetchone()
    assert row is not None
    is_standby, is_read_only = row
    if not is_standby and not is_read_only:
        return ProbeFinding(detail="accepts writes")
    return ProbeFinding(
        status="fail",
        detail="a standby, which accepts no writes"
        if is_standby
        else "set to read only, so it accepts no writes",
        next_step="Point DATABASE_URL at the primary, or set default_transaction_read_only off.",
    )


def probe_pooler() -> ProbeFinding:
    """Check that a pooler answers, and that one in transaction mode is not mistaken for Postgres itself."""
    address = build_connection_string(connect_timeout_seconds=CONNECT_TIMEOUT_SECONDS, past_pooler=False)
    try:
        with psycopg.connect(address, autocommit=True) as client, psycopg.connect(address) as other:
            server_pid = _get_backend_pid(client)
            is_pooled = server_pid != client.info.backend_pid  # a pooler makes up numbers for its clients
            # In session mode the first client would keep its server connection, and the other get another one.
            shares_connections = is_pooled and server_pid == _get_backend_pid(other)
    except psycopg.OperationalError as problem:
        return ProbeFinding(
            status="fail",
            detail=f"DATABASE_URL cannot be used: {' '.join(str(problem).split())[-200:]}",
            next_step="Check DATABASE_URL and the pooler's log.",
        )
    if has_pooler():
        return ProbeFinding(detail="answers; locks go past it")
    if not is_pooled:
        return ProbeFinding(status="skip", detail="none is used")
    if shares_connections:
        return ProbeFinding(
            status="fail",
            detail="DATABASE_URL leads to a pooler in transaction mode, which loses the locks of workers",
            next_step="Set DATABASE_DIRECT_URL to the address of Postgres itself.",
        )
    return ProbeFinding(detail="in session mode")


def _get_backend_pid(database: psycopg.Connection[tuple[object, ...]]) -> object:
    row = database.execute("select pg_backend_pid()").fetchone()
    assert row is not None
    return row[0]


def probe_migrations() -> ProbeFinding:
    """Compare the migrations of this release with those applied to the database."""
    try:
        with _connect() as database:
            there = database.execute("select to_regclass('django_migrations') is not null").fetchone()
            rows = (
                database.execute("select app, name from django_migrations").fetchall()
                if there and there[0]
                else []
            )
    except psycopg.OperationalError:
        return ProbeFinding(status="skip", detail="Postgres did not answer")
    missing = _list_migrations() - {(str(app), str(name)) for app, name in rows}
    if missing:
        app, name = min(missing)
        return ProbeFinding(
            status="fail",
            detail=f"{len(missing)} not applied, first {app}.{name}",
            next_step="Run `python manage.py migrate`.",
        )
    return ProbeFinding(detail="all applied")


@functools.cache
def _list_migrations() -> frozenset[tuple[str, str]]:
    loader = MigrationLoader(None)
    replaced = {key for migration in loader.disk_migrations.values() for key in migration.replaces}
    return frozenset(set(loader.disk_migrations) - replaced)


def _connect() -> psycopg.Connection[tuple[object, ...]]:
    """Open a separate connection: a probe must not wait for the pool it reports on."""
    limits = f"-c statement_timeout={STATEMENT_TIMEOUT_SECONDS * 1000}"
    params = build_connection_string(connect_timeout_seconds=CONNECT_TIMEOUT_SECONDS, server_options=limits)
    return psycopg.connect(params, autocommit=True)


# --- Redis, broker, workers ---


def probe_redis() -> ProbeFinding:
    try:
        health = get_redis_health()
    except ServiceUnavailable as problem:
        return _explain_redis_refusal(problem.__cause__)
    kept = "append-only" if health.append_only else "snapshots only"
    detail = f"version {health.version}, {health.role}, {health.used_bytes // 2**20} MB used, {kept}"
    if health.is_cluster:
        return ProbeFinding(
            status="fail",
            detail=f"{detail}, in cluster mode",
            next_step="Use a single Redis server, with a replica if you like: Redis Cluster is not supported.",
        )
    if health.eviction_policy != "noeviction":
        return ProbeFinding(
            status="fail",
            detail=f"{detail}, eviction policy {health.eviction_policy}",
            next_step="Set maxmemory-policy to noeviction: evicted leases and queues are lost.",
        )
    if health.role != "master":
        return ProbeFinding(status="fail", detail=detail, next_step="REDIS_URL must name the primary.")
    if health.limit_bytes and health.used_bytes > 0.9 * health.limit_bytes:
        return ProbeFinding(status="warn", detail=f"{detail}, nearly full", next_step="Raise maxmemory.")
    if not health.saving:
        return ProbeFinding(
            status="warn",
            detail=f"{detail}, the last save failed",
            next_step="Check whether its disk is full.",
        )
    return ProbeFinding(detail=detail)


_REDIS_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        r"WRONGPASS|invalid (username|password)|AUTH failed",
        "Redis at {where} refuses the password",
        "Correct the password in REDIS_URL.",
    ),
    (
        r"NOAUTH|Authentication required",
        "Redis at {where} requires a password, and REDIS_URL has none",
        "Put the password into REDIS_URL.",
    ),
    (
        r"NOPERM|no permissions",
        "Redis at {where} does not grant this user the permissions it needs",
        "Allow all commands, all channels and the keys of REDIS_KEY_PREFIX.",
    ),
    (
        r"DB index|SELECT",
        "Redis has no database with the number at the end of {where}",
        "Correct the number at the end of REDIS_URL.",
    ),
    (r"refused", "nothing listens at {where}", "Start Redis, or correct host and port in REDIS_URL."),
    (
        r"Name or service|resolve|getaddrinfo|Error -[235]\b",
        "the host name of {where} does not resolve",
        "Correct the host in REDIS_URL.",
    ),
    (r"LOADING", "Redis at {where} is loading its data", "Wait a moment and try again."),
    (
        r"SSL|certificate",
        "Redis at {where} cannot be reached by TLS",
        "Correct rediss:// in REDIS_URL, or the server's certificate.",
    ),
    (
        r"imeout|timed out",
        "nothing answers at {where}",
        "Check host and port in REDIS_URL, the network and the firewall.",
    ),
)


def _explain_redis_refusal(problem: BaseException | None) -> ProbeFinding:
    where = redact_url(settings.REDIS_URL)
    for pattern, what, next_step in _REDIS_REFUSALS:
        if re.search(pattern, str(problem)):
            return ProbeFinding(status="fail", detail=what.format(where=where), next_step=next_step)
    return ProbeFinding(
        status="fail",
        detail=f"Redis at {where} cannot be used: {type(problem).__name__}",
        next_step="Check REDIS_URL and that the server is up.",
    )


def probe_redis_keys() -> ProbeFinding:
    """Check the key prefix: two installations with one prefix would share leases and limits."""
    try:
        shared = recovery.has_shared_redis()
    finally:
        connection.close()  # the connection of this thread
    if shared:
        return ProbeFinding(
            status="fail",
            detail=f"another installation uses the key prefix {settings.REDIS_KEY_PREFIX} at {redact_url(settings.REDIS_URL)}",
            next_step="Give each installation its own REDIS_KEY_PREFIX, and restart it.",
        )
    return ProbeFinding(detail=f"only this installation uses the prefix {settings.REDIS_KEY_PREFIX}")


def probe_demo_user() -> ProbeFinding:
    try:
        is_open = demo_login.is_demo_login_open()
    finally:
        connection.close()  # the connection of this thread
    if not is_open:
        return ProbeFinding(detail="the demo login is closed")
    if settings.DEVELOPMENT:
        return ProbeFinding(detail="open (fine in development)")
    return ProbeFinding(
        status="fail",
        detail="the superuser demo still has its public password, so anybody can sign in as administrator",
        next_step="Run `python manage.py changepassword demo`, or delete the user.",
    )


def probe_broker() -> ProbeFinding:
    try:
        found = read_queue_depths()
    except UNREACHABLE_ERRORS as problem:
        return ProbeFinding(
            status="fail",
            detail=f"{type(problem).__name__} at {redact_url(settings.CELERY_BROKER_URL)}",
            next_step="Check CELERY_BROKER_URL and that the server is up.",
        )
    except (KeyError, ImportError):
        return ProbeFinding(
            status="fail",
            detail=f"Celery does not support the broker {redact_url(settings.CELERY_BROKER_URL)}",
            next_step="Set CELERY_BROKER_URL to an address such as redis://host:6379/0, or leave it out.",
        )
    detail = ", ".join(f"{queue} {depth}" for queue, depth in found.by_queue.items())
    late = [queue for queue, depth in found.by_queue.items() if depth > MAX_WAITING_TASKS[queue]]
    if late:
        return ProbeFinding(
            status="warn",
            detail=detail,
            next_step=f"Tasks are waiting in {', '.join(late)}: check that each queue has enough live workers.",
        )
    return ProbeFinding(detail=detail)


def probe_channel_layer() -> ProbeFinding:
    """Send a marker through the channel layer, if one is configured."""
    from channels.layers import get_channel_layer

    if not getattr(settings, "CHANNEL_LAYERS", None):
        return ProbeFinding(status="skip", detail="none is configured, and none is needed")

    async def send_and_receive() -> bool:
        layer = get_channel_layer()
        name = await layer.new_channel("doctor")
        await layer.send(name, {"type": "doctor.marker"})
        return bool((await layer.receive(name))["type"] == "doctor.marker")

    if not asyncio.run(asyncio.wait_for(send_and_receive(), SLOW_TIMEOUT_SECONDS)):
        return ProbeFinding(
            status="fail", detail="a marker came back changed", next_step="Check CHANNEL_LAYERS."
        )
    return ProbeFinding(detail="a marker was sent and came back")


def probe_workers() -> ProbeFinding:
    """Check that each queue is served, and that all workers run one version."""
    try:
        beating = [worker for worker in list_workers() if worker.silent_seconds <= HEARTBEAT_LIFE_SECONDS]
    finally:
        connection.close()  # the connection of this thread
    deaf = [worker.worker for worker in beating if not worker.queues and not worker.draining]
    deaf = [worker for worker in deaf if worker not in _find_starting_workers(beating)]
    missing = [queue for queue in QUEUES if queue not in _find_served_queues(beating)]
    if missing:
        return ProbeFinding(
            status="fail",
            detail=f"no worker serves {', '.join(missing)}",
            next_step="Start or restart a Celery worker for each queue (see deploy/systemd).",
        )
    if deaf:
        return ProbeFinding(
            status="fail",
            detail=f"{len(deaf)} workers receive no turns, first {deaf[0]}",
            next_step="They exit within a minute; if they stay, restart them.",
        )
    versions = sorted({worker.version for worker in beating}) or ["unknown"]
    if len(versions) > 1:
        return ProbeFinding(
            status="warn", detail=f"versions differ: {', '.join(versions)}", next_step="Finish the deploy."
        )
    return ProbeFinding(detail=f"every queue is served, version {versions[0]}")


def _find_starting_workers(beating: Sequence[health.WorkerStatus]) -> set[str]:
    return {worker.worker for worker in beating if (worker.uptime_seconds or 0) < WORKER_START_SECONDS}


def _find_served_queues(beating: Sequence[health.WorkerStatus]) -> set[str]:
    """Find served queues: `turns` by heartbeats of workers that receive turns, steady queues by finished work.

    An answer to Celery counts only for the others, because workers that receive no messages answer too.
    """
    served = {queue for worker in beating for queue in worker.queues}
    done = read_work_ages().queue_seconds
    served |= {queue for queue, silent in done.items() if silent <= QUEUE_SILENT_SECONDS[queue]}
    unproven = set(QUEUES) - served - {"turns"} - set(done)
    return served | (_inspect_queues() & unproven if unproven else set())


def _inspect_queues() -> set[str]:
    """Ask all Celery workers at once which queues they consume."""
    answers = current_app.control.inspect(timeout=ANSWER_TIMEOUT_SECONDS).active_queues() or {}
    return {str(queue["name"]) for queues in answers.values() for queue in queues}


def probe_reaper() -> ProbeFinding:
    """Check the reaper, a loop in every worker of `maintenance` and `turns`, one of which sweeps."""
    silent = get_sweep_age_seconds()
    if silent is not None and silent <= REAPER_SILENT_SECONDS:
        return ProbeFinding(detail=f"swept {silent:.0f} s ago")
    since = "never swept" if silent is None else f"last swept {silent:.0f} s ago"
    return ProbeFinding(
        status="fail",
        detail=f"reaper_silent: {since}; turns of dead workers are not taken over",
        next_step="Start a worker of the queue maintenance or turns (see deploy/systemd).",
    )


def probe_scheduler() -> ProbeFinding:
    """Judge the scheduler by the last job that it gave to the broker."""
    try:
        silent = read_work_ages().scheduler_seconds
    finally:
        connection.close()  # the connection of this thread
    if silent is not None and silent <= SCHEDULER_SILENT_SECONDS:
        return ProbeFinding(detail=f"sent a job {silent:.0f} s ago")
    since = "it has sent nothing yet" if silent is None else f"it last sent a job {silent:.0f} s ago"
    return ProbeFinding(
        status="fail",
        detail=f"scheduler_silent: {since}; schedules, deliveries, mails and clean-ups do not run",
        next_step="Start `celery beat` (see deploy/systemd).",
    )


def probe_clock() -> ProbeFinding:
    with _connect() as database:
        row = database.execute("select extract(epoch from clock_timestamp())::float").fetchone()
    assert row is not None
    skew = max(abs(time.time() - float(str(row[0]))), abs(time.time() - get_redis_health().time))
    if skew > MAX_SKEW_SECONDS:
        return ProbeFinding(
            status="warn", detail=f"clocks differ by {skew:.1f} s", next_step="Run NTP on every host."
        )
    return ProbeFinding(detail=f"within {skew:.1f} s")


# --- Storage and mail ---


def probe_storage() -> ProbeFinding:
    """Write, read and remove one byte."""
    workspace = storages["workspace"]
    try:
        name = workspace.save("doctor/marker", ContentFile(b"1"))
    except OSError as problem:
        where = getattr(workspace, "location", "the bucket")
        return ProbeFinding(
            status="fail",
            detail=f"files cannot be stored in {where}: {describe_failure(problem)}",
            next_step="Check WORKSPACE_ROOT or the WORKSPACE_S3_* variables, its owner and the free space.",
        )
    try:
        with workspace.open(name) as marker:
            intact = marker.read() == b"1"
    finally:
        workspace.delete(name)
    if not intact:
        return ProbeFinding(
            status="fail", detail="a written byte reads differently", next_step="Check the storage."
        )
    return ProbeFinding(detail="written, read and removed")


def probe_mail() -> ProbeFinding:
    try:
        import_string(settings.EMAIL_BACKEND)
    except ImportError:
        return ProbeFinding(
            status="fail",
            detail=f"EMAIL_BACKEND names {settings.EMAIL_BACKEND}, which does not exist",
            next_step="Use django.core.mail.backends.smtp.EmailBackend.",
        )
    if "smtp" not in settings.EMAIL_BACKEND:
        return ProbeFinding(status="skip", detail="no mail server is configured")
    mailer = get_connection(fail_silently=False, timeout=SLOW_TIMEOUT_SECONDS)
    try:
        mailer.open()
        mailer.close()
    except OSError as problem:  # the mail library raises subclasses of it
        return ProbeFinding(
            status="fail",
            detail=f"{type(problem).__name__} at {settings.EMAIL_HOST}:{settings.EMAIL_PORT}",
            next_step="Check the EMAIL_* variables and that the server is up.",
        )
    return ProbeFinding(detail="connected")


READINESS_PROBES: Mapping[str, Probe] = {
    "postgres": probe_postgres,
    **({"postgres.pooler": probe_pooler} if has_pooler() else {}),
    "migrations": probe_migrations,
    "redis": probe_redis,
}
# The probes that the dashboard shows.
ESSENTIAL_PROBES: Mapping[str, Probe] = {
    "postgres": probe_postgres,
    "postgres.writes": probe_postgres_writes,
    "migrations": probe_migrations,
    "redis": probe_redis,
    "broker": probe_broker,
    "clock": probe_clock,
}
