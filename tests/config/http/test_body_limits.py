"""Bodies over the cap are refused while they arrive, and nothing of them is kept (S4, A-S4.2, E3)."""

from __future__ import annotations

import asyncio
import json
import tempfile

import pytest
from asgiref.sync import sync_to_async

from config.asgi import application
from config.http import body_limits
from config.http.body_limits import ANONYMOUS_BODY_BYTES, BODY_BUDGET, get_body_limit
from copilot.accounts import api_keys
from copilot.models import StorageUse
from tests.support import factories

MEGABYTE = 2**20
MESSAGES = "/api/v1/sessions/00000000-0000-4000-8000-000000000001/messages"
UPLOADS = "/api/v1/files"


class Endless:
    """A client that sends pieces of a megabyte for as long as anybody reads them."""

    def __init__(self, path, *, pieces=None, headers=()):
        self.left = pieces
        self.read = 0
        self.answers = []
        if not any(name == b"content-length" for name, _ in headers):
            headers = [(b"transfer-encoding", b"chunked"), *headers]
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


async def test_a_body_in_pieces_is_cut_at_the_cap(ada):
    """A-S4.2: chunked, without a length"""
    client = await Endless(MESSAGES, headers=[ada[1]]).call()
    limit = get_body_limit(MESSAGES).limit_bytes
    assert (client.status, client.error["limit_bytes"]) == (413, limit)
    assert client.read == limit // MEGABYTE + 1
    assert len(client.answers) == 2


async def test_a_length_that_understates_the_body_changes_nothing(ada):
    """A-S4.2"""
    client = await Endless(MESSAGES, headers=[(b"content-length", b"5"), ada[1]]).call()
    assert client.status == 413


@pytest.fixture
def ada(transactional_db):
    """A key of hers, and herself."""
    user = factories.ada()
    return user, (
        b"authorization",
        f"Bearer {api_keys.create_api_key(user, scopes=api_keys.DEFAULT_SCOPES).token}".encode(),
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


async def test_an_upload_without_credentials_is_not_kept(transactional_db, no_disk):
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
    """S4: by the plan and the space used; small bodies are refused by the endpoint itself"""
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


# --- who sends it, how fast, and how much of it at once ------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_is_left_over():
    yield
    assert (BODY_BUDGET.authenticated_bytes, BODY_BUDGET.anonymous_bytes, dict(BODY_BUDGET._held)) == (
        0,
        0,
        {},
    )


@pytest.mark.attack
@pytest.mark.parametrize("path", [*body_limits.IMPORT_PATHS, UPLOADS, MESSAGES, "/accounts/login/"])
async def test_a_long_body_without_credentials_is_refused(transactional_db, no_disk, path):
    claim = (b"content-length", str(MEGABYTE).encode())
    said = await Endless(path, headers=[claim]).call()
    assert (said.status, said.error["code"], said.read) == (401, "unauthenticated", 0)
    pieces = await Endless(path).call()
    assert (pieces.status, pieces.error["code"], pieces.read) == (401, "unauthenticated", 1)


@pytest.mark.attack
async def test_a_ticket_for_a_socket_says_nothing_of_a_body(ada, no_disk):
    from copilot.realtime import authentication

    ticket = await sync_to_async(authentication.issue_ticket)(ada[0].pk)
    client = Endless(UPLOADS, headers=[(b"content-length", str(MEGABYTE).encode())])
    client.scope["query_string"] = f"ticket={ticket}".encode()
    assert (await client.call()).status == 401
    assert await sync_to_async(authentication.redeem_ticket)(ticket) is not None


@pytest.mark.attack
async def test_a_signed_body_may_be_as_long_as_platforms_make_them(transactional_db):
    client = await Endless("/hooks/telegram/nobody/").call()
    assert (client.status, client.error["code"], client.read) == (413, "too_large", 2)


class Trickle(Endless):
    """A client that sends a byte, and then nothing."""

    async def receive(self):
        self.read += 1
        if self.read > 1:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"x", "more_body": True}


@pytest.mark.attack
async def test_a_body_that_comes_too_slowly_is_given_up(monkeypatch, no_disk):
    monkeypatch.setattr(body_limits, "FIRST_BYTE_GRACE_SECONDS", 0.05)
    client = await Trickle("/accounts/login/", headers=[(b"content-length", b"60000")]).call()
    assert (client.status, client.error["code"]) == (408, "body_too_slow")


class Paced(Endless):
    """A client that sends its pieces a while apart."""

    def __init__(self, *args, size, seconds, **options):
        super().__init__(*args, **options)
        self.size, self.seconds = size, seconds

    async def receive(self):
        event = await super().receive()
        await asyncio.sleep(self.seconds)
        return event | {"body": b"x" * self.size}


async def test_what_counts_is_the_rate_not_the_time(monkeypatch, settings):
    monkeypatch.setattr(body_limits, "FIRST_BYTE_GRACE_SECONDS", 0.05)
    settings.BODY_BYTES_PER_SECOND = 10_000
    quick = await Paced("/nowhere", size=1_000, seconds=0.02, pieces=20).call()
    assert quick.status == 404


@pytest.mark.attack
async def test_an_account_has_so_much_on_its_way_at_once(ada, settings):
    settings.BODIES_PER_ACCOUNT_BYTES = 3 * MEGABYTE
    waits, leaves = asyncio.Event(), asyncio.Event()

    class Waiting(Endless):
        async def receive(self):
            if self.read == 2:
                waits.set()
                await leaves.wait()
                return {"type": "http.disconnect"}
            return await super().receive()

    first = asyncio.create_task(Waiting(UPLOADS, headers=[ada[1]]).call())
    await waits.wait()
    second = await Endless(UPLOADS, headers=[ada[1]]).call()
    assert (second.status, second.error["code"], second.read) == (429, "too_many_uploads", 2)
    assert dict(second.answers[0]["headers"])[b"retry-after"] == b"10"
    claim = (b"content-length", str(2 * MEGABYTE).encode())
    assert (
        (await Endless(UPLOADS, headers=[ada[1], claim]).call()).status,
        BODY_BUDGET.authenticated_bytes,
    ) == (
        429,
        2 * MEGABYTE,
    )
    settings.BODIES_PER_ACCOUNT_BYTES, settings.BODIES_BYTES = 100 * MEGABYTE, 3 * MEGABYTE
    third = await Endless(UPLOADS, headers=[ada[1]]).call()
    assert (third.status, third.error["code"]) == (503, "too_many_uploads")
    leaves.set()
    await first


@pytest.mark.attack
async def test_requests_without_credentials_share_a_limit_of_bytes_in_flight(settings):
    settings.BODIES_OF_STRANGERS_BYTES = 8 * ANONYMOUS_BODY_BYTES
    leaves, waiting = asyncio.Event(), []

    class Waiting(Endless):
        async def receive(self):
            self.read += 1
            if self.read > 1:
                self.begun.set()
                await leaves.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": b"x" * ANONYMOUS_BODY_BYTES, "more_body": True}

    async def begin(number):
        client = Waiting("/nowhere")
        client.begun = asyncio.Event()
        client.scope["client"] = (f"192.0.2.{number}", 1)
        waiting.append(asyncio.create_task(client.call()))
        begun = asyncio.create_task(client.begun.wait())
        await asyncio.wait({waiting[-1], begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        return client

    for number in (1, 1, 2, 2, 3, 3, 4, 4):
        assert not (await begin(number)).answers
    assert ((await begin(1)).status, (await begin(5)).status) == (429, 503)
    leaves.set()
    await asyncio.gather(*waiting)


@pytest.mark.attack
async def test_a_disk_that_is_nearly_full_takes_no_more(ada, settings):
    settings.BODIES_LEAVE_FREE_BYTES = 2**60
    claim = (b"content-length", str(30 * MEGABYTE).encode())
    client = await Endless(UPLOADS, headers=[ada[1], claim]).call()
    assert (client.status, client.error["code"], client.read) == (503, "too_many_uploads", 0)
    pieces = await Endless(UPLOADS, headers=[ada[1]]).call()
    assert (pieces.status, pieces.read) == (503, 17)


async def test_a_request_without_a_body_is_passed_on_as_it_is(transactional_db):
    class Asking(Endless):
        async def receive(self):
            self.read += 1
            if self.read > 1:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": b"", "more_body": False}

    client = Asking("/nowhere")
    client.scope |= {"method": "GET", "headers": [(b"host", b"testserver")]}
    assert (await client.call()).status == 404
