"""Run a web server and a name server on this machine."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeResolver(AbstractResolver):
    """A name server for tests; a list of lists answers differently each time."""

    def __init__(self, names: dict[str, list[list[str]]]) -> None:
        self._names = names
        self.asked: list[str] = []

    def __call__(self) -> AbstractResolver:
        return self

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked.append(host)
        if host not in self._names:
            raise OSError("no such name")
        answers = self._names[host]
        return [
            _result(host, port, address) for address in (answers.pop(0) if len(answers) > 1 else answers[0])
        ]

    async def close(self) -> None:
        return None


def _result(host: str, port: int, address: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST
    )


@asynccontextmanager
async def serve_locally(handler: Handler) -> AsyncIterator[int]:
    """Start a server on 127.0.0.1 and return its port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
