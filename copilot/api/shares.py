"""Shares over REST, for their owners: preview, make, read, change, revoke, list (S8, S9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import queries
from copilot.api.doors import Door, instant_if
from copilot.api.parsing import Body, Clean, Query, body_of, query_of
from copilot.models import Share, WorkspaceFile
from copilot.workspace import drafts, shares, visiting
from copilot.workspace.publication import Entry, PublicFile

MOST_SECONDS = settings.SHARE_MAX_DAYS * 24 * 3600
MOST_FILES = 1000  # that one payload can name
Id = Annotated[UUID, Field(strict=False)]
Seconds = Annotated[int, Field(ge=1, le=MOST_SECONDS, description="From now; null: never expires.")]
Password = Annotated[str, Field(min_length=shares.SHORTEST_PASSWORD, max_length=shares.LONGEST_PASSWORD)]


class NewShare(Body):
    through: Id | None = None
    include_reasoning: bool = False
    include_tools: bool = False
    show_author: bool = False
    allow_continue: bool = False
    title: Annotated[Clean, Field(max_length=200)] = ""
    expires_in: Seconds | None = None
    password: Password | None = None
    exclude_files: Annotated[list[Id], Field(max_length=MOST_FILES)] = []
    include_files: Annotated[list[Id], Field(max_length=MOST_FILES)] = []

    def asked(self) -> drafts.Asked:
        return drafts.Asked(
            through=self.through,
            include_reasoning=self.include_reasoning,
            include_tools=self.include_tools,
            show_author=self.show_author,
            allow_continue=self.allow_continue,
            title=self.title.strip(),
            exclude_files=frozenset(self.exclude_files),
            include_files=frozenset(self.include_files),
        )

    def terms(self) -> shares.Terms:
        return shares.Terms(expires_in=self.expires_in, password=self.password or "")


class NewFileShare(Body):
    show_author: bool = False
    expires_in: Seconds | None = None
    password: Password | None = None


class ShareChanges(Body):
    """Absent fields stay as they are; null ends the expiry, or the password."""

    expires_in: Seconds | None = None
    password: Password | None = None
    show_author: bool = False

    def changes(self) -> shares.Changes:
        given: shares.Changes = {}
        if "expires_in" in self.model_fields_set:
            given["expires_in"] = self.expires_in
        if "password" in self.model_fields_set:
            given["password"] = self.password or ""
        if "show_author" in self.model_fields_set:
            given["show_author"] = self.show_author
        return given


class SharesQuery(Query):
    session: UUID | None = None
    file: UUID | None = None
    limit: Annotated[int, Field(ge=1, le=shares.PAGE_SHARES)] = 50
    offset: Annotated[int, Field(ge=0, le=shares.MAX_OFFSET)] = 0


@dataclass(frozen=True, kw_only=True)
class ShareShown:
    id: str
    kind: Literal["conversation", "file"]
    token: str
    url: str
    title: str
    session_id: str | None
    file_id: str | None
    state: shares.State
    reason: str  # why staff took it down
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
    """What would be public, word for word, and every file it names."""

    title: str
    author: str
    messages: list[Entry]
    files: list[PreviewFile]


class SharesView(Door):
    @operation("List shares, newest first", answers={200: SharesPage}, query=SharesQuery)
    def get(self, request: Request) -> HttpResponse:
        asked = query_of(request, SharesQuery)
        page = shares.page(
            self.caller_id,
            session_id=asked.session,
            file_id=asked.file,
            limit=asked.limit,
            offset=asked.offset,
        )
        items = [shown(share) for share in page.items]
        return answer(SharesPage(items=items, offset=page.offset, has_more=page.has_more))


class SessionShareView(Door):
    write_scopes = ("manage",)

    @operation("Share a session; an earlier link of it ends", answers={201: ShareShown}, body=NewShare)
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = body_of(request, NewShare)
        return answer(shown(shares.publish(self.caller_id, session_id, asked.asked(), asked.terms())), 201)

    @operation("Change expiry, password or author line", answers={200: ShareShown}, body=ShareChanges)
    def patch(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = body_of(request, ShareChanges)
        return answer(shown(shares.change(shares.of_session(self.caller_id, session_id), asked.changes())))

    @operation("Revoke the share of a session", answers={204: None})
    def delete(self, request: Request, session_id: UUID) -> HttpResponse:
        shares.revoke_of_session(self.caller_id, session_id)
        return nothing()


class SharePreviewView(Door):
    """Stores nothing, yet shows as much as a share would."""

    write_scopes = ("manage",)

    @operation("What a share would make public", answers={200: SharePreview}, body=NewShare)
    def post(self, request: Request, session_id: UUID) -> HttpResponse:
        asked = body_of(request, NewShare)
        draft = shares.preview(self.caller_id, session_id, asked.asked())
        return answer(
            SharePreview(
                title=draft.payload.title,
                author=drafts.author_line(self.caller) if asked.show_author else "",
                messages=draft.payload.messages,
                files=[_candidate(one) for one in draft.candidates],
            )
        )


class FileShareView(Door):
    write_scopes = ("manage",)

    @operation("Share a file; an earlier link of it ends", answers={201: ShareShown}, body=NewFileShare)
    def post(self, request: Request, file_id: UUID) -> HttpResponse:
        asked = body_of(request, NewFileShare)
        terms = shares.Terms(expires_in=asked.expires_in, password=asked.password or "")
        made = shares.publish_file(self.caller_id, file_id, terms, show_author=asked.show_author)
        return answer(shown(made), 201)

    @operation("Change expiry, password or author line", answers={200: ShareShown}, body=ShareChanges)
    def patch(self, request: Request, file_id: UUID) -> HttpResponse:
        asked = body_of(request, ShareChanges)
        return answer(shown(shares.change(shares.of_file(self.caller_id, file_id), asked.changes())))

    @operation("Revoke the share of a file", answers={204: None})
    def delete(self, request: Request, file_id: UUID) -> HttpResponse:
        shares.revoke_of_file(self.caller_id, file_id)
        return nothing()


def shown(share: Share) -> ShareShown:
    payload = visiting.payload_of(share)
    return ShareShown(
        id=str(share.pk),
        kind=payload.kind,
        token=str(share.token),
        url=shares.url(share),
        title=payload.title,
        session_id=str(share.session_id) if share.session_id else None,
        file_id=str(share.file_id) if share.file_id else None,
        state=shares.state(share),
        reason=share.revoke_note,
        author=str(share.options.get("author", "")),
        has_password=bool(share.password_hash),
        created_at=queries.instant(share.created_at),
        expires_at=instant_if(share.expires_at),
        views=share.view_count,
        last_viewed_at=instant_if(share.last_viewed_at),
        files=payload.files,
    )


def _candidate(one: drafts.Candidate) -> PreviewFile:
    file: WorkspaceFile = one.file
    return PreviewFile(
        id=str(file.pk),
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        public=not one.withheld,
        withheld=one.withheld,
    )
