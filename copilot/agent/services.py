"""Share the publisher, group commits and streaming rows among the turns of one worker process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID
from weakref import WeakSet

import structlog

from config.core.batching import GroupCommit
from config.core.errors import FenceLost
from copilot.chat import messages
from copilot.chat.messages import NewMessage, PlacedMessage, StreamingDraft
from copilot.realtime.publisher import Publisher, TurnOutbox

if TYPE_CHECKING:
    from copilot.tools.mcp.connection_pool import McpConnectionPool

log = structlog.get_logger(__name__)

CHECKPOINT_SECONDS = 2.0
CHECKPOINT_CHARACTERS = 4_000


@dataclass(eq=False, slots=True)
class StreamingRow:
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

    def to_draft(self, *, streaming: bool) -> StreamingDraft:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        self.unsaved = 0
        return StreamingDraft(
            row_id=self.row_id,
            turn_id=self.turn_id,
            fence=self.fence,
            content=self.parts[0] if self.parts else "",
            streaming=streaming,
        )


class ProcessServices:
    def __init__(self, refused: Callable[[TurnOutbox, str], None], recovered: Callable[[], None]) -> None:
        self.publisher = Publisher(refused, recovered)
        self._connections: asyncio.Task[McpConnectionPool] | None = None
        self.open_rows: set[StreamingRow] = set()
        self._row_commits: GroupCommit[NewMessage, PlacedMessage | None] = GroupCommit(_append_rows)
        self._draft_commits: GroupCommit[StreamingDraft, bool] = GroupCommit(_save_drafts)
        self._background: set[asyncio.Task[None]] = set()
        self._optional: WeakSet[asyncio.Task[None]] = WeakSet()  # of the background tasks, those to cancel

    async def append_row(self, row: NewMessage) -> PlacedMessage | None:
        """Store a row; return None if it was refused because of an older fence or a second result."""
        return await self._row_commits.write(row)

    async def finish_row(self, row: StreamingRow) -> None:
        self.open_rows.discard(row)
        if not await self._draft_commits.write(row.to_draft(streaming=False)):
            raise FenceLost(f"row {row.row_id} belongs to a newer run of turn {row.turn_id}")

    async def checkpoint_all(self) -> None:
        """Store what has been streamed so far, for all turns in one statement."""
        growing = [row for row in self.open_rows if row.unsaved]
        await asyncio.gather(*(self.checkpoint_row(row) for row in growing))

    async def checkpoint_row(self, row: StreamingRow) -> None:
        await self._draft_commits.write(row.to_draft(streaming=True))

    def run_in_background(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run work that must be done but may not delay an answer."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_done)
        return task

    def run_until_shutdown(self, work: Coroutine[object, object, None]) -> None:
        """Run work that may be lost: a shutdown cancels it instead of waiting."""
        self._optional.add(self.run_in_background(work))

    def _on_background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("turn_background_work_failed", exc_info=task.exception())

    async def connect_mcp(self) -> McpConnectionPool:
        """Return the MCP connections, importing the heavy SDK on first use."""
        if self._connections is None:
            self._connections = asyncio.create_task(asyncio.to_thread(_create_connections))
        return await asyncio.shield(self._connections)

    async def close(self) -> None:
        if self._connections is not None:
            await (await self._connections).close()

    async def wait_for_background(self) -> None:
        for task in self._optional:
            task.cancel()
        while self._background:
            await asyncio.wait(self._background)


def _create_connections() -> McpConnectionPool:
    from copilot.tools.mcp.connection_pool import McpConnectionPool

    return McpConnectionPool()


def _append_rows(rows: Sequence[NewMessage]) -> list[PlacedMessage | None]:
    placed = messages.append_messages(rows)
    return [placed.get(row.id) for row in rows]


def _save_drafts(drafts: Sequence[StreamingDraft]) -> list[bool]:
    """Save one draft per row and run; a final draft wins over a checkpoint in the same batch."""
    latest: dict[tuple[UUID, int], StreamingDraft] = {}
    for draft in drafts:
        key = (draft.row_id, draft.fence)
        if key not in latest or latest[key].streaming:
            latest[key] = draft
    saved = messages.save_drafts(list(latest.values()))
    return [(draft.row_id, draft.fence) in saved for draft in drafts]
