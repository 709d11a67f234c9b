"""Files that the agent made go into the chat behind its words; what a chat does not take is on the web (L19, L20)."""

from __future__ import annotations

import asyncio
from uuid import UUID

from django.conf import settings
from django.urls import reverse

from copilot import turns
from copilot.errors import Conflict, Refused
from copilot.events import ArtifactView
from copilot.queries import readers
from copilot.workspace import files
from linking.outbound.delivering import Delivery
from linking.outbound.records import Errand
from linking.platforms.base import Adapter

MOST_FILES = 10  # of one turn; more would bury its words
SCAN_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # a file that is being checked is worth a little patience
ANSWER = "answer.md"


async def enclose_answer(delivery: Delivery, text: str) -> None:
    """An answer too long for messages, whole."""
    if not await delivery.send_file(ANSWER, ANSWER, text.encode()):
        await delivery.say_beside(ANSWER, f"*The file was not taken here. {_where(delivery.errand)}*")


async def enclose_files(delivery: Delivery, adapter: Adapter) -> None:
    """Each once, also when another process goes on."""
    errand = delivery.errand
    made = await readers.in_thread(turns.files_of, errand.turn_id)
    for file in made[:MOST_FILES]:
        content = await _content(errand.owner_id, file, adapter.file_bytes)
        if content is None or not await delivery.send_file(file.file_id, file.name, content):
            name = file.name.replace("`", "'")
            await delivery.say_beside(file.file_id, f"*`{name}` cannot be sent here.* {_where(errand)}")
    if len(made) > MOST_FILES:
        await delivery.say_beside("more", f"*{len(made) - MOST_FILES} more files.* {_where(errand)}")


def _where(errand: Errand) -> str:
    """Only the payer can open it; in a server nobody needs to know where that is."""
    if errand.address.scope == "server":
        return "Whoever connected me finds it on the web."
    return f"It is on the web: {settings.SITE_URL}{reverse('chat_session', args=[errand.session_id])}"


async def _content(owner_id: int, file: ArtifactView, most: int) -> bytes | None:
    """None for what is too large, in quarantine, or gone meanwhile."""
    if not 0 < file.size <= most:
        return None
    for pause in (*SCAN_PAUSES_SECONDS, None):
        try:
            return await readers.in_thread(_read, owner_id, UUID(file.file_id))
        except Conflict:
            if pause is None:
                return None
            await asyncio.sleep(pause)
        except (Refused, OSError):
            return None
    return None


def _read(owner_id: int, file_id: UUID) -> bytes:
    with files.open(files.get(owner_id, file_id)) as stream:
        return stream.read()
