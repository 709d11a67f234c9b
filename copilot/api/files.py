"""REST views for workspace files: upload, list, rename, delete, restore, scan and download."""

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

from config.core.api.errors import UnsupportedMediaType
from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_query
from config.core.api.schema import MULTIPART_FILES_SCHEMA
from config.core.api.views import document_operation, respond_json, respond_no_content
from config.core.errors import ErrorDetailValue, InvalidRequest, NotFound, PayloadTooLarge, RequestRefused
from config.core.json_values import parse_uuid
from copilot import metrics
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.api.uploads import MAX_FILES_PER_REQUEST, CappedUploadHandler, OversizedFile
from copilot.chat import selectors as chat_selectors
from copilot.files import downloads, quotas, zip_stream
from copilot.files import services as files
from copilot.models import WorkspaceFile
from copilot.realtime import payloads

_COUNTED_REFUSAL_CODES = ("file_too_large", "quota_exceeded", "storage_unavailable")
MAX_FILE_BYTES = max(quota.file_bytes for quota in quotas.PLAN_QUOTAS.values())


class FilesQuery(QueryParams):
    session: UUID | None = None
    q: Annotated[CleanText, Field(max_length=255)] = ""
    type: Annotated[CleanText, Field(max_length=127)] = ""
    limit: Annotated[int, Field(ge=1, le=files.MAX_PAGE_FILES)] = 50
    offset: Annotated[int, Field(ge=0, le=files.MAX_OFFSET)] = 0


class DownloadQuery(QueryParams):
    inline: bool = False
    # Ignored; clients send it to bypass caches.
    retry: Annotated[str, Field(alias="_retry", max_length=20)] = ""


class ZipBody(RequestBody):
    ids: Annotated[list[Annotated[CleanText, Field(max_length=64)]], Field(min_length=1, max_length=2000)]


class NewName(RequestBody):
    name: Annotated[CleanText, Field(min_length=1, max_length=1000)]


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
    """The result of one file: either `file` or `error` is set."""

    name: str
    status: int
    file: FileShown | None = None
    error: dict[str, ErrorDetailValue] | None = None


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


class FilesView(AuthenticatedApiView):
    parser_classes = [MultiPartParser]

    def initialize_request(self, request: HttpRequest, *args: object, **kwargs: object) -> Request:
        """Install the handler first: a CSRF check may read the form before the caller is known."""
        self.upload = CappedUploadHandler(MAX_FILE_BYTES)
        request.upload_handlers = [self.upload]
        return super().initialize_request(request, *args, **kwargs)

    @document_operation("List files, newest first", answers={200: FilesPage}, query=FilesQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, FilesQuery)
        page = files.get_file_page(
            self.caller_id,
            session_id=query.session,
            q=query.q,
            mime=query.type,
            limit=query.limit,
            offset=query.offset,
        )
        items = [serialize_file(file) for file in page.items]
        return respond_json(FilesPage(items=items, offset=page.offset, has_more=page.has_more))

    @document_operation("Upload up to 20 files", answers={201: Uploads}, body=MULTIPART_FILES_SCHEMA)
    def post(self, request: Request) -> HttpResponse:
        if not request.content_type.lower().startswith("multipart/form-data"):
            raise UnsupportedMediaType("Send files as multipart/form-data.")
        quota = quotas.get_quota(self.caller_id)
        self.upload.limit_bytes = quota.file_bytes
        session_id = self._parse_session_id(request._request)
        received = self.upload.received_files
        if not 1 <= len(received) <= MAX_FILES_PER_REQUEST:
            raise InvalidRequest(f"Send 1 to {MAX_FILES_PER_REQUEST} files; you sent {len(received)}.")
        results = [_store_upload(self.caller_id, file, session_id, quota) for file in received]
        return _render_uploads(results)

    def _parse_session_id(self, request: HttpRequest) -> UUID | None:
        """Read the form, which streams the files to disk, and return the session it names."""
        fields = {name: value for name, value in request.POST.items() if name != "csrfmiddlewaretoken"}
        session_text = fields.pop("session", "")
        if fields:
            raise InvalidRequest(
                f"{next(iter(fields))[:100]}: unknown field. Send `session` and files with a name."
            )
        if not session_text:
            return None
        session_id = parse_uuid(str(session_text))
        if session_id is None:
            raise NotFound
        return chat_selectors.get_session(self.caller_id, session_id).id


class FileView(AuthenticatedApiView):
    @document_operation("Read a file's details", answers={200: FileShown})
    def get(self, request: Request, file_id: UUID) -> HttpResponse:
        return respond_json(serialize_file(files.get_file(self.caller_id, file_id)))

    @document_operation("Rename a file", answers={200: FileShown}, body=NewName)
    def patch(self, request: Request, file_id: UUID) -> HttpResponse:
        return respond_json(
            serialize_file(files.rename_file(self.caller_id, file_id, parse_body(request, NewName).name))
        )

    @document_operation("Delete a file (can be undone for 30 days)", answers={204: None})
    def delete(self, request: Request, file_id: UUID) -> HttpResponse:
        files.trash_file(self.caller_id, file_id)
        return respond_no_content()


class FileRestoreView(AuthenticatedApiView):
    @document_operation("Restore a deleted file", answers={200: FileShown})
    def post(self, request: Request, file_id: UUID) -> HttpResponse:
        return respond_json(serialize_file(files.restore_file(self.caller_id, file_id)))


class FileScanView(AuthenticatedApiView):
    @document_operation("Scan a file again after its scan failed", answers={202: FileShown})
    def post(self, request: Request, file_id: UUID) -> HttpResponse:
        return respond_json(serialize_file(files.retry_scan(self.caller_id, file_id)), 202)


class AnyMediaTypeRenderer(BaseRenderer):
    """Take part in content negotiation only; the file keeps its own type."""

    media_type = "*/*"
    format = "file"


class DownloadView(AuthenticatedApiView):
    renderer_classes = [AnyMediaTypeRenderer]

    @document_operation(
        "Download a file", answers={(200, "application/octet-stream"): bytes}, query=DownloadQuery
    )
    def get(self, request: Request, file_id: UUID) -> HttpResponseBase:
        inline = parse_query(request, DownloadQuery).inline
        return downloads.build_download_response(
            request._request, files.get_file(self.caller_id, file_id), inline=inline
        )


class ZipView(AuthenticatedApiView):
    renderer_classes = [AnyMediaTypeRenderer]
    write_scopes = ("read",)  # POST only because many ids do not fit into a URL

    @document_operation(
        "Download several files as one archive",
        answers={(200, "application/zip"): bytes, (200, "application/octet-stream"): bytes},
        body=ZipBody,
    )
    def post(self, request: Request) -> HttpResponseBase:
        found, absent = files.get_chosen_files(self.caller_id, parse_body(request, ZipBody).ids)
        return zip_stream.build_zip_response(request._request, found, title="workspace", absent=absent)


class FileUsageView(AuthenticatedApiView):
    @document_operation("Read how much of the workspace is used", answers={200: Usage})
    def get(self, request: Request) -> HttpResponse:
        use = quotas.get_usage(self.caller_id)
        return respond_json(
            Usage(
                used_bytes=use.used_bytes,
                used_files=use.used_files,
                quota_bytes=use.quota.total_bytes,
                quota_files=use.quota.files,
                file_bytes=use.quota.file_bytes,
            )
        )


def serialize_file(file: WorkspaceFile) -> FileShown:
    return FileShown(
        id=str(file.id),
        uri=f"workspace://{file.id}",
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        session_id=str(file.session_id) if file.session_id else None,
        source=file.source,
        scan=file.scan,
        created_at=payloads.format_timestamp(file.created_at),
    )


def _store_upload(
    owner_id: int,
    upload: UploadedFile[bytes] | OversizedFile,
    session_id: UUID | None,
    quota: quotas.StorageQuota,
) -> Upload:
    name = str(upload.name)
    try:
        if isinstance(upload, OversizedFile):
            raise _build_file_too_large_refusal(quota)
        file = files.store_file(owner_id, name=name, content=upload, source="upload", session_id=session_id)
    except RequestRefused as refusal:
        metrics.uploads.labels(refusal.code if refusal.code in _COUNTED_REFUSAL_CODES else "refused").inc()
        return Upload(name=name, status=refusal.status, error=refusal.to_body())
    metrics.uploads.labels("stored").inc()
    return Upload(name=name, status=201, file=serialize_file(file))


def _build_file_too_large_refusal(quota: quotas.StorageQuota) -> PayloadTooLarge:
    limit = quota.file_bytes // quotas.MB
    return PayloadTooLarge(
        f"Files can be up to {limit} MB.", code="file_too_large", limit_bytes=quota.file_bytes
    )


def _render_uploads(results: list[Upload]) -> HttpResponse:
    """Answer 201 if any file was stored, otherwise the first error together with all results."""
    if any(result.file for result in results):
        return respond_json(Uploads(results=results), 201)
    return respond_json({"error": results[0].error, "results": results}, results[0].status)
