"""Limit how much a workspace may hold by plan, and reserve space with one conditional update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from django.db.models import F

from billing.selectors import plan_status
from config.core.db import fetch_all
from config.core.errors import Conflict, PayloadTooLarge
from copilot.models import StorageUse

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
