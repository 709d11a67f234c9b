"""REST views for exports and imports."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.errors import UnsupportedMediaType
from config.core.api.parsing import QueryParams, parse_query
from config.core.api.schema import SchemaFragment
from config.core.api.views import document_operation, respond_json
from config.core.errors import Forbidden, PayloadTooLarge
from copilot.accounts.recent_login import check_recent_login, is_login_recent
from copilot.api.base import AuthenticatedApiView, format_instant_or_none
from copilot.api.files import AnyMediaTypeRenderer
from copilot.api.sessions import OpenSession, serialize_session
from copilot.exports import imports
from copilot.exports import services as exports
from copilot.exports.session_reader import ExportFormat, ExportOptions
from copilot.files import downloads
from copilot.models import ApiKey, ExportJob
from copilot.realtime import payloads

COPY_CHUNK_BYTES = 64 * 1024
IMPORT_MEDIA_TYPES = ("application/json", "application/zip", "application/octet-stream")
IMPORT_BODY_SCHEMA: SchemaFragment = {
    "application/json": {"type": "object", "description": "schemas/conversation-1.schema.json"},
    "application/zip": {"type": "string", "format": "binary"},
}


class ExportQuery(QueryParams):
    format: ExportFormat = "md"
    reasoning: bool = False
    tools: bool = False
    files: Annotated[bool, Field(description="A zip with the files, built in the background.")] = False


class ImportQuery(QueryParams):
    force: Annotated[bool, Field(description="Import it even if it was imported before.")] = False


@dataclass(frozen=True, kw_only=True)
class ExportShown:
    """`download` is set while the export is ready and has not expired."""

    id: str
    state: str
    session_id: str | None
    format: str
    name: str
    size: int
    error: str
    created_at: str
    expires_at: str | None
    download: str | None


@dataclass(frozen=True, kw_only=True)
class ExportsPage:
    items: list[ExportShown]


def serialize_export(job: ExportJob) -> ExportShown:
    is_ready = job.state == ExportJob.State.READY
    return ExportShown(
        id=str(job.pk),
        state=job.state,
        session_id=str(job.session_id) if job.session_id else None,
        format=job.format,
        name=job.name,
        size=job.size_bytes,
        error=job.error,
        created_at=payloads.format_timestamp(job.created_at),
        expires_at=format_instant_or_none(job.expires_at),
        download=f"/api/v1/exports/{job.pk}/download" if is_ready else None,
    )


class SessionExportView(AuthenticatedApiView):
    renderer_classes = [AnyMediaTypeRenderer]

    @document_operation(
        "Export a session: the document itself, or (202) the job that builds it",
        answers={(200, "text/plain"): bytes, (202, "application/json"): ExportShown},
        query=ExportQuery,
    )
    def get(self, request: Request, session_id: UUID) -> HttpResponseBase:
        options = ExportOptions(**parse_query(request, ExportQuery).model_dump())
        if exports.needs_job(self.caller_id, session_id, options):
            _require_manage_scope(request)
            return respond_json(
                serialize_export(exports.request_export(self.caller_id, session_id, options)), 202
            )
        document = exports.make_document(self.caller_id, session_id, options)
        return downloads.build_document_response(document.name, document.mime, document.content)


def _require_manage_scope(request: Request) -> None:
    """Require the manage scope: a GET with the read scope must not start jobs."""
    if isinstance(request.auth, ApiKey) and "manage" not in request.auth.scopes:
        raise Forbidden("This API key needs the manage scope.", code="insufficient_scope", scope="manage")


class ExportsView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("Export all data of the account; once a day", answers={202: ExportShown})
    def post(self, request: Request) -> HttpResponse:
        if request.auth is None:
            check_recent_login(request._request)
        return respond_json(serialize_export(exports.request_account_export(self.caller_id)), 202)

    @document_operation("List background exports, newest first", answers={200: ExportsPage})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(
            ExportsPage(items=[serialize_export(job) for job in exports.list_exports(self.caller_id)])
        )


class ExportView(AuthenticatedApiView):
    @document_operation("Read the state of an export", answers={200: ExportShown})
    def get(self, request: Request, export_id: UUID) -> HttpResponse:
        return respond_json(serialize_export(exports.get_export(self.caller_id, export_id)))


class ExportDownloadView(AuthenticatedApiView):
    renderer_classes = [AnyMediaTypeRenderer]

    @document_operation("Download an export", answers={(200, "application/octet-stream"): bytes})
    def get(self, request: Request, export_id: UUID) -> HttpResponseBase:
        """Require a recent login for the archive of a whole account; browsers are redirected to confirm it."""
        job = exports.get_export(self.caller_id, export_id)
        if job.session_id is None and request.auth is None and not is_login_recent(request._request):
            if "text/html" in request.headers.get("Accept", ""):
                return redirect_to_login(request.path, reverse("account_reauthenticate"))
            check_recent_login(request._request)
        return downloads.build_download_response(
            request._request, exports.get_ready_file(self.caller_id, export_id)
        )


class SessionImportView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation(
        "Import a conversation from its JSON document, or from an archive with its files",
        answers={201: OpenSession},
        body=IMPORT_BODY_SCHEMA,
        query=ImportQuery,
    )
    def post(self, request: Request) -> HttpResponse:
        force = parse_query(request, ImportQuery).force
        if request.content_type.partition(";")[0].strip().lower() not in IMPORT_MEDIA_TYPES:
            raise UnsupportedMediaType(
                "Send a document as application/json or an archive as application/zip."
            )
        with tempfile.TemporaryFile(prefix="pilothouse-import-") as content:
            _copy_to_disk(request._request, content)
            return respond_json(
                serialize_session(imports.import_document(self.caller_id, content, force=force)), 201
            )


def _copy_to_disk(source: Any, target: Any) -> None:
    # Both are binary streams; Django's request is one without declaring it.
    count = 0
    while chunk := source.read(COPY_CHUNK_BYTES):
        count += len(chunk)
        if count > settings.IMPORT_ZIP_MAX:
            raise PayloadTooLarge(
                "The archive is too large.", code="file_too_large", limit_bytes=settings.IMPORT_ZIP_MAX
            )
        target.write(chunk)
    target.seek(0)
