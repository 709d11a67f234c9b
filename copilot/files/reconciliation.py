"""Reconcile storage and rows daily: remove objects without a row, and report rows without their object."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.core.cache import caches
from django.db.models import QuerySet
from django.utils import timezone

from copilot import metrics
from copilot.files import quotas, storage
from copilot.models import ExportJob, WorkspaceFile

log = structlog.get_logger(__name__)

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
    for drift in quotas.find_drifts():
        name = f"storage-drift:{drift.owner_id}"
        amount, since = seen.get(name) or ((0, 0), now)
        if amount != (drift.size, drift.files):
            seen.set(name, ((drift.size, drift.files), now), timeout=2 * 24 * 3600)
        elif now - since > DRIFT_GRACE_SECONDS:
            quotas.correct_drift(drift)
            seen.delete(name)
            log.warning("storage_drift_corrected", size_bytes=drift.size, files=drift.files)


def _is_purged(file: WorkspaceFile) -> bool:
    return not _unpurged_rows("").filter(pk=file.pk).exists()


def _unpurged_rows(after: str) -> QuerySet[WorkspaceFile]:
    rows = WorkspaceFile.objects.stored()
    return rows.filter(storage_key__gt=after).order_by("storage_key") if after else rows
