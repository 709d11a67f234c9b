"""Remove what Redis holds of sessions: of those gone for good, or of all when Postgres went back in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from copilot.live import keys
from copilot.live.client import blocking


def wipe(session_ids: Sequence[str]) -> None:
    """One session at a time: its keys lie together, those of two may not."""
    for session_id in session_ids:
        blocking().unlink(
            keys.lease(session_id),
            keys.queue(session_id),
            keys.fence(session_id),
            keys.stop(session_id),
            keys.stopped_through(session_id),
            keys.log(session_id),
            keys.aside(session_id),
        )


def wipe_all(batch: int = 500) -> Iterator[set[str]]:
    """Remove the keys of every session, by SCAN; the sessions of each batch."""
    cursor = 0
    while True:
        cursor, names = blocking().scan(cursor, match=keys.OF_SESSIONS, count=batch)
        with blocking().pipeline(transaction=False) as pipe:
            for name in names:
                pipe.unlink(name)
            pipe.execute()
        yield {keys.session_of_key(name.decode()) for name in names if isinstance(name, bytes)}
        if cursor == 0:
            return
