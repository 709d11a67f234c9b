"""Send a turn's files to its chat after the answer, or say where to find them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from django.conf import settings
from django.urls import reverse

from config.core import db
from config.core.errors import Conflict, RequestRefused
from copilot.chat import turn_details
from copilot.files import services as files
from copilot.realtime.payloads import ArtifactPayload
from linking.outbound.message_sync import MessageSync
from linking.outbound.records import OutboundTurn
from linking.platforms.base import PlatformAdapter

MAX_FILES = 10  # per turn; more would bury the answer
SCAN_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # waits while a file is still being scanned
ANSWER_FILENAME = "answer.md"


async def send_answer_file(delivery: MessageSync, text: str) -> None:
    """Send the whole answer as a file when it is too long for messages."""
    if not await delivery.send_file(ANSWER_FILENAME, ANSWER_FILENAME, text.encode()):
        await delivery.send_text_instead(
            ANSWER_FILENAME, f"*The answer can't be sent here as a file. {_web_hint(delivery.outbound_turn)}*"
        )


async def send_turn_files(delivery: MessageSync, adapter: PlatformAdapter) -> None:
    """Send the files that the turn created, each once, even if another process takes over."""
    outbound_turn = delivery.outbound_turn
    artifacts = await db.run_in_thread(turn_details.list_turn_artifacts, outbound_turn.turn_id)
    for file in artifacts[:MAX_FILES]:
        content = await _load_content(outbound_turn.owner_id, file, adapter.max_file_bytes)
        if content is None or not await delivery.send_file(file.file_id, file.name, content):
            name = file.name.replace("`", "'")
            await delivery.send_text_instead(
                file.file_id, f"*`{name}` can't be sent here.* {_web_hint(outbound_turn)}"
            )
    if len(artifacts) > MAX_FILES:
        await delivery.send_text_instead(
            "more", f"*{len(artifacts) - MAX_FILES} more files.* {_web_hint(outbound_turn)}"
        )


def _web_hint(outbound_turn: OutboundTurn) -> str:
    # Only the payer can open the session, so a server is not shown its address.
    if outbound_turn.address.scope == "server":
        return "The person who connected me can find it on the web."
    url = reverse("chat_session", args=[outbound_turn.session_id])
    return f"Find it on the web: {settings.SITE_URL}{url}"


async def _load_content(owner_id: int, file: ArtifactPayload, max_bytes: int) -> bytes | None:
    """Return None for a file that is empty, too large, quarantined or deleted."""
    if not 0 < file.size <= max_bytes:
        return None
    for pause in (*SCAN_PAUSES_SECONDS, None):
        try:
            return await db.run_in_thread(_read_file, owner_id, UUID(file.file_id))
        except Conflict:
            if pause is None:
                return None
            await asyncio.sleep(pause)
        except (RequestRefused, OSError):
            return None
    return None


def _read_file(owner_id: int, file_id: UUID) -> bytes:
    with files.open_file(files.get_file(owner_id, file_id)) as stream:
        return stream.read()
