"""Files as models take them natively: real pictures, not too large, in the formats that models know (A29.2)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from copilot.errors import StorageUnavailable
from copilot.models import WorkspaceFile
from copilot.workspace import files, sniffing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Image:
    mime: str
    data: bytes = field(repr=False)


def image(file: WorkspaceFile) -> Image | None:
    """The file as a model takes it natively, or None: magic bytes and stored type agree, at most 20 MiB (A29.2)."""
    if file.scan not in files.USABLE or not sniffing.is_native_image(file.mime, file.size_bytes):
        return None
    with files.open(file) as stream:
        content = stream.read()
    mime = sniffing.image_type(content)
    return Image(mime=mime, data=content) if mime == file.mime else None


def images(owner_id: int, file_ids: Sequence[str], *, most_bytes: int) -> dict[str, Image]:
    """Pictures of a conversation by id, the first ones given until `most_bytes`; what is gone is left out."""
    usable = WorkspaceFile.objects.filter(
        pk__in=file_ids, owner_id=owner_id, deleted_at=None, purged_at=None, scan__in=files.USABLE
    )
    rows = {str(file.id): file for file in usable}
    found: dict[str, Image] = {}
    for file_id in file_ids:
        if (file := rows.get(file_id)) is None:
            continue
        most_bytes -= file.size_bytes
        if most_bytes < 0:
            break
        if (picture := _image_if_there(file)) is not None:
            found[file_id] = picture
    return found


def _image_if_there(file: WorkspaceFile) -> Image | None:
    try:
        return image(file)
    except StorageUnavailable:
        _log.warning("the bytes of a picture cannot be read; it is sent as words")
        return None
