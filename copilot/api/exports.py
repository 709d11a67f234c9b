"""Exports and imports over REST (S15, S16)."""

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

from billing.rest import answer, operation
from copilot import queries
from copilot.accounts.recent_login import check_recent_login, is_recent
from copilot.api.doors import Door, instant_if
from copilot.api.errors import UnsupportedMediaType
from copilot.api.files import Anything
from copilot.api.parsing import Query, query_of
from copilot.api.schema import Document
from copilot.api.sessions import OpenSession, opened
from copilot.errors import Forbidden, TooLarge
from copilot.models import ApiKey, ExportJob
from copilot.workspace import downloads, exports, imports
from copilot.workspace.reading import Format, Wanted

CHUNK_BYTES = 64 * 1024
DOCUMENTS = ("application/json", "application/zip", "application/octet-stream")
IMPORTED: Document = {
    "application/json": {"type": "object", "description": "schemas/conversation-1.schema.json"},
    "application/zip": {"type": "string", "format": "binary"},
}


class ExportQuery(Query):
    format: Format = "md"
    reasoning: bool = False
    tools: bool = False
    files: Annotated[bool, Field(description="A zip archive with the files; made in the background.")] = False


class ImportQuery(Query):
    force: Annotated[bool, Field(description="Although this document was imported before.")] = False


@dataclass(frozen=True, kw_only=True)
class ExportShown:
    """`download` is there once its state is ready, until it expires."""

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


def shown(job: ExportJob) -> ExportShown:
    is_ready = job.state == ExportJob.State.READY
    return ExportShown(
        id=str(job.pk),
        state=job.state,
        session_id=str(job.session_id) if job.session_id else None,
        format=job.format,
        name=job.name,
        size=job.size_bytes,
        error=job.error,
        created_at=queries.instant(job.created_at),
        expires_at=instant_if(job.expires_at),
        download=f"/api/v1/exports/{job.pk}/download" if is_ready else None,
    )


class SessionExportView(Door):
    renderer_classes = [Anything]

    @operation(
        "Export a session: the document at once, or (202) the job that makes it",
        answers={(200, "text/plain"): bytes, (202, "application/json"): ExportShown},
        query=ExportQuery,
    )
    def get(self, request: Request, session_id: UUID) -> HttpResponseBase:
        wanted = Wanted(**query_of(request, ExportQuery).model_dump())
        if exports.takes_a_job(self.caller_id, session_id, wanted):
            _check_may_manage(request)
            return answer(shown(exports.request(self.caller_id, session_id, wanted)), 202)
        made = exports.make(self.caller_id, session_id, wanted)
        return downloads.document(made.name, made.mime, made.content)


def _check_may_manage(request: Request) -> None:
    """Reading is a GET; having a job done is more than that (A20.6)."""
    if isinstance(request.auth, ApiKey) and "manage" not in request.auth.scopes:
        raise Forbidden("The key lacks the scope manage.", code="insufficient_scope", scope="manage")


class ExportsView(Door):
    write_scopes = ("manage",)

    @operation("Export everything the account holds; once a day", answers={202: ExportShown})
    def post(self, request: Request) -> HttpResponse:
        if request.auth is None:
            check_recent_login(request._request)
        return answer(shown(exports.request_everything(self.caller_id)), 202)

    @operation("List exports that were made in the background, newest first", answers={200: ExportsPage})
    def get(self, request: Request) -> HttpResponse:
        return answer(ExportsPage(items=[shown(job) for job in exports.listed(self.caller_id)]))


class ExportView(Door):
    @operation("How far an export is", answers={200: ExportShown})
    def get(self, request: Request, export_id: UUID) -> HttpResponse:
        return answer(shown(exports.get(self.caller_id, export_id)))


class ExportDownloadView(Door):
    renderer_classes = [Anything]

    @operation("Download an export", answers={(200, "application/octet-stream"): bytes})
    def get(self, request: Request, export_id: UUID) -> HttpResponseBase:
        """The archive of a whole account takes a recent login; browsers that follow a link are led to it."""
        job = exports.get(self.caller_id, export_id)
        if job.session_id is None and request.auth is None and not is_recent(request._request):
            if "text/html" in request.headers.get("Accept", ""):
                return redirect_to_login(request.path, reverse("account_reauthenticate"))
            check_recent_login(request._request)
        return downloads.respond(request._request, exports.ready(self.caller_id, export_id))


class SessionImportView(Door):
    write_scopes = ("manage",)

    @operation(
        "Import a conversation, from its JSON document or an archive with its files",
        answers={201: OpenSession},
        body=IMPORTED,
        query=ImportQuery,
    )
    def post(self, request: Request) -> HttpResponse:
        force = query_of(request, ImportQuery).force
        if request.content_type.partition(";")[0].strip().lower() not in DOCUMENTS:
            raise UnsupportedMediaType(
                "Send a document as application/json or an archive as application/zip."
            )
        with tempfile.TemporaryFile(prefix="pilothouse-import-") as content:
            _copy(request._request, content)
            return answer(opened(imports.bring_in(self.caller_id, content, force=force)), 201)


def _copy(
    source: Any, target: Any
) -> None:  # two streams of bytes: Django's request is one, and says so nowhere
    """To disk, and no further than the limit, whatever the request said of its length."""
    count = 0
    while chunk := source.read(CHUNK_BYTES):
        count += len(chunk)
        if count > settings.IMPORT_ZIP_MAX:
            raise TooLarge(
                "The archive is too large.", code="file_too_large", limit_bytes=settings.IMPORT_ZIP_MAX
            )
        target.write(chunk)
    target.seek(0)
