"""Files that the agent made go into the chat behind its words; what a chat does not take is on the web (L19, L20)."""

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

MAX_FILES = 10  # of one turn; more would bury its words
SCAN_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # a file that is being checked is worth a little patience
ANSWER_FILENAME = "answer.md"


async def send_answer_file(delivery: MessageSync, text: str) -> None:
    """An answer too long for messages, whole."""
    if not await delivery.send_file(ANSWER_FILENAME, ANSWER_FILENAME, text.encode()):
        await delivery.send_text_instead(
            ANSWER_FILENAME, f"*The file was not taken here. {_web_hint(delivery.outbound_turn)}*"
        )


async def send_turn_files(delivery: MessageSync, adapter: PlatformAdapter) -> None:
    """Each once, also when another process goes on."""
    errand = delivery.outbound_turn
    made = await db.run_in_thread(turn_details.list_turn_artifacts, errand.turn_id)
    for file in made[:MAX_FILES]:
        content = await _load_content(errand.owner_id, file, adapter.max_file_bytes)
        if content is None or not await delivery.send_file(file.file_id, file.name, content):
            name = file.name.replace("`", "'")
            await delivery.send_text_instead(
                file.file_id, f"*`{name}` cannot be sent here.* {_web_hint(errand)}"
            )
    if len(made) > MAX_FILES:
        await delivery.send_text_instead("more", f"*{len(made) - MAX_FILES} more files.* {_web_hint(errand)}")


def _web_hint(errand: OutboundTurn) -> str:
    """Only the payer can open it; in a server nobody needs to know where that is."""
    if errand.address.scope == "server":
        return "Whoever connected me finds it on the web."
    return f"It is on the web: {settings.SITE_URL}{reverse('chat_session', args=[errand.session_id])}"


async def _load_content(owner_id: int, file: ArtifactPayload, most: int) -> bytes | None:
    """None for what is too large, in quarantine, or gone meanwhile."""
    if not 0 < file.size <= most:
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
