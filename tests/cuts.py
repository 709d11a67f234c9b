"""Connections to Redis cut by the server: this test process's own, and nobody else's."""

from __future__ import annotations

from copilot.live.client import blocking


def cut_connections(*, listening: bool) -> None:
    """Those that listen to a channel, or those that do not."""
    client = blocking()
    number = client.connection_pool.connection_kwargs.get("db", 0)
    for one in client.client_list():
        if int(one["db"]) == number and (int(one["sub"]) > 0) == listening:
            client.client_kill_filter(_id=one["id"], skipme=True)
