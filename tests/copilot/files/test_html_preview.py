"""The render route: whose scripts run, where, and for whom (S14)."""

from __future__ import annotations

import pytest
from django.test import Client

from copilot import checks
from copilot.files import services as files
from copilot.models import WorkspaceFile
from tests.support import factories, rest_clients

pytestmark = pytest.mark.django_db

PAGE = b"<!doctype html><title>Ship</title><p id=a>Ahoy"
POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data: blob:; media-src data: blob:; connect-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)


def stored(content: bytes = PAGE, name: str = "ship.html") -> WorkspaceFile:
    return files.store_file(factories.ada().pk, name=name, content=content, source="agent")


def ask(client: Client, path: str, dest: str | None = "iframe"):
    return client.get(path, headers={} if dest is None else {"Sec-Fetch-Dest": dest})


def path_of(file: WorkspaceFile) -> str:
    return f"/files/{file.pk}/render"


def test_a_frame_gets_the_document_behind_our_script_with_its_own_policy() -> None:
    """S14: the script comes before any of the document's own bytes, and the headers give it no origin"""
    response = ask(rest_clients.person(factories.ada()), path_of(stored(b"\xef\xbb\xbf" + PAGE)))
    assert response.status_code == 200
    assert response.content.startswith(b"<!doctype html><script>(() => {")
    assert response.content.endswith(b"</script>" + PAGE)
    assert response["Content-Security-Policy"] == POLICY
    assert response["Content-Type"] == "text/html; charset=utf-8"
    assert response["Cache-Control"] == "private, no-cache"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["X-Frame-Options"] == "SAMEORIGIN"
    assert response["Referrer-Policy"] == "no-referrer"
    assert response["Cross-Origin-Resource-Policy"] == "same-origin"
    assert not response.cookies


@pytest.mark.parametrize("dest", [None, "", "document", "empty", "script", "embed", "object", "IFRAME"])
def test_requests_outside_a_frame_get_nothing(dest: str | None) -> None:
    """S14: other or missing Sec-Fetch-Dest is 404"""
    assert ask(rest_clients.person(factories.ada()), path_of(stored()), dest).status_code == 404


def test_other_users_deleted_and_non_html_files_are_404() -> None:
    """S14, A-S3.1: the same rights as a download"""
    file = stored()
    assert ask(rest_clients.person(factories.bob()), path_of(file)).status_code == 404
    assert ask(Client(), path_of(file)).status_code == 404
    for name, content in (("a.svg", b"<svg xmlns='x'></svg>"), ("a.md", b"# A"), ("a.js", b"alert(1)")):
        assert ask(rest_clients.person(factories.ada()), path_of(stored(content, name))).status_code == 404
    files.trash_file(file.owner_id, file.pk)
    assert ask(rest_clients.person(factories.ada()), path_of(file)).status_code == 404
    assert (
        ask(rest_clients.person(factories.ada()), path_of(file).upper().replace("FILES", "files")).status_code
        == 404
    )


def test_what_is_scanned_or_too_large_is_not_shown(settings) -> None:
    """S4, S14: pending is 409, infected 403; the gate's own size still passes"""
    file, client = stored(), rest_clients.person(factories.ada())
    settings.ARTIFACT_RENDER_MAX = len(PAGE)
    assert ask(client, path_of(file)).status_code == 200
    settings.ARTIFACT_RENDER_MAX = len(PAGE) - 1
    assert ask(client, path_of(file)).status_code == 413
    for scan, status in (("pending", 409), ("failed", 409), ("infected", 403)):
        settings.ARTIFACT_RENDER_MAX = 10 * 2**20
        WorkspaceFile.objects.filter(pk=file.pk).update(scan=scan)
        assert ask(client, path_of(file)).status_code == status


def test_script_hosts_come_from_a_setting(settings) -> None:
    """S14, S20"""
    settings.ARTIFACT_SCRIPT_HOSTS = ["https://cdn.example"]
    policy = ask(rest_clients.person(factories.ada()), path_of(stored()))["Content-Security-Policy"]
    assert "script-src 'unsafe-inline' https://cdn.example;" in policy


@pytest.mark.parametrize(
    "host", ["https://a.example; sandbox allow-same-origin", "*", "http://a.example", "'self'"]
)
def test_a_script_host_that_is_no_origin_stops_the_boot(settings, host: str) -> None:
    """S20: a word of a policy must not become another policy"""
    settings.ARTIFACT_SCRIPT_HOSTS = ["https://cdn.example:8443", host]
    assert [problem.id for problem in checks.check_script_hosts(None)] == ["copilot.E010"]


def test_a_retry_is_ignored_by_the_download() -> None:
    """S14: the cache-buster tells the server nothing"""
    client, file = rest_clients.person(factories.ada()), stored(b"hello", "a.txt")
    answers = [client.get(f"/api/v1/files/{file.pk}/download?inline=1{more}") for more in ("", "&_retry=2")]
    assert [b"".join(answer) for answer in answers] == [b"hello", b"hello"]
    assert answers[0]["Content-Disposition"] == answers[1]["Content-Disposition"]


ANSWER = "Look:\n\n```python\nprint(1)\n```\n\n- item\n\n  ```html\n  <p>in a list</p>\n  ```\n\n    <i>indented</i>\n"


def test_a_code_block_is_found_by_message_and_index() -> None:
    """S14"""
    session = factories.session()
    row = factories.message(session, "assistant", content=ANSWER)
    said = factories.message(session, "user", content=ANSWER)
    client = rest_clients.person(factories.ada())

    def block(index: object, message=row):
        return ask(client, f"/chat/{session.pk}/messages/{message.pk}/blocks/{index}/render")

    assert block(0).content.endswith(b"</script>print(1)\n")
    assert block(1).content.endswith(b"</script><p>in a list</p>\n")
    assert block(1)["Content-Security-Policy"] == POLICY
    assert block(9).status_code == block(-1).status_code == block(0, said).status_code == 404
    foreign = ask(
        rest_clients.person(factories.bob()), f"/chat/{session.pk}/messages/{row.pk}/blocks/0/render"
    )
    assert foreign.status_code == 404
