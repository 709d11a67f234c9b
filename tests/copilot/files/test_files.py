"""Workspace files: stored within the quota, found, renamed, deleted, restored (S2–S5, A22, A29)."""

from __future__ import annotations

import hashlib
import io
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from django.core.files.storage import storages
from django.db import connection
from django.utils import timezone

from config.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    StorageUnavailable,
)
from copilot.chat import sub_sessions
from copilot.files import quotas
from copilot.files import services as files
from copilot.files.quotas import MB, StorageQuota
from copilot.models import StorageUse, WorkspaceFile
from copilot.realtime.events import ArtifactAdded, ArtifactRemoved
from tests.support import factories
from tests.support.turn_engine import told

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32


@pytest.fixture
def small_quota(monkeypatch: pytest.MonkeyPatch) -> Callable[[StorageQuota], None]:
    """A plan that is quickly full."""
    return lambda quota: monkeypatch.setitem(quotas.PLAN_QUOTAS, "FREE", quota)


def store(content: bytes = b"hello", name: str = "notes.txt") -> WorkspaceFile:
    return files.store_file(factories.ada().pk, name=name, content=content, source="upload")


def used() -> tuple[int, int]:
    use = quotas.get_usage(factories.ada().pk)
    return use.used_bytes, use.used_files


def objects() -> list[Path]:
    root = Path(storages["workspace"].path(""))
    return [path for path in root.rglob("*") if path.is_file()]


# --- storing ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_file_keeps_its_bytes_size_hash_and_type() -> None:
    """S2, S4"""
    content = b"a,b\n" * 50_000
    file = files.store_file(factories.ada().pk, name="t.csv", content=io.BytesIO(content), source="upload")
    with files.open_file(file) as stream:
        assert stream.read() == content
    assert (file.size_bytes, file.mime, file.scan) == (200_000, "text/csv", "unscanned")
    assert file.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.django_db
def test_keys_tell_nothing_and_objects_are_private() -> None:
    """S5"""
    file = store(name="secret plans.txt")
    prefix, account, year, month, name = file.storage_key.split("/")
    assert (prefix, len(year), len(month), name) == ("ws", 4, 2, str(file.id))
    assert len(account) == 32
    assert str(factories.ada().pk) != account
    path = Path(storages["workspace"].path(file.storage_key))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.django_db
def test_html_that_calls_itself_a_pdf_is_stored_as_html() -> None:
    """A-S4.3, A22.c1"""
    assert store(b"<html>hi", "invoice.pdf").mime == "text/html"


@pytest.mark.django_db
def test_writing_a_name_again_makes_a_second_file() -> None:
    """A-S3.2"""
    first, second = store(b"one", "report.md"), store(b"two", "report.md")
    assert first.id != second.id
    with files.open_file(files.get_file(factories.ada().pk, first.id)) as stream:
        assert stream.read() == b"one"
    assert files.find_file(factories.ada().pk, "report.md").id == second.id


@pytest.mark.django_db
def test_empty_files_and_names_are_allowed() -> None:
    """S4"""
    file = store(b"", "")
    assert (file.name, file.size_bytes) == ("file", 0)
    with files.open_file(file) as stream:
        assert stream.read() == b""


# --- quota -----------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_file_above_the_plans_limit_is_too_large(small_quota: Callable[[StorageQuota], None]) -> None:
    """S4"""
    small_quota(StorageQuota(file_bytes=2 * MB, total_bytes=10 * MB, files=10))
    store(b"x" * 2 * MB)
    with pytest.raises(PayloadTooLarge) as refusal:
        store(b"x" * (2 * MB + 1))
    assert refusal.value.code == "file_too_large"
    assert refusal.value.details["limit_bytes"] == 2 * MB
    assert used() == (2 * MB, 1)


@pytest.mark.django_db
def test_the_number_of_files_is_limited_too(small_quota: Callable[[StorageQuota], None]) -> None:
    """S4"""
    small_quota(StorageQuota(file_bytes=MB, total_bytes=MB, files=1))
    store(b"")
    with pytest.raises(Conflict) as refusal:
        store(b"")
    assert refusal.value.code == "quota_exceeded"
    assert (refusal.value.details["used_files"], refusal.value.details["quota_files"]) == (1, 1)


@pytest.mark.django_db
def test_a_failing_store_gives_the_quota_back_and_leaves_no_row() -> None:
    """A-S4.4"""
    store(b"first")
    before, kept = used(), objects()
    with pytest.raises(StorageUnavailable):
        files.store_file(factories.ada().pk, name="x", content=_Breaking(b"second" * 50_000), source="upload")
    assert used() == before
    assert objects() == kept
    assert WorkspaceFile.objects.count() == 1


class _Breaking(io.BytesIO):
    """Bytes on a disk that fails after the first chunk."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= 64 * 1024:
            raise OSError("input/output error")
        return super().read(size)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("unit", "uploads", "rounds"), [(MB, 20, 1), (10, 8, 8), pytest.param(10, 8, 50, marks=pytest.mark.slow)]
)
def test_parallel_uploads_fill_the_quota_exactly(
    small_quota: Callable[[StorageQuota], None], unit: int, uploads: int, rounds: int
) -> None:
    """A-S4.1, A22.c1"""
    small_quota(StorageQuota(file_bytes=10 * unit, total_bytes=55 * unit, files=1000))
    owner, content, barrier = factories.ada().pk, b"x" * 10 * unit, threading.Barrier(uploads)

    def upload(_number: int) -> bool:
        barrier.wait()
        try:
            files.store_file(owner, name="x", content=content, source="upload")
        except Conflict:
            return False
        return True

    def leave(_number: int) -> None:
        barrier.wait()  # so that each thread closes its own
        connection.close()

    with ThreadPoolExecutor(uploads) as threads:
        for _ in range(rounds):
            WorkspaceFile.objects.all().delete()
            StorageUse.objects.all().delete()
            stored = list(threads.map(upload, range(uploads)))
            assert stored.count(True) == 5
            assert used() == (50 * unit, 5)
            assert WorkspaceFile.objects.filter(owner_id=owner).count() == 5
        list(threads.map(leave, range(uploads)))


@pytest.mark.django_db(transaction=True)
def test_a_chat_gets_events_when_its_files_are_deleted_and_restored() -> None:
    """S14: no matter who deletes it; the deletion of any other file is shown to its owner and not in this chat"""
    session = factories.session()
    made, sent = (
        files.store_file(session.owner_id, name="a.md", content=b"a", source=source, session_id=session.pk)
        for source in ("agent", "upload")
    )
    for file in (made, sent):
        files.trash_file(file.owner_id, file.pk)
        files.restore_file(file.owner_id, file.pk)
    gone, back = told(session.pk)
    assert isinstance(gone, ArtifactRemoved)
    assert isinstance(back, ArtifactAdded)
    assert gone.file_id == back.file_id == str(made.pk)
    assert told(sent.pk) == [ArtifactRemoved(file_id=str(sent.pk))]


@pytest.mark.django_db(transaction=True)
def test_of_two_writes_at_the_edge_of_the_quota_one_succeeds(
    small_quota: Callable[[StorageQuota], None],
) -> None:
    """A22.c1"""
    small_quota(StorageQuota(file_bytes=MB, total_bytes=1000, files=1000))
    owner = factories.ada().pk
    for _ in range(10):
        WorkspaceFile.objects.all().delete()
        StorageUse.objects.all().delete()
        barrier = threading.Barrier(2)

        def write(_number: int, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            try:
                files.store_file(owner, name="x", content=b"x" * 600, source="agent")
            except Conflict:
                return False
            finally:
                connection.close()
            return True

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(write, range(2))) == [False, True]
        assert used() == (600, 1)


# --- reading ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_foreign_deleted_and_unknown_files_look_the_same() -> None:
    """A-S3.1"""
    file = store()
    bob = factories.bob().pk
    for action in (
        lambda: files.get_file(bob, file.id),
        lambda: files.get_file(bob, uuid4()),
        lambda: files.find_file(bob, f"workspace://{file.id}"),
        lambda: files.rename_file(bob, file.id, "mine.txt"),
        lambda: files.trash_file(bob, file.id),
        lambda: files.restore_file(bob, file.id),
    ):
        with pytest.raises(NotFound):
            action()
    assert files.get_file(factories.ada().pk, file.id).name == "notes.txt"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "form", ["{id}", "workspace://{id}", "workspace://{id}/any name.txt#page=2", "notes.txt"]
)
def test_a_file_is_found_by_id_uri_and_name(form: str) -> None:
    """A22.1, A22.3, S1"""
    file = store()
    assert files.find_file(factories.ada().pk, form.format(id=file.id)).id == file.id


@pytest.mark.django_db
def test_a_guest_sees_only_the_files_of_the_session() -> None:
    """S3"""
    session = factories.session()
    inside = files.store_file(
        factories.ada().pk, name="in.txt", content=b"", source="agent", session_id=session.id
    )
    outside = store(name="out.txt")
    assert files.get_file_page(factories.ada().pk, session_id=session.id).items == [inside]
    with pytest.raises(NotFound):
        files.find_file(factories.ada().pk, str(outside.id), session_id=session.id)


@pytest.mark.django_db
def test_a_page_says_whether_more_follow() -> None:
    """S3"""
    names = [store(name=f"{number}.txt").name for number in range(5)]
    owner = factories.ada().pk
    first, last = files.get_file_page(owner, limit=3), files.get_file_page(owner, limit=3, offset=3)
    assert [file.name for file in first.items + last.items] == names[::-1]
    assert (first.has_more, last.has_more, last.offset) == (True, False, 3)


@pytest.mark.django_db
def test_a_page_can_be_narrowed() -> None:
    """S3, A22.1"""
    picture, notes = store(PNG, "Holiday.png"), store(b"x", "holiday notes.txt")
    owner = factories.ada().pk
    assert files.get_file_page(owner, mime="image").items == [picture]
    assert files.get_file_page(owner, q="NOTES").items == [notes]
    assert files.get_file_page(owner, prefix="holiday").items == [notes, picture]
    assert files.get_file_page(owner, q="%").items == []


@pytest.mark.django_db
def test_attachments_are_the_owners_usable_files_and_the_rest_is_reported() -> None:
    """A29.1, A29.c1, S3"""
    mine, trashed, infected = store(), store(), store()
    files.trash_file(factories.ada().pk, trashed.id)
    WorkspaceFile.objects.filter(pk=infected.id).update(scan="infected")
    foreign = files.store_file(factories.bob().pk, name="x", content=b"", source="upload")
    ignored = [str(trashed.id), str(infected.id), str(foreign.id), str(mine.id).upper(), "nonsense", "\0"]
    views, reported = files.resolve_attachments(factories.ada().pk, [str(mine.id), *ignored, str(mine.id)])
    assert [view.file_id for view in views] == [str(mine.id)]
    assert reported == ignored


@pytest.mark.django_db
def test_files_under_a_scan_are_not_opened() -> None:
    """S4"""
    file = store()
    for scan, refusal in (("pending", Conflict), ("failed", Conflict), ("infected", Forbidden)):
        file.scan = scan
        with pytest.raises(refusal):
            files.open_file(file)


@pytest.mark.django_db
def test_a_missing_object_is_the_stores_fault() -> None:
    """S5"""
    file = store()
    storages["workspace"].delete(file.storage_key)
    with pytest.raises(StorageUnavailable) as problem:
        files.open_file(file)
    assert (problem.value.code, problem.value.retry_after_seconds) == ("storage_unavailable", 5)


@pytest.mark.django_db
def test_only_real_images_of_at_most_20_mebibytes_are_native() -> None:
    """A29.2, A29.c1"""
    whole = store(PNG + b"\0" * (20 * MB - len(PNG)), "photo.jpg")
    above = store(PNG + b"\0" * (20 * MB - len(PNG) + 1))
    part = files.load_image(whole)
    assert part is not None
    assert part.mime == "image/png"
    assert files.load_image(above) is None
    assert files.load_image(store(b"<html>", "page.png")) is None
    assert files.load_image(store(b"RIFF\x24\0\0\0WAVEfmt ", "sound.webp")) is None


# --- changing --------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_renaming_cleans_the_name() -> None:
    """S4"""
    file = store()
    assert files.rename_file(factories.ada().pk, file.id, "../new<name>.txt").name == "new_name_.txt"
    with pytest.raises(InvalidRequest) as refusal:
        files.rename_file(factories.ada().pk, file.id, "folder/")
    assert refusal.value.code == "invalid_name"


@pytest.mark.django_db
def test_a_deleted_file_can_be_restored_for_thirty_days() -> None:
    """S3: it counts all the while"""
    owner, file = factories.ada().pk, store()
    files.trash_file(owner, file.id)
    with pytest.raises(NotFound):
        files.get_file(owner, file.id)
    assert used() == (5, 1)
    assert files.restore_file(owner, file.id).deleted_at is None
    WorkspaceFile.objects.filter(pk=file.id).update(deleted_at=timezone.now() - timedelta(days=30, minutes=1))
    with pytest.raises(NotFound):
        files.restore_file(owner, file.id)


@pytest.mark.django_db
def test_purging_gives_room_back_once_and_removes_the_bytes() -> None:
    """S4, A9.6"""
    session = factories.session()
    file, kept = store(), store()
    output = files.store_tool_output(session.id, "call-1", "text")
    WorkspaceFile.objects.filter(pk=file.id).update(deleted_at=timezone.now() - timedelta(days=31))
    WorkspaceFile.objects.filter(pk=output.id).update(created_at=timezone.now() - timedelta(days=91))
    assert files.purge_due_files() == 2
    assert files.purge_due_files() == 0
    assert used() == (5, 1)
    assert not storages["workspace"].exists(file.storage_key)
    assert storages["workspace"].exists(kept.storage_key)
    with pytest.raises(NotFound):
        files.restore_file(factories.ada().pk, file.id)


# --- outputs of tools ------------------------------------------------------------------------------


@pytest.mark.django_db
def test_tool_outputs_are_outside_quota_and_lists() -> None:
    """S2, A9.6"""
    session = factories.session()
    output = files.store_tool_output(session.id, "call-1", "é" * 10)
    owner = factories.ada().pk
    assert used() == (0, 0)
    assert files.get_file_page(owner).items == []
    assert files.resolve_attachments(owner, [str(output.id)]) == ([], [str(output.id)])
    assert files.get_file(owner, output.id).name == "call-1.txt"
    assert files.read_tool_output(owner, session.id, "call-1") == "é" * 10


@pytest.mark.django_db
def test_a_result_without_a_file_and_a_long_message_are_read_from_their_rows() -> None:
    """A22.5, A13.3"""
    session = factories.session()
    factories.message(session, "tool_result", content="short", call_id="call-2")
    said = factories.message(session, "user", content="a long message")
    owner = factories.ada().pk
    assert files.read_tool_output(owner, session.id, "call-2") == "short"
    assert files.read_tool_output(owner, session.id, str(said.id)) == "a long message"


@pytest.mark.django_db
def test_a_sub_session_reads_the_outputs_of_those_above_it_and_its_own_first() -> None:
    """A22.5: of its ancestors, and never the other way"""
    root = factories.session()
    child = sub_sessions.create_sub_session(root)
    grandchild = sub_sessions.create_sub_session(child)
    files.store_tool_output(root.id, "call-1", "of the root")
    files.store_tool_output(child.id, "call-2", "of the child")
    files.store_tool_output(root.id, "call-2", "of the root")
    owner = factories.ada().pk
    assert files.read_tool_output(owner, grandchild.id, "call-1") == "of the root"
    assert files.read_tool_output(owner, grandchild.id, "call-2") == "of the child"
    assert files.read_tool_output(owner, root.id, "call-2") == "of the root"
    files.store_tool_output(grandchild.id, "call-3", "of the grandchild")
    for user, where in ((factories.ada(), root), (factories.ada(), child), (factories.bob(), grandchild)):
        with pytest.raises(NotFound):
            files.read_tool_output(user.pk, where.id, "call-3")


def test_outputs_of_another_user_or_session_do_not_exist() -> None:
    """A22.5"""
    session = factories.session()
    files.store_tool_output(session.id, "call-1", "text")
    for user, where in ((factories.bob(), session), (factories.ada(), factories.session())):
        with pytest.raises(NotFound):
            files.read_tool_output(user.pk, where.id, "call-1")
