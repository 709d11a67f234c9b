"""REST clients for tests: a person with a cookie, a program with a key, a reader of a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User, update_last_login
from django.contrib.sessions.backends.db import SessionStore
from django.core.asgi import get_asgi_application
from django.test import Client

from copilot.accounts import api_keys
from tests.support.timeouts import PATIENCE_SECONDS

JSON = "application/json"
V1 = "/api/v1"
NOT_FOUND = b'{"error":{"code":"not_found","message":"Not found."}}'
NOBODYS = "00000000-0000-4000-8000-000000000000"  # a well-formed id of nothing


def person(user: User, *, csrf: bool = False, at: float | None = None) -> Client:
    """A browser with a session cookie."""
    client = Client(enforce_csrf_checks=csrf)
    client.cookies[settings.SESSION_COOKIE_NAME] = signed_in(user, at=at)
    return client


def signed_in(user: User, *, at: float | None = None) -> str:
    """Create the cookie of a recent sign-in directly, which saves a dozen statements."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session["account_authentication_methods"] = [
        {"method": "password", "at": time.time() if at is None else at}
    ]
    session["account_authentication_methods_user"] = str(user.pk)
    session.save()
    update_last_login(User, user)
    return str(session.session_key)


def program(user: User, *scopes: str) -> Client:
    """A program with a key; by default it has the usual scopes."""
    made = api_keys.create_api_key(user, scopes=scopes or api_keys.DEFAULT_SCOPES)
    return Client(headers={"authorization": f"Bearer {made.token}"})


def code_of(response: object) -> str:
    """Check the form of a refusal and return its code."""
    body = response.json()  # type: ignore[attr-defined]
    assert set(body) >= {"error"}
    assert isinstance(body["error"]["message"], str)
    assert response["Content-Type"] == JSON  # type: ignore[index]
    return str(body["error"]["code"])


@dataclass(frozen=True)
class Frame:
    """One server-sent event."""

    id: str
    event: str
    data: dict[str, object]


class Stream:
    """Read an event stream from the ASGI application, as curl would."""

    def __init__(self, path: str, token: str, headers: dict[str, str]) -> None:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [
                (b"host", b"testserver"),
                (b"authorization", f"Bearer {token}".encode()),
                *((name.encode(), value.encode()) for name, value in headers.items()),
            ],
            "client": ("127.0.0.1", 1),
            "server": ("testserver", 80),
        }
        self.call: Any = ApplicationCommunicator(get_asgi_application(), scope)  # type: ignore[no-untyped-call]
        self.status = 0
        self.headers: dict[str, str] = {}
        self._buffer = b""

    async def open(self) -> None:
        await self.call.send_input({"type": "http.request", "body": b"", "more_body": False})
        start = await self.call.receive_output(timeout=PATIENCE_SECONDS)
        self.status = start["status"]
        self.headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}

    async def block(self) -> bytes:
        """Return the next block of lines, of any kind."""
        while b"\n\n" not in self._buffer:
            self._buffer += (await self.call.receive_output(timeout=PATIENCE_SECONDS))["body"]
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        return block

    async def frame(self) -> Frame:
        """Return the next event; comments and retry lines are skipped."""
        while True:
            fields = dict(
                line.split(b": ", 1) for line in (await self.block()).splitlines() if line[:1] != b":"
            )
            if b"data" in fields:
                return Frame(
                    fields.get(b"id", b"").decode(),
                    fields[b"event"].decode(),
                    msgspec.json.decode(fields[b"data"]),
                )

    async def until(self, kind: str) -> list[Frame]:
        found = [await self.frame()]
        while found[-1].event != kind:
            found.append(await self.frame())
        return found

    async def body(self) -> bytes:
        """Read a whole stream that ends."""
        content: list[bytes] = []
        while True:
            part = await self.call.receive_output(timeout=PATIENCE_SECONDS)
            content.append(part.get("body", b""))
            if not part.get("more_body"):
                return b"".join(content)

    async def hang_up(self) -> None:
        await self.call.send_input({"type": "http.disconnect"})
        await self.call.wait(timeout=PATIENCE_SECONDS)


@asynccontextmanager
async def opened(path: str, token: str, **headers: str) -> AsyncIterator[Stream]:
    stream = Stream(path, token, {name.replace("_", "-"): value for name, value in headers.items()})
    await stream.open()
    try:
        yield stream
    finally:
        if not stream.call.future.done():
            await stream.hang_up()


async def eventually(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition holds, and fail if it does not."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for knows no event
            await asyncio.sleep(0.01)
