"""REST views that anybody may read: a share by its token, its password and its files. Every refusal is a 404."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_query
from config.core.api.views import document_operation, respond_json
from config.core.errors import InvalidRequest, NotFound
from copilot import metrics
from copilot.api.base import BaseApiView
from copilot.api.files import AnyMediaTypeRenderer
from copilot.files import downloads, zip_stream
from copilot.models import Share
from copilot.realtime import payloads
from copilot.sharing import access
from copilot.sharing import services as sharing
from copilot.sharing.payloads import PublicFile, SharedEntry


class Unlocking(RequestBody):
    password: Annotated[str, Field(max_length=sharing.MAX_PASSWORD_CHARACTERS)]


class SavingQuery(QueryParams):
    download: bool = False


@dataclass(frozen=True, kw_only=True)
class Key:
    """Send it as `Authorization: Share <key>`."""

    key: str
    expires_in: int


@dataclass(frozen=True, kw_only=True)
class PublishedShare:
    kind: Literal["conversation", "file"]
    title: str
    author: str
    shared_at: str
    messages: list[SharedEntry]
    files: list[PublicFile]


class PublicShareApiView(BaseApiView):
    """Serve anyone who knows the token; cookies and API keys are ignored."""

    authentication_classes = []
    permission_classes = []
    renderer_classes = [AnyMediaTypeRenderer]
    access_kind: access.ShareEndpoint = "page"

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        access.check_rate_limit(self.client_address, self.access_kind)

    @property
    def default_response_headers(self) -> dict[str, str]:
        """Return no headers: they could tell one refusal from another."""
        return {}

    @property
    def client_address(self) -> str:
        return str(self.request.META.get("REMOTE_ADDR", ""))

    @property
    def share_key(self) -> str:
        scheme, _, value = self.request.headers.get("Authorization", "").partition(" ")
        return value.strip() if scheme.lower() == "share" else ""

    def http_method_not_allowed(self, request: HttpRequest, *args: object, **kwargs: object) -> NoReturn:
        raise NotFound

    def finalize_response(  # type: ignore[override]
        self, request: Request, response: HttpResponseBase, *args: object, **kwargs: object
    ) -> HttpResponseBase:
        response = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[arg-type]
        response["X-Robots-Tag"] = "noindex, nofollow, noarchive"
        response["Referrer-Policy"] = "no-referrer"
        response.setdefault("Cache-Control", "private, no-store")
        return response


class PublicShareView(PublicShareApiView):
    @document_operation("Read what a share publishes", answers={200: PublishedShare})
    def get(self, request: Request, token: UUID) -> HttpResponse:
        share = access.find_live_share(token)
        if share is None or not access.is_unlocked(share, self.share_key):
            metrics.share_hits.labels(endpoint="page", outcome="refused").inc()
            raise NotFound
        access.record_view(share, self.client_address)
        metrics.share_hits.labels(endpoint="page", outcome="served").inc()
        return respond_json(_serialize_published_share(share))


class PublicUnlockView(PublicShareApiView):
    @document_operation("Unlock a share with its password", answers={200: Key}, body=Unlocking)
    def post(self, request: Request, token: UUID) -> HttpResponse:
        key = access.unlock_share(token, parse_body(request, Unlocking).password, self.client_address)
        if key is None:
            raise NotFound
        return respond_json(Key(key=key, expires_in=access.get_key_lifetime_seconds()))


class PublicFileView(PublicShareApiView):
    access_kind = "file"

    @document_operation(
        "Download a file of a share", answers={(200, "application/octet-stream"): bytes}, query=SavingQuery
    )
    def get(self, request: Request, token: UUID, file_id: UUID) -> HttpResponseBase:
        try:
            is_download = parse_query(request, SavingQuery).download
        except InvalidRequest:
            is_download = True  # a bad query must not answer differently from a good one
        file = access.find_shared_file(token, file_id, self.share_key)
        if file is None:
            metrics.share_hits.labels(endpoint="file", outcome="refused").inc()
            raise NotFound
        metrics.share_hits.labels(endpoint="file", outcome="served").inc()
        return downloads.build_download_response(request._request, file, inline=not is_download, public=True)


class PublicZipView(PublicShareApiView):
    access_kind = "zip"

    @document_operation(
        "Download all files of a share as one archive; a single file is sent as it is",
        answers={(200, "application/zip"): bytes, (200, "application/octet-stream"): bytes},
    )
    def get(self, request: Request, token: UUID) -> HttpResponseBase:
        share = access.find_live_share(token)
        if share is None or not access.is_unlocked(share, self.share_key):
            metrics.share_hits.labels(endpoint="zip", outcome="refused").inc()
            raise NotFound
        metrics.share_hits.labels(endpoint="zip", outcome="served").inc()
        title = access.load_payload(share).title or "shared"
        return zip_stream.build_zip_response(
            request._request, access.list_shared_files(share), title=title, public=True
        )


class PublicNotFoundView(PublicShareApiView):
    """Answer any other public path, including malformed tokens, with the same 404."""

    schema = None

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        raise NotFound


def _serialize_published_share(share: Share) -> PublishedShare:
    payload = access.load_payload(share)
    available = {str(file.pk) for file in access.list_shared_files(share)}
    return PublishedShare(
        kind=payload.kind,
        title=payload.title,
        author=str(share.options.get("author", "")),
        shared_at=payloads.format_timestamp(share.created_at),
        messages=payload.messages,
        files=[file for file in payload.files if file.id in available],
    )
