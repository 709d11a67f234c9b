"""What the turns of one worker process share: the publisher, the group commits, the drafts to checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from copilot import history
from copilot.agent.commits import GroupCommit
from copilot.errors import FenceLost
from copilot.history import Draft, NewRow, Placed
from copilot.live.publisher import Outbox, Publisher

if TYPE_CHECKING:
    from copilot.tools.mcp_client import Connections

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 2.0
CHECKPOINT_CHARACTERS = 4_000


@dataclass(eq=False, slots=True)
class OpenRow:
    """A text or reasoning row while it streams."""

    row_id: UUID
    turn_id: UUID
    fence: int
    kind: str = "assistant"
    block_id: str = ""
    parts: list[str] = field(default_factory=list)
    unsaved: int = 0  # characters since the last checkpoint

    def extend(self, delta: str) -> None:
        self.parts.append(delta)
        self.unsaved += len(delta)

    def draft(self, *, streaming: bool) -> Draft:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        self.unsaved = 0
        return Draft(
            row_id=self.row_id,
            turn_id=self.turn_id,
            fence=self.fence,
            content=self.parts[0] if self.parts else "",
            streaming=streaming,
        )


class Services:
    """One per process, on its event loop."""

    def __init__(self, refused: Callable[[Outbox, str], None], recovered: Callable[[], None]) -> None:
        self.publisher = Publisher(refused, recovered)
        self._connections: asyncio.Task[Connections] | None = None
        self.open_rows: set[OpenRow] = set()
        self._rows: GroupCommit[NewRow, Placed | None] = GroupCommit(_append)
        self._drafts: GroupCommit[Draft, bool] = GroupCommit(_save)
        self._background: set[asyncio.Task[None]] = set()

    async def append(self, row: NewRow) -> Placed | None:
        """Store a row; None when it was refused (an older fence, a second result)."""
        return await self._rows.write(row)

    async def finish(self, row: OpenRow) -> None:
        """The row is complete: store it as final."""
        self.open_rows.discard(row)
        if not await self._drafts.write(row.draft(streaming=False)):
            raise FenceLost(f"row {row.row_id} belongs to a newer run of turn {row.turn_id}")

    async def checkpoint(self) -> None:
        """Store what has been streamed so far, for all turns in one statement (A3.2)."""
        growing = [row for row in self.open_rows if row.unsaved]
        await asyncio.gather(*(self.checkpoint_row(row) for row in growing))

    async def checkpoint_row(self, row: OpenRow) -> None:
        await self._drafts.write(row.draft(streaming=True))

    def in_background(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Work that must be done and may not delay an answer."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._settled)
        return task

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work of a turn failed", exc_info=task.exception())

    async def reaching_out(self) -> Connections:
        """The connections to MCP servers; the SDK is heavy, and comes when somebody first has a server."""
        if self._connections is None:
            self._connections = asyncio.create_task(asyncio.to_thread(_connections))
        return await asyncio.shield(self._connections)

    async def close(self) -> None:
        if self._connections is not None:
            await (await self._connections).close()

    async def settle(self) -> None:
        """Wait for the background work that is under way."""
        while self._background:
            await asyncio.wait(self._background)


def _connections() -> Connections:
    from copilot.tools.mcp_client import Connections

    return Connections()


def _append(rows: Sequence[NewRow]) -> list[Placed | None]:
    placed = history.append(rows)
    return [placed.get(row.id) for row in rows]


def _save(drafts: Sequence[Draft]) -> list[bool]:
    """One draft per row and run: a row's end that shares a batch with its checkpoint is what counts."""
    latest: dict[tuple[UUID, int], Draft] = {}
    for draft in drafts:
        key = (draft.row_id, draft.fence)
        if key not in latest or latest[key].streaming:
            latest[key] = draft
    saved = history.save(list(latest.values()))
    return [(draft.row_id, draft.fence) in saved for draft in drafts]
