"""The daily look at the storage, and settings that would not keep files safe (S4, S5, S20)."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from django.conf import settings as site
from django.core.files.storage import storages

from copilot import checks
from copilot.files import quotas, storage
from copilot.files import services as files
from copilot.models import ExportJob, StorageUse, WorkspaceFile
from tests.support import factories

OLD = 3600 * 25


@pytest.fixture(autouse=True)
def own_directory(settings, tmp_path: Path) -> None:
    """What other tests left lying about is none of our orphans."""
    options = {"location": str(tmp_path), "file_permissions_mode": 0o600}
    alias = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
    settings.STORAGES = {**settings.STORAGES, "workspace": alias}


def stored() -> WorkspaceFile:
    return files.store_file(factories.ada().pk, name="a.txt", content=b"a", source="upload")


def aged(key: str, seconds: int = OLD) -> str:
    path = storages["workspace"].path(key)
    since = os.stat(path).st_mtime - seconds
    os.utime(path, (since, since))
    return key


def put(key: str) -> str:
    storage.write_object(key, io.BytesIO(b"x"), 1)
    return key


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_objects_without_a_row_go_after_a_day_and_lost_ones_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, batch: int
) -> None:
    """S4"""
    monkeypatch.setattr(quotas, "BATCH_SIZE", batch)
    kept = [aged(stored().storage_key) for _ in range(4)]
    export = aged(put("ws/exports/1"))
    ExportJob.objects.create(owner=factories.ada(), format="md", storage_key=export)
    young, old = put("ws/a/2026/01/young"), [aged(put(f"ws/{letter}/2026/01/old")) for letter in "09fz"]
    lost, purged = stored(), stored()
    storage.delete_object(lost.storage_key)
    WorkspaceFile.objects.filter(pk=purged.pk).update(purged_at="2026-01-01T00:00Z")
    old.append(aged(purged.storage_key))
    found = quotas.reconcile_storage()
    assert (found.orphans, found.missing) == (5, 1)
    assert "file_object_missing" in caplog.text
    assert str(lost.id) in caplog.text
    assert {key for key, _ in storage.list_objects()} == {*kept, export, young}
    assert not [key for key in old if storage.object_exists(key)]


@pytest.mark.django_db
def test_an_empty_storage_with_rows_is_reported_row_by_row() -> None:
    """S4"""
    few = [stored() for _ in range(3)]
    for file in few:
        storage.delete_object(file.storage_key)
    assert quotas.reconcile_storage() == quotas.ReconciliationResult(orphans=0, missing=3)


@pytest.mark.django_db
def test_room_that_a_killed_process_took_is_given_back_by_a_later_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S4: an object unchanged for a day is no upload in progress; a running upload changes its size"""
    file = stored()
    use = StorageUse.objects.get(owner=file.owner)

    def looked(taken: int) -> tuple[int, int]:
        StorageUse.objects.update(used_bytes=file.size_bytes + taken, used_files=2)
        quotas.reconcile_storage()
        use.refresh_from_db()
        return use.used_bytes, use.used_files

    assert looked(500) == (file.size_bytes + 500, 2)
    assert looked(500) == (file.size_bytes + 500, 2)  # too soon after
    monkeypatch.setattr(quotas, "DRIFT_GRACE_SECONDS", -1)
    assert looked(300) == (file.size_bytes + 300, 2)
    assert looked(300) == (file.size_bytes, 1)
    quotas.reconcile_storage()
    use.refresh_from_db()
    assert (use.used_bytes, use.used_files) == (file.size_bytes, 1)


# --- settings ----------------------------------------------------------------------------------------


def of_bucket(**options: object) -> dict[str, object]:
    return {"BACKEND": "copilot.files.s3_storage.BucketStorage", "OPTIONS": {"bucket_name": "b", **options}}


@pytest.mark.parametrize(
    ("alias", "found"),
    [
        ({"BACKEND": "nowhere.Storage"}, ["copilot.E004"]),
        (of_bucket(no_such_option=1), ["copilot.E004"]),
        (of_bucket(default_acl="public-read"), ["copilot.E006"]),
        (
            of_bucket(default_acl="authenticated-read", querystring_auth=False),
            ["copilot.E006", "copilot.E006"],
        ),
        (of_bucket(), []),
        (of_bucket(default_acl="private"), []),
    ],
)
def test_a_storage_that_is_unknown_or_public_stops_the_boot(
    settings, alias: dict[str, object], found: list[str]
) -> None:
    """S20"""
    settings.STORAGES = {**settings.STORAGES, "workspace": alias}
    assert [error.id for error in checks.check_file_storage(None)] == found


def test_files_do_not_lie_where_the_web_serves_from(settings) -> None:
    """S5"""
    alias = {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": f"{site.STATIC_ROOT}/files"},
    }
    settings.STORAGES = {**settings.STORAGES, "workspace": alias}
    assert [error.id for error in checks.check_file_storage(None)] == ["copilot.E005"]
