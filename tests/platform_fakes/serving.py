"""A fake's HTTP server on a port of its own, in a thread; tests talk to the object, our code to the port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

STARTED_SECONDS = 20


class Fake:
    """What all fakes share. `refused` holds every rule of the platform that we broke: a test expects it empty."""

    def __init__(self) -> None:
        self.url = ""
        self.refused: list[str] = []
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop  # while it runs
        self._ready = threading.Event()

    def app(self) -> web.Application:
        raise NotImplementedError

    def refuse(self, what: str) -> None:
        self.refused.append(what)

    async def _serve(self, port: int) -> web.AppRunner:
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        return runner

    def run(self, port: int = 0) -> None:
        """In this thread, until stopped."""
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        runner = self.loop.run_until_complete(self._serve(port))
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(runner.cleanup())
            self.loop.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        assert self._ready.wait(STARTED_SECONDS)
        try:
            yield
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join(STARTED_SECONDS)


def answer(payload: object, status: int = 200, **headers: str) -> web.Response:
    """JSON without a charset, as the vendors send it: discord.py compares the type as a whole."""
    import json

    return web.Response(
        body=json.dumps(payload).encode(),
        status=status,
        headers={"Content-Type": "application/json", **headers},
    )
