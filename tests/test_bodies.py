"""Bodies over the cap are refused while they arrive, and nothing of them is kept (S4, A-S4.2, E3)."""

from __future__ import annotations

import asyncio
import json
import tempfile

import pytest
from asgiref.sync import sync_to_async

from config.asgi import application
from config.bodies import cap_of
from copilot import api_keys
from copilot.models import StorageUse
from tests import make

MEGABYTE = 2**20
MESSAGES = "/api/v1/sessions/00000000-0000-4000-8000-000000000001/messages"
UPLOADS = "/api/v1/files"


class Endless:
    """A client that sends pieces of a megabyte for as long as anybody reads them."""

    def __init__(self, path, *, pieces=None, headers=()):
        self.left = pieces
        self.read = 0
        self.answers = []
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"host", b"testserver"), *headers],
            "query_string": b"",
        }

    async def receive(self):
        if self.read == self.left:
            await asyncio.Event().wait()
        self.read += 1
        more = self.left is None or self.read < self.left
        return {"type": "http.request", "body": b"x" * MEGABYTE, "more_body": more}

    async def send(self, event):
        self.answers.append(event)

    async def call(self):
        await application(self.scope, self.receive, self.send)
        return self

    @property
    def status(self):
        return self.answers[0]["status"]

    @property
    def error(self):
        return json.loads(self.answers[1]["body"])["error"]


@pytest.fixture
def no_disk(monkeypatch):
    """Nothing is spooled: a file on disk would have to be made here."""

    def refuse(*args, **fields):
        raise AssertionError("a body was kept on disk")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", refuse)


@pytest.mark.parametrize("path", [MESSAGES, "/accounts/login/", "/nowhere"])
async def test_a_body_that_says_it_is_too_long_is_not_read(path, no_disk):
    """A-S4.2"""
    claim = (b"content-length", str(10 * MEGABYTE).encode())
    client = await Endless(path, headers=[claim]).call()
    assert (client.status, client.error["code"], client.read) == (413, "too_large", 0)
    assert (b"connection", b"close") in client.answers[0]["headers"]


async def test_a_body_in_pieces_is_cut_at_the_cap(no_disk):
    """A-S4.2: chunked, without a length"""
    client = await Endless(MESSAGES).call()
    limit = cap_of(MESSAGES).limit_bytes
    assert (client.status, client.error["limit_bytes"]) == (413, limit)
    assert client.read == limit // MEGABYTE + 1
    assert len(client.answers) == 2


async def test_a_length_that_understates_the_body_changes_nothing(no_disk):
    """A-S4.2"""
    client = await Endless(MESSAGES, headers=[(b"content-length", b"5")]).call()
    assert client.status == 413


@pytest.fixture
def ada(transactional_db):
    """A key of hers, and herself."""
    user = make.ada()
    return user, (
        b"authorization",
        f"Bearer {api_keys.create(user, scopes=api_keys.USUAL_SCOPES).token}".encode(),
    )


async def test_uploads_have_a_cap_of_their_own_that_is_named(settings, ada):
    """S4: 413 file_too_large naming the limit"""
    settings.UPLOAD_BODY_MAX_BYTES = 5 * MEGABYTE
    client = await Endless(UPLOADS, headers=[ada[1]]).call()
    assert (client.status, client.error["code"]) == (413, "file_too_large")
    assert "5 MB" in client.error["message"]


async def test_a_body_within_the_cap_comes_through(ada):
    client = await Endless(UPLOADS, pieces=4, headers=[ada[1]]).call()
    assert client.status == 415
    assert client.read == 4


async def test_a_strangers_upload_is_not_kept(transactional_db, no_disk):
    """S4: refused before it is read, or, in pieces, before it would reach the disk"""
    claim = (b"content-length", str(30 * MEGABYTE).encode())
    said = await Endless(UPLOADS, headers=[claim]).call()
    assert (said.status, said.error["code"], said.read) == (401, "unauthenticated", 0)
    pieces = await Endless(UPLOADS).call()
    assert (pieces.status, pieces.error["code"]) == (401, "unauthenticated")


@pytest.mark.parametrize(
    ("used_bytes", "used_files", "claimed", "expected"),
    [
        (500 * MEGABYTE, 3, 3, (409, "quota_exceeded")),
        (0, 1000, 3, (409, "quota_exceeded")),
        (490 * MEGABYTE, 3, 70, (413, "file_too_large")),
        (0, 0, 700, (413, "file_too_large")),
    ],
    ids=["full", "too many files", "more than is left", "more than the plan holds"],
)
async def test_an_upload_that_cannot_fit_is_refused_before_it_is_read(
    ada, used_bytes, used_files, claimed, expected
):
    """S4: by the plan and what is used of it; small bodies are told by the door itself"""
    await sync_to_async(StorageUse.objects.create)(owner=ada[0], used_bytes=used_bytes, used_files=used_files)
    claim = (b"content-length", str(claimed * MEGABYTE).encode())
    client = await Endless(UPLOADS, headers=[claim, ada[1]]).call()
    assert ((client.status, client.error["code"]), client.read) == (expected, 0)
    if client.status == 409:
        told = {
            "used_bytes": used_bytes,
            "quota_bytes": 500 * MEGABYTE,
            "used_files": used_files,
            "quota_files": 1000,
        }
        assert told.items() <= client.error.items()
