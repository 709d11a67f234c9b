"""Workspace files over REST (S3): upload, list, read, rename, delete, restore, download, usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import Field
from rest_framework.parsers import MultiPartParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import metrics, queries
from copilot.api.doors import Door
from copilot.api.errors import UnsupportedMediaType
from copilot.api.parsing import Body, Clean, Query, body_of, query_of
from copilot.api.schema import MULTIPART_FILES
from copilot.api.uploads import FILES_PER_REQUEST, CappedUpload, Oversized
from copilot.commands import as_uuid
from copilot.errors import Detail, InvalidRequest, NotFound, Refused, TooLarge
from copilot.models import WorkspaceFile
from copilot.workspace import downloads, files, quotas, zips

_COUNTED = ("file_too_large", "quota_exceeded", "storage_unavailable")
LARGEST_FILE = max(quota.file_bytes for quota in quotas.QUOTAS.values())


class FilesQuery(Query):
    session: UUID | None = None
    q: Annotated[Clean, Field(max_length=255)] = ""
    type: Annotated[Clean, Field(max_length=127)] = ""
    limit: Annotated[int, Field(ge=1, le=files.PAGE_FILES)] = 50
    offset: Annotated[int, Field(ge=0, le=files.MAX_OFFSET)] = 0


class DownloadQuery(Query):
    inline: bool = False
    retry: Annotated[str, Field(alias="_retry", max_length=20)] = ""  # tells caches apart, and us nothing


class ZipBody(Body):
    ids: Annotated[list[Annotated[Clean, Field(max_length=64)]], Field(min_length=1, max_length=2000)]


class NewName(Body):
    name: Annotated[Clean, Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, kw_only=True)
class FileShown:
    id: str
    uri: str
    name: str
    type: str
    size: int
    session_id: str | None
    source: str
    scan: str
    created_at: str


@dataclass(frozen=True, kw_only=True)
class Upload:
    """What became of one file: exactly one of both is there."""

    name: str
    status: int
    file: FileShown | None = None
    error: dict[str, Detail] | None = None


@dataclass(frozen=True, kw_only=True)
class Uploads:
    results: list[Upload]


@dataclass(frozen=True, kw_only=True)
class FilesPage:
    items: list[FileShown]
    offset: int
    has_more: bool


@dataclass(frozen=True, kw_only=True)
class Usage:
    used_bytes: int
    used_files: int
    quota_bytes: int
    quota_files: int
    file_bytes: int


class FilesView(Door):
    parser_classes = [MultiPartParser]

    def initialize_request(self, request: HttpRequest, *args: object, **kwargs: object) -> Request:
        """The handler goes in first: a CSRF check may read the form before the caller is known."""
        self.upload = CappedUpload(LARGEST_FILE)
        request.upload_handlers = [self.upload]
        return super().initialize_request(request, *args, **kwargs)

    @operation("List files, newest first", answers={200: FilesPage}, query=FilesQuery)
    def get(self, request: Request) -> HttpResponse:
        asked = query_of(request, FilesQuery)
        page = files.page(
            self.caller_id,
            session_id=asked.session,
            q=asked.q,
            mime=asked.type,
            limit=asked.limit,
            offset=asked.offset,
        )
        items = [shown(file) for file in page.items]
        return answer(FilesPage(items=items, offset=page.offset, has_more=page.has_more))

    @operation("Upload up to 20 files", answers={201: Uploads}, body=MULTIPART_FILES)
    def post(self, request: Request) -> HttpResponse:
        if not request.content_type.lower().startswith("multipart/form-data"):
            raise UnsupportedMediaType("Send files as multipart/form-data.")
        quota = quotas.quota_of(self.caller_id)
        self.upload.limit_bytes = quota.file_bytes
        session_id = self._session_of(request._request)
        arrived = self.upload.arrived
        if not 1 <= len(arrived) <= FILES_PER_REQUEST:
            raise InvalidRequest(f"Send 1 to {FILES_PER_REQUEST} files; these are {len(arrived)}.")
        results = [_stored(self.caller_id, one, session_id, quota) for one in arrived]
        return _answered(results)

    def _session_of(self, request: HttpRequest) -> UUID | None:
        """Reading the form streams the files to disk."""
        fields = {name: value for name, value in request.POST.items() if name != "csrfmiddlewaretoken"}
        wanted = fields.pop("session", "")
        if fields:
            raise InvalidRequest(f"{next(iter(fields))[:100]}: neither `session` nor a file with a name.")
        if not wanted:
            return None
        session_id = as_uuid(str(wanted))
        if session_id is None:
            raise NotFound
        return queries.session_of(self.caller_id, session_id).id


class FileView(Door):
    @operation("Read what is known of a file", answers={200: FileShown})
    def get(self, request: Request, file_id: UUID) -> HttpResponse:
        return answer(shown(files.get(self.caller_id, file_id)))

    @operation("Rename a file", answers={200: FileShown}, body=NewName)
    def patch(self, request: Request, file_id: UUID) -> HttpResponse:
        return answer(shown(files.rename(self.caller_id, file_id, body_of(request, NewName).name)))

    @operation("Delete a file (can be undone for 30 days)", answers={204: None})
    def delete(self, request: Request, file_id: UUID) -> HttpResponse:
        files.delete(self.caller_id, file_id)
        return nothing()


class FileRestoreView(Door):
    @operation("Restore a deleted file", answers={200: FileShown})
    def post(self, request: Request, file_id: UUID) -> HttpResponse:
        return answer(shown(files.restore(self.caller_id, file_id)))


class FileScanView(Door):
    @operation("Scan a file again whose scan was given up", answers={202: FileShown})
    def post(self, request: Request, file_id: UUID) -> HttpResponse:
        return answer(shown(files.scan_again(self.caller_id, file_id)), 202)


class Anything(BaseRenderer):
    """For content negotiation alone: the file has the type it has."""

    media_type = "*/*"
    format = "file"


class DownloadView(Door):
    renderer_classes = [Anything]

    @operation("Download a file", answers={(200, "application/octet-stream"): bytes}, query=DownloadQuery)
    def get(self, request: Request, file_id: UUID) -> HttpResponseBase:
        inline = query_of(request, DownloadQuery).inline
        return downloads.respond(request._request, files.get(self.caller_id, file_id), inline=inline)


class ZipView(Door):
    renderer_classes = [Anything]
    write_scopes = ("read",)  # nothing is written: ids that are many do not fit into an address

    @operation(
        "Download several files as one archive",
        answers={(200, "application/zip"): bytes, (200, "application/octet-stream"): bytes},
        body=ZipBody,
    )
    def post(self, request: Request) -> HttpResponseBase:
        found, absent = files.chosen(self.caller_id, body_of(request, ZipBody).ids)
        return zips.respond(request._request, found, title="workspace", absent=absent)


class FileUsageView(Door):
    @operation("How much of the workspace is used", answers={200: Usage})
    def get(self, request: Request) -> HttpResponse:
        use = quotas.usage(self.caller_id)
        return answer(
            Usage(
                used_bytes=use.used_bytes,
                used_files=use.used_files,
                quota_bytes=use.quota.total_bytes,
                quota_files=use.quota.files,
                file_bytes=use.quota.file_bytes,
            )
        )


def shown(file: WorkspaceFile) -> FileShown:
    return FileShown(
        id=str(file.id),
        uri=f"workspace://{file.id}",
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        session_id=str(file.session_id) if file.session_id else None,
        source=file.source,
        scan=file.scan,
        created_at=queries.instant(file.created_at),
    )


def _stored(
    owner_id: int, arrived: UploadedFile[bytes] | Oversized, session_id: UUID | None, quota: quotas.Quota
) -> Upload:
    """One file's result; what refuses one says nothing about the next."""
    name = str(arrived.name)
    try:
        if isinstance(arrived, Oversized):
            raise _too_large(quota)
        file = files.store(owner_id, name=name, content=arrived, source="upload", session_id=session_id)
    except Refused as refusal:
        metrics.uploads.labels(refusal.code if refusal.code in _COUNTED else "refused").inc()
        return Upload(name=name, status=refusal.status, error=refusal.body())
    metrics.uploads.labels("stored").inc()
    return Upload(name=name, status=201, file=shown(file))


def _too_large(quota: quotas.Quota) -> TooLarge:
    limit = quota.file_bytes // quotas.MB
    return TooLarge(f"A file may have {limit} MB.", code="file_too_large", limit_bytes=quota.file_bytes)


def _answered(results: list[Upload]) -> HttpResponse:
    """Created when anything was; else the first refusal, with all of them."""
    if any(result.file for result in results):
        return answer(Uploads(results=results), 201)
    return answer({"error": results[0].error, "results": results}, results[0].status)
