"""The pictures of a conversation, read once per turn and off the event loop (A16.5, A29.2)."""

from __future__ import annotations

from collections.abc import Iterable

from copilot.providers.base import Entry, ImagePart
from copilot.rows import Row
from copilot.workspace import pictures, sniffing

MOST_BYTES = (
    64 * 1024 * 1024
)  # more than any provider takes in one request; the oldest beyond it become words


def load(rows: Iterable[Row], owner_id: int, chain: Iterable[Entry]) -> dict[str, ImagePart]:
    """By file id; nothing where no model of the chain could see it. Reads the database only if there are any."""
    named = {
        file.file_id: file.name
        for row in rows
        for file in row.attachments
        if not row.hidden and sniffing.is_native_image(file.type, file.size)
    }
    if not named or not any(entry.supports_images for entry in chain):
        return {}
    newest_first = list(reversed(named))
    found = pictures.images(owner_id, newest_first, most_bytes=MOST_BYTES)
    parts = {
        file_id: ImagePart(mime=image.mime, data=image.data, name=named[file_id], file_id=file_id)
        for file_id, image in found.items()
    }
    for part in parts.values():
        _ = part.base64  # made here, in a thread: a large one would hold up the loop
    return parts
