"""Filter a session's events to those of one bot account's own turns and reduce them to what bots may read."""

from __future__ import annotations

from uuid import UUID

import msgspec

from config.core import db
from config.core.json_values import JSON
from config.core.validation import parse_uuid
from copilot.chat import selectors as chat_selectors
from copilot.chat import turn_details
from copilot.realtime import event_log, fanout
from linking.conversations.services import BotAccount
from linking.event_projection import PROJECTIONS, EventFields, ProjectedEvent, project_event
from linking.inbound.access import is_own_turn


class EventVisibility:
    """The filter of one reader. It caches which turns belong to its bot, so that a delta costs no query."""

    def __init__(self, bot: BotAccount, session_id: UUID, turn_id: UUID | None = None) -> None:
        self.session_id = session_id
        self.turn_id = str(turn_id) if turn_id else None  # None: all turns of the session
        self._bot = bot
        # Ids of the messages that came through the bot, by turn; empty for turns of others.
        self._own_messages: dict[str, set[str]] = {}

    async def project_entry(self, entry: event_log.LogEntry) -> ProjectedEvent | None:
        if entry.kind not in PROJECTIONS:
            return None
        event: EventFields = msgspec.json.decode(entry.to_json_text())
        if entry.kind == "session.snapshot":
            return project_event(await self._filter_snapshot(event))
        return project_event(event) if await self._is_visible(event) else None

    async def _is_visible(self, event: EventFields) -> bool:
        turn_id = event.get("turn_id")
        if not isinstance(turn_id, str):
            return self.turn_id is None  # an event of the whole session
        if not await self._is_own_turn(turn_id):
            return False
        message = event.get("message")
        if event["kind"] != "message.added" or not isinstance(message, dict):
            return True
        return await self._is_own_message(turn_id, str(message["id"]))

    async def _is_own_turn(self, turn_id: str) -> bool:
        if self.turn_id is not None and turn_id != self.turn_id:
            return False
        if turn_id not in self._own_messages:
            self._own_messages[turn_id] = await db.run_in_thread(self._load_own_messages, turn_id)
        return bool(self._own_messages[turn_id])

    async def _is_own_message(self, turn_id: str, message_id: str) -> bool:
        # A message from the web may have joined the turn; the bot does not see it.
        if message_id not in self._own_messages[turn_id]:
            self._own_messages[turn_id] = await db.run_in_thread(self._load_own_messages, turn_id)
        return message_id in self._own_messages[turn_id]

    def _load_own_messages(self, turn_id: str) -> set[str]:
        parsed_id = parse_uuid(turn_id)
        turn = turn_details.get_turn_details(parsed_id) if parsed_id else None
        if parsed_id is None or turn is None or not is_own_turn(self._bot, turn):
            return set()
        return turn_details.list_message_ids_by_origin(parsed_id, self._bot.platform)

    async def _filter_snapshot(self, page: EventFields) -> EventFields:
        turn = page.get("turn")
        if isinstance(turn, dict) and not await self._is_own_turn(str(turn["id"])):
            turn = None
        if isinstance(turn, dict):
            turn = {**turn, "messages": await self._filter_messages(turn["messages"])}
        return {
            **page,
            "turn": turn,
            "messages": await self._filter_messages(page["messages"]),
            "approvals": page["approvals"] if turn else [],
            "questions": page["questions"] if turn else [],
        }

    async def _filter_messages(self, rows: JSON) -> JSON:
        assert isinstance(rows, list)
        return [row for row in rows if isinstance(row, dict) and await self._is_message_visible(row)]

    async def _is_message_visible(self, row: EventFields) -> bool:
        turn_id = row.get("turn_id")
        if not isinstance(turn_id, str) or not await self._is_own_turn(turn_id):
            return False
        return row["kind"] != "user" or await self._is_own_message(turn_id, str(row["id"]))


async def build_visible_snapshot(visibility: EventVisibility, *, reset: bool) -> tuple[ProjectedEvent, str]:
    """Return the session's snapshot as this reader may see it, and the cursor to continue from."""
    page, cursor = await db.run_in_thread(chat_selectors.build_snapshot, visibility.session_id, reset=reset)
    snapshot = await visibility.project_entry(
        fanout.build_snapshot_entry(page, visibility.session_id, cursor)
    )
    assert snapshot is not None
    return snapshot, cursor
