"""REST views for shares: owners preview, publish, change and revoke them; visitors read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, RequestBody, parse_body, parse_query
from config.core.api.views import document_operation, respond_json, respond_no_content
from config.core.errors import InvalidRequest, NotFound
from copilot import metrics
from copilot.api.base import AuthenticatedApiView, BaseApiView, CleanText, format_instant_or_none
from copilot.api.files import AnyMediaTypeRenderer
from copilot.files import downloads, zip_stream
from copilot.models import Share, WorkspaceFile
from copilot.realtime import payloads
from copilot.sharing import access, drafts
from copilot.sharing import services as sharing
from copilot.sharing.payloads import PublicFile, SharedEntry

MAX_EXPIRY_SECONDS = settings.SHARE_MAX_DAYS * 24 * 3600
MAX_SHARE_FILES = 1000  # in one share
LenientUuid = Annotated[UUID, Field(strict=False)]
ExpirySeconds = Annotated[
    int, Field(ge=1, le=MAX_EXPIRY_SECONDS, description="Seconds from now; null for no expiry.")
]
SharePassword = Annotated[
    str, Field(min_length=sharing.MIN_PASSWORD_CHARACTERS, max_length=sharing.MAX_PASSWORD_CHARACTERS)
]


class NewShare(RequestBody):
    through: LenientUuid | None = None
    include_reasoning: bool = False
    include_tools: bool = False
    show_author: bool = False
    allow_continue: bool = False
    title: Annotated[CleanText, Field(max_length=200)] = ""
    expires_in: ExpirySeconds | None = None
    password: SharePassword | None = None
    exclude_files: Annotated[list[LenientUuid], Field(max_length=MAX_SHARE_FILES)] = []
    include_files: Annotated[list[LenientUuid], Field(max_length=MAX_SHARE_FILES)] = []

    def to_share_options(self) -> drafts.ShareRequest:
        return drafts.ShareRequest(
            through=self.through,
            include_reasoning=self.include_reasoning,
            include_tools=self.include_tools,
            show_author=self.show_author,
            allow_continue=self.allow_continue,
            title=self.title.strip(),
            exclude_files=frozenset(self.exclude_files),
            include_files=frozenset(self.include_files),
        )

    def to_terms(self) -> sharing.ShareTerms:
        return sharing.ShareTerms(expires_in=self.expires_in, password=self.password or "")


class NewFileShare(RequestBody):
    show_author: bool = False
    expires_in: ExpirySeconds | None = None
    password: SharePassword | None = None


class ShareChanges(RequestBody):
    """Absent fields stay as they are; null removes the expiry or the password."""

    expires_in: ExpirySeconds | None = None
    password: SharePassword | None = None
    show_author: bool = False

    def to_changes(self) -> sharing.ShareUpdate:
        changes: sharing.ShareUpdate = {}
        if "expires_in" in self.model_fields_set:
            changes["expires_in"] = self.expires_in
        if "password" in self.model_fields_set:
            changes["password"] = self.password or ""
        if "show_author" in self.model_fields_set:
            changes["show_author"] = self.show_author
        return changes


class SharesQuery(QueryParams):
    session: UUID | None = None
    file: UUID | None = None
    limit: Annotated[int, Field(ge=1, le=sharing.MAX_PAGE_SHARES)] = 50
    offset: Annotated[int, Field(ge=0, le=sharing.MAX_OFFSET)] = 0


@dataclass(frozen=True, kw_only=True)
class ShareShown:
    id: str
    kind: Literal["conversation", "file"]
    token: str
    url: str
    title: str
    session_id: str | None
    file_id: str | None
    state: sharing.ShareState
    reason: str  # why staff revoked it
    author: str
    has_password: bool
    created_at: str
    expires_at: str | None
    views: int
    last_viewed_at: str | None
    files: list[PublicFile]


@dataclass(frozen=True, kw_only=True)
class SharesPage:
    items: list[ShareShown]
    offset: int
    has_more: bool


@dataclass(frozen=True, kw_only=True)
class PreviewFile:
    id: str
    name: str
    type: str
    size: int
    public: bool
    withheld: Literal["", "excluded", "not_vouched_for", "tool_output"]


@dataclass(frozen=True, kw_only=True)
class SharePreview:
    """Exactly what would be public, and every file it names."""

    title: str
    author: str
    messages: list[SharedEntry]
    files: list[PreviewFile]


class SharesView(AuthenticatedApiView):
    @document_operation("List shares, newest first", answers={200: SharesPage}, query=SharesQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, SharesQuery)
        page = sharing.get_share_page(
            self.caller_id,
            session_id=query.session,
            file_id=query.file,
            limit=query.limit,
            offset=query.offset,
        )
        items = [serialize_share(share) for share in page.items]
        return respond_json(SharesPage(items=items, offset=page.offset, has_more=page.has_more))


class SessionShareView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation(
        "Share a session; its earlier link is revoked", answers={201: ShareShown}, body=NewShare
    )
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        body = parse_body(request, NewShare)
        return respond_json(
            serialize_share(
                sharing.publish_session(self.caller_id, session_id, body.to_share_options(), body.to_terms())
            ),
            201,
        )

    @document_operation(
        "Change a share's expiry, password or author line", answers={200: ShareShown}, body=ShareChanges
    )
    def patch(self, request: Request, session_id: UUID) -> HttpResponse:
        body = parse_body(request, ShareChanges)
        return respond_json(
            serialize_share(
                sharing.update_share(sharing.get_session_share(self.caller_id, session_id), body.to_changes())
            )
        )

    @document_operation("Stop sharing a session", answers={204: None})
    def delete(self, request: Request, session_id: UUID) -> HttpResponse:
        sharing.revoke_session_share(self.caller_id, session_id)
        return respond_no_content()


class SharePreviewView(AuthenticatedApiView):
    # A preview stores nothing but shows as much as a share would, so it needs the same scope.
    write_scopes = ("manage",)

    @document_operation("Preview what a share would make public", answers={200: SharePreview}, body=NewShare)
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        body = parse_body(request, NewShare)
        draft = sharing.preview_share(self.caller_id, session_id, body.to_share_options())
        return respond_json(
            SharePreview(
                title=draft.payload.title,
                author=drafts.format_author(self.caller) if body.show_author else "",
                messages=draft.payload.messages,
                files=[_serialize_preview_file(file) for file in draft.candidates],
            )
        )


class FileShareView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation(
        "Share a file; its earlier link is revoked", answers={201: ShareShown}, body=NewFileShare
    )
    def post(self, request: Request, file_id: UUID) -> HttpResponse:
        body = parse_body(request, NewFileShare)
        terms = sharing.ShareTerms(expires_in=body.expires_in, password=body.password or "")
        share = sharing.publish_file(self.caller_id, file_id, terms, show_author=body.show_author)
        return respond_json(serialize_share(share), 201)

    @document_operation(
        "Change a share's expiry, password or author line", answers={200: ShareShown}, body=ShareChanges
    )
    def patch(self, request: Request, file_id: UUID) -> HttpResponse:
        body = parse_body(request, ShareChanges)
        return respond_json(
            serialize_share(
                sharing.update_share(sharing.get_file_share(self.caller_id, file_id), body.to_changes())
            )
        )

    @document_operation("Stop sharing a file", answers={204: None})
    def delete(self, request: Request, file_id: UUID) -> HttpResponse:
        sharing.revoke_file_share(self.caller_id, file_id)
        return respond_no_content()


def serialize_share(share: Share) -> ShareShown:
    payload = access.load_payload(share)
    return ShareShown(
        id=str(share.pk),
        kind=payload.kind,
        token=str(share.token),
        url=sharing.get_share_url(share),
        title=payload.title,
        session_id=str(share.session_id) if share.session_id else None,
        file_id=str(share.file_id) if share.file_id else None,
        state=sharing.get_share_state(share),
        reason=share.revoke_note,
        author=str(share.options.get("author", "")),
        has_password=bool(share.password_hash),
        created_at=payloads.format_timestamp(share.created_at),
        expires_at=format_instant_or_none(share.expires_at),
        views=share.view_count,
        last_viewed_at=format_instant_or_none(share.last_viewed_at),
        files=payload.files,
    )


def _serialize_preview_file(candidate: drafts.FileCandidate) -> PreviewFile:
    file: WorkspaceFile = candidate.file
    return PreviewFile(
        id=str(file.pk),
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        public=not candidate.withheld,
        withheld=candidate.withheld,
    )


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
