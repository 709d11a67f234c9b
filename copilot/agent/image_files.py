"""Load the images of a conversation, once per turn and off the event loop."""

from __future__ import annotations

from collections.abc import Iterable

from copilot.chat.message_rows import MessageRow
from copilot.files import content_types
from copilot.files import services as files
from copilot.providers.base import CatalogueEntry, ImagePart

# More than any provider accepts in one request; older images beyond it are described in text.
MAX_IMAGE_BYTES = 64 * 1024 * 1024


def load_images(
    rows: Iterable[MessageRow], owner_id: int, chain: Iterable[CatalogueEntry]
) -> dict[str, ImagePart]:
    """Load images by file id, if a model of the chain can see them. Without images, read nothing."""
    names = {
        file.file_id: file.name
        for row in rows
        for file in row.attachments
        if not row.hidden and content_types.is_native_image(file.type, file.size)
    }
    if not names or not any(entry.supports_images for entry in chain):
        return {}
    newest_first = list(reversed(names))
    found = files.load_images(owner_id, newest_first, most_bytes=MAX_IMAGE_BYTES)
    parts = {
        file_id: ImagePart(mime=image.mime, data=image.data, name=names[file_id], file_id=file_id)
        for file_id, image in found.items()
    }
    for part in parts.values():
        _ = part.base64  # encoded here in a thread, because a large image would block the event loop
    return parts
