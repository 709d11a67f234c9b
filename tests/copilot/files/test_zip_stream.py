"""Several files as one archive: what goes in, under which names, and how it ends (S13)."""

from __future__ import annotations

import io
import subprocess
import tracemalloc
import zipfile
from pathlib import Path
from typing import IO

import pytest
from django.core.files.storage import storages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.core.errors import NotFound, PayloadTooLarge, StorageUnavailable
from config.core.text import make_unique_archive_names
from copilot.files import downloads, zip_stream
from copilot.files import services as files
from copilot.files.quotas import MB
from copilot.models import WorkspaceFile
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, NOT_FOUND, V1, code_of, program

ODD_NAMES = ["../../etc/passwd", "C:\\x", ".bashrc", "CON.txt", "a.txt", "A.TXT", ""]
ZIP = f"{V1}/files/zip"


def stored(content: bytes = b"x", name: str = "a.txt", owner: int | None = None) -> WorkspaceFile:
    return files.store_file(owner or factories.ada().pk, name=name, content=content, source="upload")


def claims(size: int, name: str = "a.bin") -> WorkspaceFile:
    """A file whose row tells of more bytes than anybody wrote."""
    file = stored(name=name)
    WorkspaceFile.objects.filter(pk=file.pk).update(size_bytes=size)
    file.refresh_from_db()
    return file


def get() -> HttpRequest:
    return RequestFactory().get("/")


def body(response: HttpResponseBase) -> bytes:
    content = response.content if isinstance(response, HttpResponse) else b"".join(response)
    response.close()
    return content


def opened(response: HttpResponseBase) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(body(response)))


def fetched(response) -> bytes:
    """Of the test client, which closes what was read to its end."""
    return b"".join(response.streaming_content)


def entry(name: str, content: bytes, *, size: int | None = None) -> zip_stream.ZipEntry:
    length = len(content) if size is None else size
    return zip_stream.ZipEntry(name=name, size=length, stored=True, open=lambda: io.BytesIO(content))


# --- names -------------------------------------------------------------------------------------------


def test_odd_names_unpack_into_one_folder(tmp_path: Path) -> None:
    """A-S13.1"""
    names = make_unique_archive_names(ODD_NAMES)
    assert names == ["passwd", "x", "bashrc", "_CON.txt", "a.txt", "A (2).TXT", "file"]
    archive = tmp_path / "x.zip"
    archive.write_bytes(b"".join(zip_stream.stream_zip([entry(name, name.encode()) for name in names])))
    with zipfile.ZipFile(archive) as packed:
        assert packed.testzip() is None
        packed.extractall(tmp_path / "python")
    subprocess.run(["unzip", "-q", archive, "-d", tmp_path / "unzip"], check=True)
    for folder in (tmp_path / "python", tmp_path / "unzip"):
        assert {path.name: path.read_text() for path in folder.iterdir()} == {name: name for name in names}


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ('a:b*c?d"e<f>g|h.txt', "a_b_c_d_e_f_g_h.txt"),
        ("...", "file"),
        ("trailing. . ", "trailing"),
        ("a\x00\u202eb.txt", "ab.txt"),
        ("nul", "_nul"),
        ("LPT1 .log", "_LPT1 .log"),
        ("COM¹.txt", "_COM¹.txt"),
        ("constant.txt", "constant.txt"),
        ("日本語.pdf", "日本語.pdf"),
        ("x" * 300 + ".txt", "x" * 146 + ".txt"),
    ],
)
def test_a_name_is_safe_wherever_it_is_unpacked(raw: str, kept: str) -> None:
    """S13"""
    assert make_unique_archive_names([raw]) == [kept]


def test_names_that_some_system_takes_for_one_are_numbered() -> None:
    """S13: case-insensitive, NFC"""
    assert make_unique_archive_names(["é.txt", "E\u0301.TXT", "é (2).txt", "é.txt"]) == [
        "é.txt",
        "É (2).TXT",
        "é (2) (2).txt",
        "é (3).txt",
    ]
    assert make_unique_archive_names(["skipped.TXT"], taken=["SKIPPED.txt"]) == ["skipped (2).TXT"]
    long = make_unique_archive_names(["日" * 100 + ".txt"] * 3)
    assert len(set(long)) == 3


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text(max_size=20), max_size=4))
def test_any_names_become_safe_and_distinct(raw: list[str]) -> None:
    """S13"""
    names = make_unique_archive_names(raw)
    assert len({name.casefold() for name in names}) == len(raw)
    for name in names:
        assert 0 < len(name.encode()) <= 150
        assert not set(name) & set('/\\:*?"<>|\x00')
        assert name == name.strip(". ") or name.startswith("_")


# --- limits ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_limits_are_judged_by_the_rows_before_the_first_byte() -> None:
    """A-S13.2"""
    four = [claims(49 * MB, f"{number}.bin") for number in range(4)]
    assert zip_stream.plan_archive(four).files == four
    with pytest.raises(PayloadTooLarge) as refusal:
        zip_stream.plan_archive([*four, claims(49 * MB)])
    assert (refusal.value.code, refusal.value.status) == ("zip_too_large", 413)
    assert refusal.value.details["total_bytes"] == 5 * 49 * MB
    assert refusal.value.details["limit_bytes"] == 200 * MB
    assert refusal.value.details["largest"][0] == "0.bin (49.0 MB)"


@pytest.mark.django_db
def test_a_file_above_the_limit_is_left_out_and_named() -> None:
    """A-S13.2: one of 51 MB and two small ones"""
    large, small, other = claims(51 * MB, "large.bin"), stored(name="a.txt"), stored(b"y", "b.txt")
    archive = opened(zip_stream.build_zip_response(get(), [large, small, other], title="t"))
    assert sorted(archive.namelist()) == ["SKIPPED.txt", "a.txt", "b.txt"]
    assert archive.read("SKIPPED.txt").decode().startswith("large.bin: 51.0 MB")
    with pytest.raises(NotFound):
        zip_stream.build_zip_response(get(), [large], title="t")


@pytest.mark.django_db
def test_so_many_files_and_no_more(settings) -> None:
    """S13"""
    settings.ZIP_FILES_MAX = 2
    few = [stored(name=f"{number}.txt") for number in range(3)]
    assert len(opened(zip_stream.build_zip_response(get(), few[:2], title="t")).namelist()) == 2
    with pytest.raises(PayloadTooLarge):
        zip_stream.build_zip_response(get(), few, title="t")


@pytest.mark.django_db
def test_one_file_is_sent_as_itself() -> None:
    """A-S13.5"""
    response = zip_stream.build_zip_response(
        get(), [stored(b"%PDF-1.7", "report.pdf")], title="t", public=True
    )
    assert response["Content-Disposition"] == 'attachment; filename="report.pdf"'
    assert response["Content-Type"] == "application/pdf"
    assert response["Cross-Origin-Resource-Policy"] == "same-site"
    assert body(response) == b"%PDF-1.7"


@pytest.mark.django_db
def test_what_a_scan_forbids_is_in_no_archive() -> None:
    """A-S4.5"""
    good, other, bad = stored(name="good.txt"), stored(name="other.txt"), stored(name="bad.txt")
    bad.scan = "infected"
    archive = opened(zip_stream.build_zip_response(get(), [good, bad, other], title="t"))
    assert sorted(archive.namelist()) == ["SKIPPED.txt", "good.txt", "other.txt"]
    assert archive.read("SKIPPED.txt") == b"bad.txt: not available\n"


# --- bytes -------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_archive_is_the_same_whenever_it_is_made() -> None:
    """S13: fixed times; packed types are stored"""
    picture, text = stored(b"\x89PNG\r\n\x1a\n" + b"\0" * 999, "a.png"), stored(b"a" * 9999, "a.txt")
    response = zip_stream.build_zip_response(get(), [picture, text], title='My "trip" / 2026')
    assert response["Content-Disposition"] == 'attachment; filename="My _trip_ _ 2026-files.zip"'
    assert (response["Content-Type"], response["X-Content-Type-Options"]) == ("application/zip", "nosniff")
    assert "sandbox" in response["Content-Security-Policy"]
    content = body(response)
    assert content == body(zip_stream.build_zip_response(get(), [picture, text], title="other"))
    packed = {info.filename: info for info in zipfile.ZipFile(io.BytesIO(content)).infolist()}
    assert packed["a.png"].compress_type == zipfile.ZIP_STORED
    assert packed["a.txt"].compress_size < 200
    assert packed["a.txt"].date_time == (1980, 1, 1, 0, 0, 0)


@pytest.mark.django_db
def test_a_file_that_vanished_is_a_note() -> None:
    """S13"""
    kept, gone = stored(name="kept.txt"), stored(name="gone.txt")
    storages["workspace"].delete(gone.storage_key)
    archive = opened(zip_stream.build_zip_response(get(), [gone, kept], title="t"))
    assert archive.namelist() == ["kept.txt", "SKIPPED.txt"]
    assert archive.read("SKIPPED.txt") == b"gone.txt: could not be read\n"
    storages["workspace"].delete(kept.storage_key)
    with pytest.raises(StorageUnavailable):
        zip_stream.build_zip_response(get(), [gone, kept], title="t")


class Failing(io.BytesIO):
    """A disk that fails after the first megabyte."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(b"x" * 2 * MB)
        self.problem = problem

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= MB:
            raise self.problem
        return super().read(size)


def failing(problem: Exception) -> zip_stream.ZipEntry:
    def begin() -> IO[bytes]:
        return Failing(problem)

    return zip_stream.ZipEntry(name="failing.bin", size=2 * MB, stored=True, open=begin)


def test_a_file_that_fails_on_its_way_is_a_note_and_the_rest_is_whole(tmp_path: Path) -> None:
    """S13"""
    content = b"".join(
        zip_stream.stream_zip([entry("a.txt", b"a"), failing(OSError("disk")), entry("b.txt", b"b")])
    )
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.namelist() == ["a.txt", "b.txt", "SKIPPED.txt"]
    assert (archive.testzip(), archive.read("b.txt")) == (None, b"b")
    (tmp_path / "x.zip").write_bytes(content)
    subprocess.run(["unzip", "-tqq", tmp_path / "x.zip"], check=True)


def test_an_archive_that_is_cut_off_has_no_end() -> None:
    """S13: a client sees an error, not fewer files"""
    came: list[bytes] = []
    with pytest.raises(RuntimeError):
        came.extend(zip_stream.stream_zip([entry("a.txt", b"a"), failing(RuntimeError("worker gone"))]))
    parts = zip_stream.stream_zip([entry("a.txt", b"a"), entry("b.txt", b"b")])
    cut = next(parts)
    parts.close()
    for content in (b"".join(came), cut):
        assert b"PK\x05\x06" not in content
        with pytest.raises(zipfile.BadZipFile):
            zipfile.ZipFile(io.BytesIO(content))


@pytest.mark.parametrize("size", [10, 4 * MB])
def test_an_object_that_is_not_as_long_as_its_row_says_stops_there(size: int) -> None:
    """A-S13.4"""
    content = b"".join(
        zip_stream.stream_zip([entry("lies.bin", b"x" * 3 * MB, size=size), entry("b.txt", b"b")])
    )
    assert len(content) < size + 1000
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.namelist() == ["b.txt", "SKIPPED.txt"]


def test_two_hundred_megabytes_take_little_memory() -> None:
    """S13: at most 32 MB"""

    class Zeros(io.RawIOBase):
        left = 49 * MB

        def read(self, size: int = -1, /) -> bytes:
            count = min(size, self.left)
            self.left -= count
            return bytes(count)

    packed = [
        zip_stream.ZipEntry(name=f"{number}.bin", size=49 * MB, stored=True, open=Zeros)
        for number in range(4)
    ]
    tracemalloc.start()
    total = sum(len(part) for part in zip_stream.stream_zip(packed))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 196 * MB
    assert peak < 4 * MB


@pytest.mark.django_db(transaction=True)
async def test_under_asgi_an_archive_comes_as_it_is_made() -> None:
    """S13: nothing is collected first"""
    from config.core.db import run_in_thread

    few = [await run_in_thread(stored, b"GIF89a" + b"x" * MB, f"{number}.gif") for number in range(3)]
    response = await run_in_thread(zip_stream.build_zip_response, get(), few, title="t")
    assert isinstance(response, downloads.ChunkedResponse)
    parts = [part async for part in response.__aiter__()]
    assert len(parts) > 10
    assert len(zipfile.ZipFile(io.BytesIO(b"".join(parts))).namelist()) == 3


# --- the endpoint ------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_chosen_files_come_as_an_archive_and_foreign_ones_never() -> None:
    """A-S3.1: bob's archive of ada's file is the archive of a random id"""
    ada, bob = program(factories.ada()), program(factories.bob())
    mine, other = stored(b"one", "a.txt"), stored(b"two", "a.txt")
    ids = [str(mine.id), str(other.id), NOBODYS, "nonsense"]
    response = ada.post(ZIP, {"ids": ids}, content_type=JSON)
    assert response["Content-Disposition"] == 'attachment; filename="workspace-files.zip"'
    archive = zipfile.ZipFile(io.BytesIO(fetched(response)))
    assert archive.namelist() == ["a.txt", "a (2).txt", "SKIPPED.txt"]
    assert archive.read("a (2).txt") == b"two"
    for foreign in (str(mine.id), NOBODYS, "nonsense"):
        refused = bob.post(ZIP, {"ids": [foreign]}, content_type=JSON)
        assert (refused.status_code, refused.content) == (404, NOT_FOUND)


@pytest.mark.django_db
def test_an_archive_needs_ids_and_only_the_right_to_read() -> None:
    """S13, S18"""
    reader = program(factories.ada(), "read")
    file = stored(b"hello")
    assert fetched(reader.post(ZIP, {"ids": [str(file.id)]}, content_type=JSON)) == b"hello"
    for ids in ([], "x", [1], None):
        refused = reader.post(ZIP, {"ids": ids}, content_type=JSON)
        assert (refused.status_code, code_of(refused)) == (400, "invalid_request")
