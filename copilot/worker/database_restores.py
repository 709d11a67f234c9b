"""Notice that Postgres was restored from a backup while Redis kept what the lost rows had told it.

Postgres and Redis both hold the installation's id and an epoch that the sweep counts up: in Postgres first, by a commit
that waits for the disk, then in Redis. So the copy in Redis is never ahead, whatever crashes, unless rows that had been
safely stored are gone.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.conf import settings
from django.db import NotSupportedError, ProgrammingError, connection
from django.db.models.functions import Now

from copilot.models import Installation
from copilot.worker import heartbeat

log = logging.getLogger(__name__)

RestoreVerdict = Literal["same", "unknown", "restored", "other", "shared"]

# `current_wal` names the timeline, which changes with every promotion and point-in-time recovery: a standby that lagged
# may have lost less than one epoch.
_SELECT_INSTALLATION = """
SELECT i.id, i.epoch, (SELECT oid FROM pg_database WHERE datname = current_database())::text, {timeline}
FROM copilot_installation i
"""
_TIMELINE = "substring(pg_walfile_name(pg_current_wal_lsn()) FROM 1 FOR 8)"
# Waits for the disk even where the server or the role does not by default.
_COUNT_EPOCH = """
UPDATE copilot_installation SET epoch = epoch + 1
WHERE set_config('synchronous_commit', 'on', true) = 'on' RETURNING epoch
"""


@dataclass
class RestoreCheckState:
    """What one look leaves for the next, in the process that sweeps."""

    tells_timeline: bool = True
    foreign_copy: tuple[heartbeat.InstallationCopy, float] | None = (
        None  # another installation's copy, and when it last moved
    )


_state = RestoreCheckState()


@dataclass(frozen=True, kw_only=True)
class DatabaseIdentity:
    """What Postgres says of itself."""

    installation_id: UUID
    epoch: int
    incarnation: str  # changes when another database, or another history of it, answers


def compare_with_redis() -> tuple[RestoreVerdict, DatabaseIdentity, heartbeat.InstallationCopy | None]:
    """Compare the row with Redis's copy of it.

    same      nothing was lost
    unknown   Redis has no copy: it is new, or lost everything
    restored  Postgres is older than Redis, or another history of it was promoted
    other     the copy is of an installation that no longer lives: another database was put in place
    shared    the copy is of another installation that lives
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
    """Count one sweep, in Postgres before Redis."""
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
    """Tell whether Redis holds another installation's copy."""
    copy = heartbeat.read_installation_copy()
    ours = Installation.objects.values_list("pk", flat=True).first()
    return copy is not None and ours is not None and copy.installation_id != str(ours)


def _judge_foreign_copy(copy: heartbeat.InstallationCopy) -> RestoreVerdict:
    """A stranger's copy that moves belongs to somebody who lives; one that stands still was left by a lost database."""
    now = time.monotonic()
    if _state.foreign_copy is None or _state.foreign_copy[0] != copy:
        _state.foreign_copy = (copy, now)
    still_seconds = now - _state.foreign_copy[1]
    return "other" if still_seconds > 3 * settings.DIAG_SWEEP_SECONDS else "shared"


def _read_database_identity() -> DatabaseIdentity:
    found = _read_row()
    if found is None:
        Installation.objects.bulk_create([Installation()], ignore_conflicts=True)
        found = _read_row()
    assert found is not None
    identifier, epoch, oid, timeline = found
    return DatabaseIdentity(installation_id=identifier, epoch=epoch, incarnation=f"{oid}/{timeline}")


def _read_row() -> tuple[UUID, int, str, str] | None:
    with connection.cursor() as cursor:
        if _state.tells_timeline:
            try:
                cursor.execute(_SELECT_INSTALLATION.format(timeline=_TIMELINE))
            except (NotSupportedError, ProgrammingError):  # some hosted servers do not tell
                log.warning(
                    "this Postgres does not tell its timeline; restores are noticed by the epoch alone"
                )
                _state.tells_timeline = False
        if not _state.tells_timeline:
            cursor.execute(_SELECT_INSTALLATION.format(timeline="'-'"))
        row: tuple[UUID, int, str, str] | None = cursor.fetchone()
    return row
