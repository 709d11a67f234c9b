"""Run the web process: uvicorn with its lightest parts, and a drain before the socket closes."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import socket
import sys
import time
from types import FrameType

import uvicorn

from config import env
from config.http.connection_limits import (
    BoundedHttpProtocol,
    BoundedWebSocketProtocol,
    StalledConnectionWatch,
)
from diagnostics.probes import runner

MAX_FRAME_BYTES = (
    1024 * 1024
)  # above the protocol's limit of 256 KB, so that the consumer can answer before it closes
SHUTDOWN_TIMEOUT_SECONDS = 5
CONNECTION_CHECK_TICKS = 10  # of uvicorn's tenths of a second
PING_INTERVAL_SECONDS = 30.0  # shorter than the minute after which proxies and phones drop an idle connection


class DrainingServer(uvicorn.Server):
    """On SIGTERM report "not ready" for a while first, so that load balancers send requests elsewhere."""

    def __init__(self, config: uvicorn.Config, *, drain_seconds: float) -> None:
        super().__init__(config)
        self.drain_seconds = drain_seconds
        self.exits_at: float | None = None
        self._connection_watch = StalledConnectionWatch()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        from diagnostics import loops  # its models can be imported once the application is loaded

        loops.start_loops(loops.WEB)  # alerts still go out if every worker is gone
        gc.collect()
        gc.freeze()  # loaded code stays, so the collector only has to look at sockets

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        runner.start_draining()
        if self.exits_at is None and sig == signal.SIGTERM and self.drain_seconds:
            self.exits_at = time.monotonic() + self.drain_seconds
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        if counter % CONNECTION_CHECK_TICKS == 0:
            self._connection_watch.cut_stalled(
                self.server_state.connections, asyncio.get_running_loop().time()
            )
        drained = self.exits_at is not None and time.monotonic() >= self.exits_at
        return drained or await super().on_tick(counter)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m config.http.web_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args(arguments)
    server = DrainingServer(
        uvicorn.Config(
            "config.asgi:application",
            host=options.host,
            port=options.port,
            loop="uvloop",
            http=BoundedHttpProtocol,
            ws=BoundedWebSocketProtocol,  # 8 KB less per socket than the older protocol
            ws_max_size=MAX_FRAME_BYTES,
            ws_ping_interval=PING_INTERVAL_SECONDS,
            ws_ping_timeout=PING_INTERVAL_SECONDS,
            ws_per_message_deflate=False,  # 34 KB per socket, and CPU on every delta
            lifespan="off",
            log_config=None,  # Django's LOGGING applies
            access_log=False,
            server_header=False,
            proxy_headers=False,  # config.http.request_headers handles them
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_SECONDS,
        ),
        drain_seconds=env.read_seconds("WEB_DRAIN_SECONDS", 0),
    )
    server.run()


if __name__ == "__main__":
    main(sys.argv[1:])
