"""What of a session's log one bot account is told: turns of its own conversations, reduced (L2, L13)."""

from __future__ import annotations

from uuid import UUID

import msgspec

from copilot import queries, turns
from copilot.commands import as_uuid
from copilot.events import JSON
from copilot.queries import readers
from linking.conversations import Bot
from linking.inbound import is_own
from linking.reduction import KINDS, Fields, Told, reduced


class Sight:
    """Of one reader; remembers which turns are its bot's, so that a delta costs no question."""

    def __init__(self, bot: Bot, session_id: UUID, turn_id: UUID | None = None) -> None:
        self.session_id = session_id
        self.turn_id = str(turn_id) if turn_id else None  # this one alone
        self._bot = bot
        self._own: dict[
            str, set[str]
        ] = {}  # turn → its messages that came through the bot; none: not its turn

    async def told(self, entry: readers.Entry) -> Told | None:
        if entry.kind not in KINDS:
            return None
        event: Fields = msgspec.json.decode(entry.text())
        if entry.kind == "session.snapshot":
            return reduced(await self._cut(event))
        return reduced(event) if await self._may_see(event) else None

    async def _may_see(self, event: Fields) -> bool:
        turn_id = event.get("turn_id")
        if not isinstance(turn_id, str):
            return self.turn_id is None  # of the session as a whole
        if not await self._is_own(turn_id):
            return False
        message = event.get("message")
        if event["kind"] != "message.added" or not isinstance(message, dict):
            return True
        return await self._came_with(turn_id, str(message["id"]))

    async def _is_own(self, turn_id: str) -> bool:
        if self.turn_id is not None and turn_id != self.turn_id:
            return False
        if turn_id not in self._own:
            self._own[turn_id] = await readers.in_thread(self._look, turn_id)
        return bool(self._own[turn_id])

    async def _came_with(self, turn_id: str, message_id: str) -> bool:
        """A message that was typed on the web may have joined the turn: it stays there."""
        if message_id not in self._own[turn_id]:
            self._own[turn_id] = await readers.in_thread(self._look, turn_id)
        return message_id in self._own[turn_id]

    def _look(self, turn_id: str) -> set[str]:
        known = as_uuid(turn_id)
        standing = turns.standing(known) if known else None
        if known is None or standing is None or not is_own(self._bot, standing):
            return set()
        return turns.came_with(known, self._bot.platform)

    async def _cut(self, page: Fields) -> Fields:
        """A page without what others said and were told."""
        turn = page.get("turn")
        if isinstance(turn, dict) and not await self._is_own(str(turn["id"])):
            turn = None
        if isinstance(turn, dict):
            turn = {**turn, "messages": await self._rows(turn["messages"])}
        return {
            **page,
            "turn": turn,
            "messages": await self._rows(page["messages"]),
            "approvals": page["approvals"] if turn else [],
            "questions": page["questions"] if turn else [],
        }

    async def _rows(self, rows: JSON) -> JSON:
        assert isinstance(rows, list)
        return [row for row in rows if isinstance(row, dict) and await self._shows(row)]

    async def _shows(self, row: Fields) -> bool:
        turn_id = row.get("turn_id")
        if not isinstance(turn_id, str) or not await self._is_own(turn_id):
            return False
        return row["kind"] != "user" or await self._came_with(turn_id, str(row["id"]))


async def snapshot(sight: Sight, *, reset: bool) -> tuple[Told, str]:
    """The session's page as this reader may see it, and where to read on."""
    page, cursor = await readers.in_thread(queries.snapshot, sight.session_id, reset=reset)
    told = await sight.told(readers.entry_of(page, sight.session_id, cursor))
    assert told is not None
    return told, cursor
