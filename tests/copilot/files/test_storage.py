"""One contract for a directory and a bucket, and what only a bucket can do (S5)."""

from __future__ import annotations

import hashlib
import io
import urllib.request
import zipfile
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory
from django.utils import timezone

from config import storage, variables
from config.core.errors import StorageUnavailable
from copilot.files import downloads, quotas, zip_stream
from copilot.files import services as files
from copilot.files import storage as files_storage
from copilot.models import WorkspaceFile
from tests.support import factories
from tests.support.s3_server import bucket_server, in_bucket

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32
PDF = b"%PDF-1.7\n" + bytes(range(256)) * 1000
HTML = b"<html><script>alert(1)</script>"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with bucket_server() as address:
        yield address


@pytest.fixture
def bucket(server: str, settings) -> None:
    settings.STORAGES = {**settings.STORAGES, "workspace": in_bucket(server)}


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> None:
    if request.param == "s3":
        request.getfixturevalue("bucket")


def stored(content: bytes, name: str) -> WorkspaceFile:
    return files.store_file(factories.ada().pk, name=name, content=content, source="upload")


def get(**headers: str) -> HttpRequest:
    return RequestFactory().get("/", headers=headers)


def body(response: HttpResponseBase) -> bytes:
    content = response.content if isinstance(response, HttpResponse) else b"".join(response)
    response.close()
    return content


# --- the contract ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 5, 8 * 2**20, 9 * 2**20 + 1])
def test_what_was_written_is_read_back_from_any_place(store, size: int) -> None:
    """A-S5.4: an object of one part, of exactly one, of several"""
    content = (bytes(range(251)) * (size // 251 + 1))[:size]
    digest = files_storage.write_object("ws/a/2026/01/x", io.BytesIO(content), size)
    assert digest == hashlib.sha256(content).hexdigest()
    with files_storage.open_object("ws/a/2026/01/x") as stream:
        assert stream.read() == content
        assert (stream.seek(size // 2), stream.tell()) == (size // 2, size // 2)
        assert stream.read(100) == content[size // 2 :][:100]
        assert stream.seek(-3, io.SEEK_END) == size - 3 if size else True
        assert stream.read() == content[-3:]
    files_storage.delete_object("ws/a/2026/01/x")
    assert not files_storage.object_exists("ws/a/2026/01/x")


def test_a_missing_object_is_the_stores_fault_and_removing_it_is_none(store) -> None:
    """A-S5.4"""
    with pytest.raises(StorageUnavailable):
        files_storage.open_object("ws/gone")
    files_storage.delete_object("ws/gone")
    assert not files_storage.object_exists("ws/gone")


def test_a_source_that_fails_leaves_nothing_behind(store) -> None:
    """A-S5.4"""

    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= 8 * 2**20:
                raise OSError("input/output error")
            return super().read(size)

    with pytest.raises(StorageUnavailable):
        files_storage.write_object("ws/b/x", Breaking(b"x" * 9 * 2**20), 9 * 2**20)
    files_storage.delete_object("ws/b/x")  # a directory keeps what came; files.store removes it (A-S4.4)
    assert list(files_storage.list_objects("ws/b/")) == []


def test_keys_are_listed_with_their_age(store) -> None:
    """A-S5.4"""
    for key in ("ws/l1/2026/02/b", "ws/l1/2026/01/a", "ws/l2/2026/01/c"):
        files_storage.write_object(key, io.BytesIO(b"x"), 1)
    assert [key for key, _ in files_storage.list_objects("ws/l1/")] == ["ws/l1/2026/01/a", "ws/l1/2026/02/b"]
    found = dict(files_storage.list_objects())
    assert abs(found["ws/l2/2026/01/c"] - timezone.now()) < timedelta(minutes=5)
    for key in found:
        files_storage.delete_object(key)


@pytest.mark.django_db
def test_files_parts_and_archives_are_the_same_from_both(store) -> None:
    """A-S5.4"""
    pdf, notes = stored(PDF, "x.pdf"), stored(b"plain", "notes.txt")
    assert body(downloads.build_download_response(get(), pdf, inline=True)) == PDF
    part = downloads.build_download_response(get(Range="bytes=5-9"), pdf, inline=True)
    assert (part.status_code, body(part)) == (206, PDF[5:10])
    assert body(downloads.build_download_response(get(), notes)) == b"plain"
    archive = zipfile.ZipFile(io.BytesIO(body(zip_stream.build_zip_response(get(), [pdf, notes], title="t"))))
    assert (archive.read("x.pdf"), archive.read("notes.txt")) == (PDF, b"plain")


# --- signed addresses --------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_picture_is_fetched_from_the_bucket_under_our_headers(bucket) -> None:
    """S5, S6"""
    response = downloads.build_download_response(get(), stored(PNG, "日本.png"), inline=True)
    assert (response.status_code, response["X-Content-Type-Options"]) == (302, "nosniff")
    with urllib.request.urlopen(response["Location"]) as answer:
        assert answer.read() == PNG
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.headers["Content-Disposition"] == response["Content-Disposition"]
    query = parse_qs(urlsplit(response["Location"]).query)
    assert query["X-Amz-Expires"] == ["60"]
    assert "日本" not in response["Location"].partition("?")[0]


@pytest.mark.django_db
def test_the_signature_of_html_says_attachment_and_unknown_bytes(bucket, settings) -> None:
    """A-S5.3"""
    settings.ARTIFACT_RENDER_MAX = 10
    response = downloads.build_download_response(get(), stored(HTML, "a.html"), inline=True)
    query = parse_qs(urlsplit(response["Location"]).query)
    assert query["response-content-type"] == ["application/octet-stream"]
    assert query["response-content-disposition"] == ['attachment; filename="a.html"']
    assert "X-Amz-Signature" in query


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("content", "name", "inline"),
    [(PDF, "a.pdf", True), (HTML, "a.html", False), (b"# x", "a.md", True), (b"{}", "a.json", False)],
)
def test_what_frames_and_scripts_read_never_leaves_our_origin(
    bucket, content: bytes, name: str, inline: bool
) -> None:
    """S5: inline PDF, and what our script renders"""
    response = downloads.build_download_response(get(), stored(content, name), inline=inline)
    assert (response.status_code, body(response)) == (200, content)


@pytest.mark.django_db
def test_a_pdf_to_be_saved_and_large_text_leave_it(bucket, settings) -> None:
    """S5"""
    settings.ARTIFACT_RENDER_MAX = 10
    for content, name in ((PDF, "a.pdf"), (b"x" * 11, "a.txt")):
        assert downloads.build_download_response(get(), stored(content, name)).status_code == 302


@pytest.mark.django_db
def test_head_is_answered_by_us(bucket) -> None:
    """S5: an address signed for GET refuses HEAD"""
    response = downloads.build_download_response(RequestFactory().head("/"), stored(PNG, "a.png"))
    assert (response.status_code, response["Content-Length"]) == (200, str(len(PNG)))


@pytest.mark.django_db
def test_what_cannot_be_signed_is_streamed_and_what_cannot_be_read_is_503(
    bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A-S5.1"""
    file, store = stored(PNG, "a.png"), storages["workspace"]

    def broken(*_: object, **__: object) -> str:
        raise OSError("no credentials")

    monkeypatch.setattr(store, "signed_url", broken)
    response = downloads.build_download_response(get(), file)
    assert (response.status_code, body(response)) == (200, PNG)
    store.delete(file.storage_key)
    with pytest.raises(StorageUnavailable) as problem:
        downloads.build_download_response(get(), file)
    assert (problem.value.status, problem.value.code, problem.value.retry_after_seconds) == (
        503,
        "storage_unavailable",
        5,
    )
    [line] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "no credentials" in line
    assert "no such object" in line


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["/media/x", "//", "x", "http://127.0.0.1:8000/media/x", None])
def test_an_address_that_leads_back_to_us_is_not_followed(
    bucket, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    """A-S5.2"""
    file = stored(PNG, "a.png")
    monkeypatch.setattr(storages["workspace"], "signed_url", lambda *_, **__: url)
    response = downloads.build_download_response(get(), file)
    assert (response.status_code, body(response)) == (200, PNG)


@pytest.mark.django_db
def test_a_bucket_behind_a_domain_of_its_own_is_streamed(server: str, settings) -> None:
    """S5: no signing possible"""
    alias = in_bucket(server, custom_domain="files.example.com")
    settings.STORAGES = {**settings.STORAGES, "workspace": alias}
    assert downloads.build_download_response(get(), stored(PNG, "a.png")).status_code == 200


@pytest.mark.django_db
def test_a_bucket_that_does_not_answer_is_unavailable_and_takes_no_quota(settings, server: str) -> None:
    """A-S4.4: storage fails after the quota was taken"""
    alias = in_bucket(server)
    alias["OPTIONS"]["endpoint_url"] = "http://127.0.0.1:1"
    settings.STORAGES = {**settings.STORAGES, "workspace": alias}
    with pytest.raises(StorageUnavailable):
        stored(PNG, "a.png")
    use = quotas.get_usage(factories.ada().pk)
    assert (use.used_bytes, use.used_files, WorkspaceFile.objects.count()) == (0, 0, 0)


def test_objects_are_encrypted_when_asked_and_never_public(server: str, settings) -> None:
    """S5"""
    parameters = {"ServerSideEncryption": "AES256"}
    settings.STORAGES = {**settings.STORAGES, "workspace": in_bucket(server, object_parameters=parameters)}
    files_storage.write_object("ws/e/x", io.BytesIO(b"x"), 1)
    store = storages["workspace"]
    client = store.connection.meta.client
    head = client.head_object(Bucket=store.bucket_name, Key="ws/e/x")
    assert head["ServerSideEncryption"] == "AES256"
    grants = client.get_object_acl(Bucket=store.bucket_name, Key="ws/e/x")["Grants"]
    assert not [grant for grant in grants if "URI" in grant["Grantee"]]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"WORKSPACE_S3_REGION": "eu-central-1"},
        {"WORKSPACE_S3_PATH_STYLE": True, "WORKSPACE_S3_REGION": "eu-central-1"},
        {"WORKSPACE_S3_PATH_STYLE": True, "WORKSPACE_S3_ENDPOINT": "https://minio.example.com:9000"},
        {"WORKSPACE_S3_ENDPOINT": "https://r2.example.com"},
    ],
)
def test_pages_may_show_what_signed_addresses_lead_to(
    monkeypatch: pytest.MonkeyPatch, settings, tmp_path, given: dict[str, object]
) -> None:
    """S5: the storage origin is in img-src and media-src"""
    keys = {"WORKSPACE_S3_ACCESS_KEY": "k", "WORKSPACE_S3_SECRET_KEY": "s", "WORKSPACE_S3_BUCKET": "files"}
    for name, value in {"WORKSPACE_STORAGE": "s3", **keys, **given}.items():
        monkeypatch.setattr(variables, name, value)
    workspace = storage.build_workspace_storage(tmp_path)
    settings.STORAGES = {**settings.STORAGES, "workspace": workspace.alias}
    url = files_storage.make_signed_url("ws/x", content_type="image/png", disposition="inline")
    assert url is not None
    parts = urlsplit(url)
    assert f"{parts.scheme}://{parts.netloc}" in workspace.origins


# --- a proxy that sends files itself -----------------------------------------------------------------


@pytest.mark.django_db
def test_a_proxy_gets_the_path_of_the_object(settings) -> None:
    """S5: X-Accel-Redirect when configured"""
    settings.WORKSPACE_ACCEL_PREFIX = "/_files/"
    file = stored(b"hello", "a.txt")
    response = downloads.build_download_response(get(), file)
    assert response["X-Accel-Redirect"] == f"/_files/{file.storage_key}"
    assert response["Content-Disposition"] == 'attachment; filename="a.txt"'
    storages["workspace"].delete(file.storage_key)
    with pytest.raises(StorageUnavailable):
        downloads.build_download_response(get(), file)


@pytest.mark.parametrize(("prefix", "mode"), [("", 0o600), ("/_files/", 0o640)])
def test_a_proxy_that_sends_files_may_read_them(prefix, mode, settings, monkeypatch, tmp_path) -> None:
    """S4: files of our own user alone; S5: but for the proxy in our group, where it sends them itself"""
    monkeypatch.setattr(variables, "WORKSPACE_ACCEL_PREFIX", prefix)
    settings.STORAGES = {**settings.STORAGES, "workspace": storage.build_workspace_storage(tmp_path).alias}
    name = storages["workspace"].save("ws/x", ContentFile(b"hello"))
    assert (tmp_path / name).stat().st_mode & 0o777 == mode
