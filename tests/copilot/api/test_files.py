"""Workspace files over REST (S3, S4, S6, S18)."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from copilot.files import quotas, storage
from copilot.models import WorkspaceFile
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, NOT_FOUND, V1, code_of, person, program

pytestmark = pytest.mark.django_db
FILES = f"{V1}/files"


def upload(client, *files, **fields):
    parts = [SimpleUploadedFile(name, content) for name, content in files]
    return client.post(FILES, {"files": parts, **fields})


def content(download):
    return b"".join(download.streaming_content)


def test_a_file_goes_in_and_comes_out_unchanged():
    client = program(factories.ada())
    [result] = upload(client, ("notes.txt", b"hello")).json()["results"]
    assert (result["status"], result["file"]["name"], result["file"]["size"]) == (201, "notes.txt", 5)
    download = client.get(f"{FILES}/{result['file']['id']}/download")
    assert content(download) == b"hello"
    assert download["Content-Disposition"] == 'attachment; filename="notes.txt"'
    assert download["X-Content-Type-Options"] == "nosniff"


def test_html_is_never_served_inline():
    """A-S7.2"""
    client = program(factories.ada())
    [result] = upload(client, ("x.txt", b"<html><script>1</script>")).json()["results"]
    download = client.get(f"{FILES}/{result['file']['id']}/download?inline=1")
    assert download["Content-Type"] == "application/octet-stream"
    assert download["Content-Disposition"].startswith("attachment")
    content(download)


def test_some_files_may_be_refused_while_others_are_kept(monkeypatch):
    """S3: partial success."""
    small = quotas.StorageQuota(file_bytes=100, total_bytes=250, files=10)
    monkeypatch.setitem(quotas.PLAN_QUOTAS, "FREE", small)
    answer = upload(
        program(factories.ada()),
        ("a.txt", b"a" * 90),
        ("b.txt", b"b" * 101),
        ("c.txt", b"c" * 100),
        ("d.txt", b"d" * 90),
    )
    assert answer.status_code == 201
    assert [result["status"] for result in answer.json()["results"]] == [201, 413, 201, 409]
    errors = [result["error"] and result["error"]["code"] for result in answer.json()["results"]]
    assert errors == [None, "file_too_large", None, "quota_exceeded"]
    assert answer.json()["results"][1]["error"]["limit_bytes"] == 100
    assert WorkspaceFile.objects.count() == 2


def test_a_single_refused_file_is_a_refusal_of_its_own(monkeypatch):
    """S4: 413 naming the limit."""
    monkeypatch.setitem(
        quotas.PLAN_QUOTAS, "FREE", quotas.StorageQuota(file_bytes=10, total_bytes=100, files=10)
    )
    answer = upload(program(factories.ada()), ("a.txt", b"a" * 70_000))
    assert (answer.status_code, code_of(answer)) == (413, "file_too_large")


def test_a_file_that_is_cut_off_leaves_nothing_on_disk(monkeypatch, settings, tmp_path):
    """A-S4.2: temporary space is freed"""
    settings.FILE_UPLOAD_TEMP_DIR = str(tmp_path)
    monkeypatch.setitem(
        quotas.PLAN_QUOTAS, "FREE", quotas.StorageQuota(file_bytes=100_000, total_bytes=10**6, files=10)
    )
    answer = upload(program(factories.ada()), ("a.txt", b"a" * 300_000), ("b.txt", b"b"))
    assert [result["status"] for result in answer.json()["results"]] == [413, 201]
    assert list(tmp_path.iterdir()) == []


def test_malformed_ids_reach_neither_rows_nor_storage(monkeypatch, django_assert_num_queries):
    """A-S3.3"""
    client = program(factories.ada())
    client.get(FILES)  # the key's first use is written down
    monkeypatch.setattr(storage, "_get_storage", lambda: pytest.fail("the storage was asked"))
    for bad in ("550E8400-E29B-41D4-A716-446655440000", "..%2f", "%00", "x" * 10_000, "%2e%2e/usage"):
        for path in (bad, f"{bad}/download", f"{bad}/restore"):
            with django_assert_num_queries(1):  # the caller's key
                assert client.get(f"{FILES}/{path}").content == NOT_FOUND


def test_every_answer_about_files_is_taken_for_what_it_says(settings, monkeypatch):
    """A-S7.4: nosniff on every route, refusals included"""
    client, stranger = program(factories.ada()), program(factories.bob())
    [made] = upload(client, ("a.pdf", b"%PDF-1.7 " + b"x" * 100)).json()["results"]
    file = f"{FILES}/{made['file']['id']}"
    monkeypatch.setitem(
        quotas.PLAN_QUOTAS, "FREE", quotas.StorageQuota(file_bytes=10, total_bytes=100, files=10)
    )
    ids = {"ids": [made["file"]["id"]]}
    answers = [
        client.get(FILES),
        client.get(f"{FILES}/usage"),
        client.get(file),
        client.get(f"{file}/download"),
        client.get(f"{file}/download?inline=1", headers={"range": "bytes=1-2"}),
        client.get(f"{file}/download", headers={"range": "bytes=900-"}),
        client.get(f"{file}/download", headers={"if-none-match": f'"{WorkspaceFile.objects.get().sha256}"'}),
        client.head(f"{file}/download"),
        client.post(f"{FILES}/zip", ids, content_type=JSON),
        client.post(f"{FILES}/zip", {}, content_type=JSON),
        upload(client, ("a.txt", b"x" * 11)),
        stranger.get(f"{file}/download"),
        client.get(f"{FILES}/UPPER/download"),
        client.get(f"/files/{made['file']['id']}/render"),
        client.patch(file, {"name": "b.pdf"}, content_type=JSON),
        client.delete(file),
        client.post(f"{file}/restore"),
    ]
    statuses = [answer.status_code for answer in answers]
    assert statuses == [200, 200, 200, 200, 206, 416, 304, 200, 200, 400, 413, 404, 404, 404, 200, 204, 200]
    assert {answer["X-Content-Type-Options"] for answer in answers} == {"nosniff"}
    for answer in answers:
        answer.close()


def test_one_to_twenty_files_are_taken_at_once():
    """S3"""
    client = program(factories.ada())
    assert upload(client, *((f"{n}.txt", b"") for n in range(20))).status_code == 201
    for number in (0, 21, 150):
        refused = upload(client, *((f"{n}.txt", b"") for n in range(number)))
        assert (refused.status_code, code_of(refused)) == (400, "invalid_request")
    assert WorkspaceFile.objects.count() == 20


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"{}", "application/json"),
        (b"x", "text/plain"),
        (b"", ""),
    ],
)
def test_anything_but_a_form_is_415(content, content_type):
    refused = program(factories.ada()).generic("POST", FILES, content, content_type=content_type)
    assert (refused.status_code, code_of(refused)) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"broken", "multipart/form-data; boundary=x"),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x"),
        (b"anything", "multipart/form-data"),
        (b"anything", "multipart/form-data; boundary=" + "b" * 500),
    ],
)
def test_a_broken_form_is_400(content, content_type):
    refused = program(factories.ada()).generic("POST", FILES, content, content_type=content_type)
    assert (refused.status_code, code_of(refused)) == (400, "invalid_request")


def part(disposition: str, content: bytes = b"content") -> bytes:
    return f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"


@pytest.mark.parametrize("name", ['filename=""', "filename*=UTF-8''"])
def test_a_file_without_a_name_is_400_and_its_neighbours_are_not_kept(name):
    """S3, S18: the refusal says which part it is"""
    body = part('name="files"; filename="a.txt"') + part(f'name="second"; {name}') + b"--x--\r\n"
    refused = program(factories.ada()).generic(
        "POST", FILES, body, content_type="multipart/form-data; boundary=x"
    )
    assert (refused.status_code, code_of(refused)) == (400, "invalid_request")
    assert (
        refused.json()["error"]["message"] == "second: unknown field. Send `session` and files with a name."
    )
    assert not WorkspaceFile.objects.exists()


@pytest.mark.parametrize("name", ["..", "a/", "\u202e", "\x01"])
def test_a_name_with_nothing_left_of_it_is_file(name):
    """S4, A22.3: and never dropped in silence beside its neighbours"""
    body = part(f'name="files"; filename="{name}"') + part('name="files"; filename="b.txt"') + b"--x--\r\n"
    answer = program(factories.ada()).generic(
        "POST", FILES, body, content_type="multipart/form-data; boundary=x"
    )
    assert [result["file"]["name"] for result in answer.json()["results"]] == ["file", "b.txt"]


def test_unknown_form_fields_are_400_and_foreign_sessions_404():
    client = program(factories.ada())
    assert code_of(upload(client, ("a.txt", b"a"), colour="red")) == "invalid_request"
    for session in (factories.session(factories.bob()).pk, NOBODYS, "x"):
        assert upload(client, ("a.txt", b"a"), session=session).content == NOT_FOUND
    assert not WorkspaceFile.objects.exists()


def test_a_file_may_belong_to_a_session_and_is_found_by_it():
    client, session = program(factories.ada()), factories.session()
    upload(client, ("a.txt", b"a"), session=session.pk)
    upload(client, ("b.txt", b"b"))
    listed = client.get(f"{FILES}?session={session.pk}").json()["items"]
    assert [(file["name"], file["session_id"]) for file in listed] == [("a.txt", str(session.pk))]


def test_lists_are_searched_and_paged():
    """S3: limit and offset, has_more, newest first."""
    client = program(factories.ada())
    for number in range(5):
        upload(client, (f"report {number}.txt", b"x"))
    upload(program(factories.bob()), ("report of bob.txt", b"x"))
    page = client.get(f"{FILES}?q=report&limit=2&offset=1").json()
    assert [file["name"] for file in page["items"]] == ["report 3.txt", "report 2.txt"]
    assert (page["offset"], page["has_more"]) == (1, True)
    assert client.get(f"{FILES}?type=image/png").json()["items"] == []


def test_rename_delete_and_restore():
    client = program(factories.ada())
    file_id = upload(client, ("a.txt", b"a")).json()["results"][0]["file"]["id"]
    path = f"{FILES}/{file_id}"
    assert client.patch(path, {"name": "../b.txt"}, content_type=JSON).json()["name"] == "b.txt"
    assert client.delete(path).status_code == 204
    assert client.get(path).content == client.get(f"{path}/download").content == NOT_FOUND
    assert client.post(f"{path}/restore").json()["name"] == "b.txt"
    assert client.get(path).status_code == 200


def test_usage_says_what_is_taken_and_what_is_allowed():
    client = program(factories.ada())
    upload(client, ("a.txt", b"12345"))
    usage = client.get(f"{FILES}/usage").json()
    assert (usage["used_bytes"], usage["used_files"]) == (5, 1)
    assert usage["quota_bytes"] == 500 * 2**20
    assert usage["file_bytes"] == 50 * 2**20


def test_a_page_may_upload_with_its_cookie_and_form_token():
    browser = person(factories.ada(), csrf=True)
    browser.cookies["csrftoken"] = token = "a" * 32
    refused = upload(browser, ("a.txt", b"a"))
    assert (refused.status_code, code_of(refused)) == (403, "csrf_failed")
    assert upload(browser, ("a.txt", b"a"), csrfmiddlewaretoken=token).status_code == 201


def test_hostile_names_do_no_harm():
    client = program(factories.ada())
    for name in ("evil\r\nX-Injected: true.txt", "日本語.pdf", "a\x00b.txt", '"q\\.txt', "x" * 500 + ".txt"):
        answer = upload(client, (name, b"x"))
        assert answer.status_code == 201, name
        download = client.get(f"{FILES}/{answer.json()['results'][0]['file']['id']}/download")
        assert "X-Injected" not in download
        content(download)


def test_a_list_costs_the_same_statements_however_long(django_assert_num_queries):
    client = program(factories.ada())
    upload(client, *((f"{n}.txt", b"") for n in range(10)))
    client.get(FILES)
    with django_assert_num_queries(2):  # key and user, files
        assert len(client.get(FILES).json()["items"]) == 10
