"""What anybody may read over REST: a share by its token, its lock, its files; every refusal is one 404 (S9, S12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import metrics, queries
from copilot.api.doors import Plain
from copilot.api.files import Anything
from copilot.api.parsing import Body, Query, body_of, query_of
from copilot.errors import InvalidRequest, NotFound
from copilot.models import Share
from copilot.workspace import downloads, shares, visiting, zips
from copilot.workspace.publication import Entry, PublicFile


class Unlocking(Body):
    password: Annotated[str, Field(max_length=shares.LONGEST_PASSWORD)]


class SavingQuery(Query):
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
    messages: list[Entry]
    files: list[PublicFile]


class Stranger(Plain):
    """A view for whoever knows the token; cookies and API keys mean nothing here."""

    authentication_classes = []
    permission_classes = []
    renderer_classes = [Anything]
    door: visiting.Door = "page"

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        visiting.admit(self.address, self.door)

    @property
    def default_response_headers(self) -> dict[str, str]:
        """None that would tell one refusal from another."""
        return {}

    @property
    def address(self) -> str:
        return str(self.request.META.get("REMOTE_ADDR", ""))

    @property
    def key(self) -> str:
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


class PublicShareView(Stranger):
    @operation("Read what a share publishes", answers={200: PublishedShare})
    def get(self, request: Request, token: UUID) -> HttpResponse:
        share = visiting.standing(token)
        if share is None or not visiting.is_open(share, self.key):
            metrics.share_hits.labels(door="page", outcome="refused").inc()
            raise NotFound
        visiting.viewed(share, self.address)
        metrics.share_hits.labels(door="page", outcome="served").inc()
        return answer(_published(share))


class PublicUnlockView(Stranger):
    @operation("Get a key by the password", answers={200: Key}, body=Unlocking)
    def post(self, request: Request, token: UUID) -> HttpResponse:
        key = visiting.unlock(token, body_of(request, Unlocking).password, self.address)
        if key is None:
            raise NotFound
        return answer(Key(key=key, expires_in=visiting.key_seconds()))


class PublicFileView(Stranger):
    door = "file"

    @operation(
        "Fetch a file of a share", answers={(200, "application/octet-stream"): bytes}, query=SavingQuery
    )
    def get(self, request: Request, token: UUID, file_id: UUID) -> HttpResponseBase:
        try:
            saving = query_of(request, SavingQuery).download
        except InvalidRequest:
            saving = True  # nobody is told more than that there is, or is not, a file
        file = visiting.file(token, file_id, self.key)
        if file is None:
            metrics.share_hits.labels(door="file", outcome="refused").inc()
            raise NotFound
        metrics.share_hits.labels(door="file", outcome="served").inc()
        return downloads.respond(request._request, file, inline=not saving, public=True)


class PublicZipView(Stranger):
    door = "zip"

    @operation(
        "Fetch all files of a share as one archive; a single file comes as itself",
        answers={(200, "application/zip"): bytes, (200, "application/octet-stream"): bytes},
    )
    def get(self, request: Request, token: UUID) -> HttpResponseBase:
        share = visiting.standing(token)
        if share is None or not visiting.is_open(share, self.key):
            metrics.share_hits.labels(door="zip", outcome="refused").inc()
            raise NotFound
        metrics.share_hits.labels(door="zip", outcome="served").inc()
        title = visiting.payload_of(share).title or "shared"
        return zips.respond(request._request, visiting.files_of(share), title=title, public=True)


class PublicNowhere(Stranger):
    """Any other path for strangers, malformed tokens among them."""

    schema = None

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        raise NotFound


def _published(share: Share) -> PublishedShare:
    payload = visiting.payload_of(share)
    available = {str(file.pk) for file in visiting.files_of(share)}
    return PublishedShare(
        kind=payload.kind,
        title=payload.title,
        author=str(share.options.get("author", "")),
        shared_at=queries.instant(share.created_at),
        messages=payload.messages,
        files=[one for one in payload.files if one.id in available],
    )
