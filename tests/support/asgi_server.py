"""Serve the ASGI application on a real port, in a thread beside the engine's."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import uvicorn

from config.core.redis import get_async_redis
from config.http.web_server import (
    BoundedHttpProtocol,
    BoundedWebSocketProtocol,
    StalledConnectionWatch,
)
from tests.support.turn_engine import until


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.watch = StalledConnectionWatch()

    async def on_tick(self, counter: int) -> bool:
        self.watch.cut_stalled(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await get_async_redis().aclose()


@contextmanager
def served(*, sockets: bool = False) -> Iterator[str]:
    """Serve the site and return its address; with `sockets` its pages can connect."""
    from config.asgi import application

    with socket.create_server(("127.0.0.1", 0)) as listener:
        ws: type[asyncio.Protocol] | Literal["none"] = BoundedWebSocketProtocol if sockets else "none"
        config = uvicorn.Config(
            application, loop="asyncio", lifespan="off", log_config=None, http=BoundedHttpProtocol, ws=ws
        )
        server = Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
