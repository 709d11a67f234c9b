"""The pictures of a conversation, read once per turn and off the event loop (A16.5, A29.2)."""

from __future__ import annotations

from collections.abc import Iterable

from copilot.chat.message_rows import MessageRow
from copilot.files import content_types
from copilot.files import services as files
from copilot.providers.base import CatalogueEntry, ImagePart

MAX_IMAGE_BYTES = (
    64 * 1024 * 1024
)  # more than any provider takes in one request; the oldest beyond it become words


def load_images(
    rows: Iterable[MessageRow], owner_id: int, chain: Iterable[CatalogueEntry]
) -> dict[str, ImagePart]:
    """By file id; nothing where no model of the chain could see it. Reads the database only if there are any."""
    named = {
        file.file_id: file.name
        for row in rows
        for file in row.attachments
        if not row.hidden and content_types.is_native_image(file.type, file.size)
    }
    if not named or not any(entry.supports_images for entry in chain):
        return {}
    newest_first = list(reversed(named))
    found = files.load_images(owner_id, newest_first, most_bytes=MAX_IMAGE_BYTES)
    parts = {
        file_id: ImagePart(mime=image.mime, data=image.data, name=named[file_id], file_id=file_id)
        for file_id, image in found.items()
    }
    for part in parts.values():
        _ = part.base64  # made here, in a thread: a large one would hold up the loop
    return parts
