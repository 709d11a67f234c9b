"""Stream uploaded files to disk, and drop each file that exceeds the size limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import SkipFile, TemporaryFileUploadHandler
from django.http import QueryDict
from django.http.multipartparser import MultiPartParser
from django.utils.datastructures import MultiValueDict

from copilot.files import quotas
from copilot.realtime import authentication

MAX_FILES_PER_REQUEST = 20


@dataclass(frozen=True)
class UploadAllowance:
    """The largest body a sender may upload, and the error that a longer one gets."""

    sender: str  # empty for an unauthenticated sender
    limit_bytes: int
    code: Literal["unauthenticated", "quota_exceeded", "file_too_large"]
    figures: Mapping[str, object] = field(default_factory=dict)  # usage figures of a full workspace


def get_upload_allowance(scope: Mapping[str, Any]) -> UploadAllowance:
    """Decide from the handshake how much may be uploaded, before any of the body arrives."""
    # One file may exceed what is left of the quota, so that the others of the request are still stored.
    visitor = authentication.authenticate_handshake(
        authentication.HandshakeRequest.from_scope(scope), by_ticket=False
    )
    if visitor is None:
        return UploadAllowance("", 0, "unauthenticated")
    sender = f"user:{visitor.user_id}"
    use = quotas.get_usage(visitor.user_id)
    left = use.quota.total_bytes - use.used_bytes
    if left <= 0 or use.used_files >= use.quota.files:
        return UploadAllowance(sender, 0, "quota_exceeded", quotas.describe_usage(use))
    limit = min(MAX_FILES_PER_REQUEST * use.quota.file_bytes, left + use.quota.file_bytes)
    return UploadAllowance(sender, limit, "file_too_large")


@dataclass(frozen=True)
class OversizedFile:
    """A file that was dropped because it is too large."""

    name: str


class _UploadFormParser(MultiPartParser):
    """Keep files without a usable name, which Django would silently skip."""

    def sanitize_file_name(self, file_name: str) -> str:
        return super().sanitize_file_name(file_name) or "file"


class CappedUploadHandler(TemporaryFileUploadHandler):
    """Drop a file that exceeds the limit without failing the other files."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.received_files: list[UploadedFile[bytes] | OversizedFile] = []
        self._is_parsing = False

    def handle_raw_input(
        self,
        input_data: Any,  # a request, which the stubs of both ends type differently
        META: dict[str, str],  # noqa: N803 - Django passes it by this name
        content_length: int,
        boundary: str,
        encoding: str | None = None,
    ) -> tuple[QueryDict, MultiValueDict[str, UploadedFile[bytes]]] | None:
        """Parse the form with our parser, which calls this handler a second time."""
        if self._is_parsing:
            return None
        self._is_parsing = True
        return _UploadFormParser(META, input_data, [self], encoding).parse()

    def receive_data_chunk(self, raw_data: bytes, start: int) -> bytes | None:
        if start + len(raw_data) > self.limit_bytes:
            self.file.close()  # closing deletes the temporary file
            self.received_files.append(OversizedFile(str(self.file_name)))
            raise SkipFile
        return super().receive_data_chunk(raw_data, start)

    def file_complete(self, file_size: int) -> UploadedFile[bytes] | None:
        file = super().file_complete(file_size)
        if file is not None:
            self.received_files.append(file)
        return file
