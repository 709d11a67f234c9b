"""Detect that Postgres was restored from a backup while Redis still holds keys of the lost rows.

Postgres and Redis both hold the installation's id and an epoch that every sweep increments: in Postgres first, with a
commit that waits for the disk, then in Redis. So the copy in Redis is never ahead, whatever crashes, unless rows that
had been stored safely are gone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple
from uuid import UUID

import structlog
from django.conf import settings
from django.db import NotSupportedError, ProgrammingError, connection
from django.db.models.functions import Now

from config.core.db import fetch_one
from copilot.models import Installation
from copilot.worker import heartbeat

log = structlog.get_logger(__name__)

RestoreVerdict = Literal["same", "unknown", "restored", "other", "shared"]

# The name of the WAL file contains the timeline, which changes with every promotion and point-in-time recovery. The epoch
# alone is not enough: a promoted standby that lagged may have lost less than one epoch.
_SELECT_INSTALLATION = """
SELECT i.id, i.epoch, (SELECT oid FROM pg_database WHERE datname = current_database())::text AS database_oid,
       {timeline} AS timeline
FROM copilot_installation i
"""
_TIMELINE = "substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8)"
# Wait for the disk even where the server or the role does not by default.
_COUNT_EPOCH = """
UPDATE copilot_installation SET epoch = epoch + 1
WHERE set_config('synchronous_commit', 'on', true) = 'on' RETURNING epoch
"""


@dataclass
class RestoreCheckState:
    """State that one sweep of a process keeps for the next."""

    has_timeline: bool = True
    # Another installation's copy, and when it last changed.
    foreign_copy: tuple[heartbeat.InstallationCopy, float] | None = None


_state = RestoreCheckState()


@dataclass(frozen=True, kw_only=True)
class DatabaseIdentity:
    installation_id: UUID
    epoch: int
    incarnation: str  # changes with another database or another timeline of it


def compare_with_redis() -> tuple[RestoreVerdict, DatabaseIdentity, heartbeat.InstallationCopy | None]:
    """Compare the installation's row with its copy in Redis.

    same      nothing was lost
    unknown   Redis has no copy: it is new, or lost everything
    restored  Postgres is older than Redis, or a standby with another timeline was promoted
    other     the copy belongs to an installation that no longer runs: the database was replaced
    shared    the copy belongs to another installation that is running
    """
    copy = heartbeat.read_installation_copy()
    database = _read_database_identity()
    if copy is None:
        return "unknown", database, None
    if copy.installation_id != str(database.installation_id):
        return _judge_foreign_copy(copy), database, copy
    _state.foreign_copy = None
    if copy.epoch > database.epoch or copy.incarnation != database.incarnation:
        return "restored", database, copy
    return "same", database, copy


def count_epoch(database: DatabaseIdentity) -> None:
    """Increment the epoch, in Postgres before Redis."""
    with connection.cursor() as cursor:
        cursor.execute(_COUNT_EPOCH)
        (epoch,) = cursor.fetchone()
    heartbeat.write_installation_copy(
        heartbeat.InstallationCopy(
            installation_id=str(database.installation_id), epoch=epoch, incarnation=database.incarnation
        )
    )


def record_rebuild() -> None:
    _state.foreign_copy = None
    Installation.objects.update(rebuilt_at=Now())


def is_copy_foreign() -> bool:
    copy = heartbeat.read_installation_copy()
    ours = Installation.objects.values_list("pk", flat=True).first()
    return copy is not None and ours is not None and copy.installation_id != str(ours)


def _judge_foreign_copy(copy: heartbeat.InstallationCopy) -> RestoreVerdict:
    """Tell a running installation, whose copy keeps changing, from one whose database is gone."""
    now = time.monotonic()
    if _state.foreign_copy is None or _state.foreign_copy[0] != copy:
        _state.foreign_copy = (copy, now)
    unchanged_seconds = now - _state.foreign_copy[1]
    return "other" if unchanged_seconds > 3 * settings.DIAG_SWEEP_SECONDS else "shared"


def _read_database_identity() -> DatabaseIdentity:
    found = _read_row()
    if found is None:
        Installation.objects.bulk_create([Installation()], ignore_conflicts=True)
        found = _read_row()
    assert found is not None
    return DatabaseIdentity(
        installation_id=found.id, epoch=found.epoch, incarnation=f"{found.database_oid}/{found.timeline}"
    )


class _InstallationRow(NamedTuple):
    id: UUID
    epoch: int
    database_oid: str
    timeline: str


def _read_row() -> _InstallationRow | None:
    if _state.has_timeline:
        try:
            return fetch_one(_InstallationRow, _SELECT_INSTALLATION.format(timeline=_TIMELINE))
        except (NotSupportedError, ProgrammingError):  # some hosted servers hide it
            log.warning("postgres_timeline_unavailable")  # restores are detected by the epoch alone
            _state.has_timeline = False
    return fetch_one(_InstallationRow, _SELECT_INSTALLATION.format(timeline="'-'"))
