"""Files on their way in: streamed to disk, counted, and cut off one by one at the limit (S4)."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import SkipFile, TemporaryFileUploadHandler


@dataclass(frozen=True)
class Oversized:
    """A file that was let go of; its bytes were not kept."""

    name: str


class CappedUpload(TemporaryFileUploadHandler):
    """A file that grows past the limit is dropped without failing its neighbours."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.arrived: list[UploadedFile[bytes] | Oversized] = []

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes | None:
        if start + len(raw_data) > self.limit_bytes:
            self.file.close()  # and with it what came so far leaves the disk
            self.arrived.append(Oversized(str(self.file_name)))
            raise SkipFile
        return super().receive_data_chunk(raw_data, start)

    def file_complete(self, file_size: int) -> UploadedFile[bytes] | None:
        file = super().file_complete(file_size)
        if file is not None:
            self.arrived.append(file)
        return file
