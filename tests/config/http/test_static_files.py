"""Static files are answered before Django is asked: whole, as they are now, and nothing where nothing changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from asgiref.testing import ApplicationCommunicator

from config.http.handler import StaticFilesMiddleware

SCRIPT = "/static/js/chat/event_reducer.js"


async def django(scope, receive, send) -> None:
    """Stands where Django stands."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"Django"})


async def asked(
    application: StaticFilesMiddleware, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    door = ApplicationCommunicator(application, scope)
    await door.send_input({"type": "http.request"})
    start, body = await door.receive_output(), await door.receive_output()
    await door.wait()
    return start["status"], {key.decode(): value.decode() for key, value in start["headers"]}, body["body"]


def ask(application: StaticFilesMiddleware, path: str, **given: str) -> tuple[int, dict[str, str], bytes]:
    return asyncio.run(asked(application, path, **given))


@pytest.fixture
def static(settings, tmp_path: Path) -> Path:
    settings.STATICFILES_DIRS = [*settings.STATICFILES_DIRS, tmp_path]
    return tmp_path


def test_a_file_is_sent_whole_with_its_type_and_is_nothing_else():
    status, headers, body = ask(StaticFilesMiddleware(django), SCRIPT)
    assert (status, headers["x-content-type-options"]) == (200, "nosniff")
    assert headers["content-type"].startswith("text/javascript")
    assert int(headers["content-length"]) == len(body)
    assert b"export function reduceEvent(" in body


def test_a_file_that_did_not_change_is_not_sent_again():
    application = StaticFilesMiddleware(django)
    _, headers, _ = ask(application, SCRIPT)
    assert ask(application, SCRIPT, if_modified_since=headers["last-modified"])[0] == 304
    assert ask(application, SCRIPT, if_none_match=headers["etag"])[0] == 304
    assert ask(application, SCRIPT, method="HEAD")[2] == b""
    assert ask(application, SCRIPT, method="POST")[0] == 405


def test_an_edited_file_is_sent_as_it_is_now(static: Path):
    """The length of what was there before would cut it, or make the browser wait for more."""
    application = StaticFilesMiddleware(django)
    (static / "note.txt").write_text("short")
    assert ask(application, "/static/note.txt")[2] == b"short"
    (static / "note.txt").write_text("much longer than before")
    _, headers, body = ask(application, "/static/note.txt")
    assert (body, headers["content-length"]) == (b"much longer than before", "23")


@pytest.mark.parametrize(
    "path",
    ["/chat/", "/static/nothing.js", "/static/../config/settings.py", "/static/", "/staticjs/socket.js"],
)
def test_whatever_is_no_file_is_djangos_to_answer(path: str):
    assert ask(StaticFilesMiddleware(django), path)[::2] == (299, b"Django")


def test_what_was_gathered_for_production_is_sent_compressed_and_kept_for_ever(settings, tmp_path: Path):
    """W4.3: hashed names, brotli or gzip as the browser takes it"""
    settings.WHITENOISE_AUTOREFRESH = settings.WHITENOISE_USE_FINDERS = False
    settings.STATIC_ROOT = str(tmp_path)
    (tmp_path / "a.css").write_text("a" * 500)
    (tmp_path / "a.css.gz").write_bytes(b"zipped")
    settings.WHITENOISE_IMMUTABLE_FILE_TEST = r"a\.css$"
    application = StaticFilesMiddleware(django)
    _, headers, body = ask(application, "/static/a.css", accept_encoding="gzip, br")
    assert (headers["content-encoding"], body) == ("gzip", b"zipped")
    assert "immutable" in headers["cache-control"]
    assert ask(application, "/static/a.css")[2] == b"a" * 500
