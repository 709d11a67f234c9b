"""Count and limit the storage that users take, and reconcile rows with stored objects daily."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

import structlog
from django.core.cache import caches
from django.db.models import F, QuerySet
from django.utils import timezone

from billing.selectors import plan_status
from config.core.db import fetch_all
from config.core.errors import Conflict, PayloadTooLarge
from copilot import metrics
from copilot.files import storage
from copilot.models import ExportJob, StorageUse, WorkspaceFile

log = structlog.get_logger(__name__)


MB = 2**20
GB = 2**30


@dataclass(frozen=True, kw_only=True)
class StorageQuota:
    file_bytes: int
    total_bytes: int
    files: int


PLAN_QUOTAS = {
    "FREE": StorageQuota(file_bytes=50 * MB, total_bytes=500 * MB, files=1_000),
    "PRO": StorageQuota(file_bytes=100 * MB, total_bytes=10 * GB, files=10_000),
    "BUSINESS": StorageQuota(file_bytes=500 * MB, total_bytes=50 * GB, files=50_000),
    "ENTERPRISE": StorageQuota(file_bytes=GB, total_bytes=500 * GB, files=200_000),
}


@dataclass(frozen=True, kw_only=True)
class StorageUsage:
    used_bytes: int
    used_files: int
    quota: StorageQuota


def get_quota(owner_id: int) -> StorageQuota:
    return PLAN_QUOTAS[plan_status.get_plan_terms(owner_id).tier]


def get_usage(owner_id: int) -> StorageUsage:
    row = StorageUse.objects.filter(owner_id=owner_id).first()
    return StorageUsage(
        used_bytes=row.used_bytes if row else 0,
        used_files=row.used_files if row else 0,
        quota=get_quota(owner_id),
    )


class UsageFigures(TypedDict):
    """The usage figures in a quota error."""

    used_bytes: int
    quota_bytes: int
    used_files: int
    quota_files: int


def describe_usage(use: StorageUsage) -> UsageFigures:
    return {
        "used_bytes": use.used_bytes,
        "quota_bytes": use.quota.total_bytes,
        "used_files": use.used_files,
        "quota_files": use.quota.files,
    }


def check_file_size(quota: StorageQuota, size: int) -> None:
    if size > quota.file_bytes:
        raise PayloadTooLarge(
            f"Files can be up to {quota.file_bytes // MB} MB (this one is {size / MB:.1f} MB).",
            code="file_too_large",
            limit_bytes=quota.file_bytes,
            size_bytes=size,
        )


def reserve_space(owner_id: int, quota: StorageQuota, size: int) -> None:
    """Reserve space for one file atomically, or raise Conflict with the usage figures."""
    if _try_reserve(owner_id, quota, size):
        return
    StorageUse.objects.bulk_create([StorageUse(owner_id=owner_id)], ignore_conflicts=True)
    if not _try_reserve(owner_id, quota, size):
        row = StorageUse.objects.get(owner_id=owner_id)
        use = StorageUsage(used_bytes=row.used_bytes, used_files=row.used_files, quota=quota)
        raise Conflict(
            "Your storage is full. Delete some files or upgrade your plan.",
            code="quota_exceeded",
            size_bytes=size,
            **describe_usage(use),
        )


def _try_reserve(owner_id: int, quota: StorageQuota, size: int) -> bool:
    rows = StorageUse.objects.filter(
        owner_id=owner_id, used_bytes__lte=quota.total_bytes - size, used_files__lt=quota.files
    )
    return bool(rows.update(used_bytes=F("used_bytes") + size, used_files=F("used_files") + 1))


def release_space(owner_id: int, size: int) -> None:
    StorageUse.objects.filter(owner_id=owner_id).update(
        used_bytes=F("used_bytes") - size, used_files=F("used_files") - 1
    )


_DRIFTS_SQL = """
SELECT u.owner_id, (u.used_bytes - coalesce(sum(f.size_bytes), 0))::bigint AS size, u.used_files - count(f.id) AS files
FROM copilot_storageuse u
LEFT JOIN copilot_workspacefile f
    ON f.owner_id = u.owner_id AND f.purged_at IS NULL AND f.source <> 'tool_output'
GROUP BY u.owner_id, u.used_bytes, u.used_files
HAVING u.used_bytes <> coalesce(sum(f.size_bytes), 0) OR u.used_files <> count(f.id)
"""


@dataclass(frozen=True)
class UsageDrift:
    """Bytes and files that are reserved but not there: of a running upload, or of one whose process was killed."""

    owner_id: int
    size: int
    files: int


def find_drifts() -> list[UsageDrift]:
    return fetch_all(UsageDrift, _DRIFTS_SQL)


def correct_drift(drift: UsageDrift) -> None:
    StorageUse.objects.filter(owner_id=drift.owner_id).update(
        used_bytes=F("used_bytes") - drift.size, used_files=F("used_files") - drift.files
    )


def erase_storage_usage(owner_id: int) -> int:
    removed, _ = StorageUse.objects.filter(owner=owner_id).delete()
    return removed


# --- Reconciliation ----------------------------------------------------------------------------------


BATCH_SIZE = 1000
DRIFT_GRACE_SECONDS = 3600  # longer than any upload takes
ORPHAN_AGE_HOURS = 24  # objects are written before their row, so a young one may still get one


@dataclass(frozen=True, kw_only=True)
class ReconciliationResult:
    orphans: int
    missing: int


def reconcile_storage() -> ReconciliationResult:
    """Walk keys and rows in parallel, in key order, a batch at a time.

    The order only saves queries: an object is removed when its own key has no row, and a row is reported when
    the storage, asked for its key, has none.
    """
    orphans = missing = 0
    after = ""
    listed = storage.list_objects()
    while batch := dict(itertools.islice(listed, BATCH_SIZE)):
        last = max(batch)
        orphans += _remove_orphans(batch)
        missing += _report_missing(_unpurged_rows(after).filter(storage_key__lte=last), batch)
        after = max(after, last)
    missing += _report_missing(_unpurged_rows(after), {})
    _correct_drifts()
    return ReconciliationResult(orphans=orphans, missing=missing)


def _remove_orphans(batch: dict[str, datetime]) -> int:
    """Remove objects without a live row. Bytes that a purged row left behind are removed too."""
    old = timezone.now() - timedelta(hours=ORPHAN_AGE_HOURS)
    aged = [key for key, since in batch.items() if since < old]
    named = set(_unpurged_rows("").filter(storage_key__in=aged).values_list("storage_key", flat=True))
    named |= set(ExportJob.objects.filter(storage_key__in=aged).values_list("storage_key", flat=True))
    orphans = [key for key in aged if key not in named]
    for key in orphans:
        storage.delete_object(key)
    if orphans:
        log.warning("orphaned_objects_removed", count=len(orphans))
        metrics.stray_objects.labels("orphan").inc(len(orphans))
    return len(orphans)


def _report_missing(rows: QuerySet[WorkspaceFile], listed_keys: Iterable[str]) -> int:
    keys = set(listed_keys)
    missing = 0
    for file in rows.only("id", "storage_key").iterator(chunk_size=BATCH_SIZE):
        if file.storage_key in keys or storage.object_exists(file.storage_key) or _is_purged(file):
            continue
        missing += 1
        log.error("file_object_missing", file_id=str(file.id))
    if missing:
        metrics.stray_objects.labels("missing").inc(missing)
    return missing


def _correct_drifts() -> None:
    """Release reserved space that has no file, if a later run finds the same amount: no upload takes that long."""
    seen, now = caches["shared"], timezone.now().timestamp()
    for drift in find_drifts():
        name = f"storage-drift:{drift.owner_id}"
        amount, since = seen.get(name) or ((0, 0), now)
        if amount != (drift.size, drift.files):
            seen.set(name, ((drift.size, drift.files), now), timeout=2 * 24 * 3600)
        elif now - since > DRIFT_GRACE_SECONDS:
            correct_drift(drift)
            seen.delete(name)
            log.warning("storage_drift_corrected", size_bytes=drift.size, files=drift.files)


def _is_purged(file: WorkspaceFile) -> bool:
    return not _unpurged_rows("").filter(pk=file.pk).exists()


def _unpurged_rows(after: str) -> QuerySet[WorkspaceFile]:
    rows = WorkspaceFile.objects.stored()
    return rows.filter(storage_key__gt=after).order_by("storage_key") if after else rows
