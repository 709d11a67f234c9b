"""Parse requests about links, and serialize links and their settings, for the REST API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec
from pydantic import BaseModel, Field
from rest_framework.request import Request

from config.core.api import parsing
from config.core.api.parsing import QueryParams, RequestBody
from config.core.errors import PayloadTooLarge
from linking.links.services import MAX_CAP_MICRODOLLARS, MAX_MEMBER_TURNS, ServerSettings
from linking.models import PLATFORM_ID_PATTERN, LinkToken, PlatformLink, PlatformUserLink
from linking.models.fields import clean_name
from linking.models.links import MAX_LIST_ENTRIES

MAX_REQUEST_BODY_BYTES = 256 * 1024
M = TypeVar("M", bound=BaseModel)


class NoBody(RequestBody):
    """An empty body."""


def parse_body(request: Request, model: type[M]) -> M:
    if len(request._request.body) > MAX_REQUEST_BODY_BYTES:
        raise PayloadTooLarge(f"The body can have at most {MAX_REQUEST_BODY_BYTES // 1024} KiB.")
    return parsing.parse_body(request, model)


MAX_PAGE_SIZE = 50
CapMicrodollars = Annotated[int, Field(ge=0, le=MAX_CAP_MICRODOLLARS)]
PlatformId = Annotated[str, Field(pattern=PLATFORM_ID_PATTERN, max_length=64)]
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:\-]{1,64}$")]


class Caps(RequestBody):
    """Settings for a new link; null means no cap, 0 that nothing is allowed."""

    daily_cap_microdollars: CapMicrodollars | None = None
    monthly_cap_microdollars: CapMicrodollars | None = None


class Changes(RequestBody):
    """Changes to a link's settings; missing fields stay as they are."""

    paused: bool = False
    daily_cap_microdollars: CapMicrodollars | None = None
    monthly_cap_microdollars: CapMicrodollars | None = None
    member_turns_per_hour: Annotated[int, Field(ge=0, le=MAX_MEMBER_TURNS)] = 20
    allowed_channels: Annotated[list[PlatformId], Field(max_length=MAX_LIST_ENTRIES)] = []
    allowed_roles: Annotated[list[PlatformId], Field(max_length=MAX_LIST_ENTRIES)] = []
    require_mention: bool = True
    tools: Annotated[list[ToolName], Field(max_length=MAX_LIST_ENTRIES)] = []


class LinkListQuery(QueryParams):
    cursor: Annotated[str, Field(max_length=100)] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = MAX_PAGE_SIZE


def to_server_settings(given: Caps | Changes) -> ServerSettings:
    """Return only the settings that the request names."""
    named = given.model_dump(exclude_unset=True)
    if "paused" in named:
        named["state"] = "paused" if named.pop("paused") else "active"
    return msgspec.convert(named, ServerSettings)


@dataclass(frozen=True, kw_only=True)
class TokenShown:
    kind: str
    platform: str
    bot_account: str
    subject_name: str
    requester_name: str
    expires_at: str


@dataclass(frozen=True, kw_only=True)
class ServerLinkShown:
    id: str
    platform: str
    bot_account: str  # the bot that uses this link; empty: unknown, so none does
    server_id: str
    server_name: str
    state: str
    created_at: str
    daily_cap_microdollars: int | None
    monthly_cap_microdollars: int | None
    member_turns_per_hour: int
    allowed_channels: list[str]
    allowed_roles: list[str]
    require_mention: bool
    tools: list[str]


@dataclass(frozen=True, kw_only=True)
class UserLinkShown:
    id: str
    platform: str
    bot_account: str  # the bot that uses this link; empty: unknown, so none does
    platform_user_id: str
    display_name: str
    created_at: str


@dataclass(frozen=True, kw_only=True)
class ServerLinksPage:
    items: list[ServerLinkShown]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class UserLinksPage:
    items: list[UserLinkShown]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Deleted:
    deleted: bool = True


def serialize_token(row: LinkToken) -> TokenShown:
    return TokenShown(
        kind=row.kind,
        platform=row.platform,
        bot_account=row.bot_account,
        subject_name=clean_name(row.subject_name),
        requester_name=clean_name(row.requester_name),
        expires_at=_format_timestamp(row.expires_at),
    )


def serialize_server_link(link: PlatformLink) -> ServerLinkShown:
    return ServerLinkShown(
        id=str(link.pk),
        platform=link.platform,
        bot_account=link.bot_account,
        server_id=link.server_id,
        server_name=clean_name(link.server_name),
        state=link.state,
        created_at=_format_timestamp(link.created_at),
        daily_cap_microdollars=link.daily_cap_microdollars,
        monthly_cap_microdollars=link.monthly_cap_microdollars,
        member_turns_per_hour=link.member_turns_per_hour,
        allowed_channels=list(link.allowed_channels),
        allowed_roles=list(link.allowed_roles),
        require_mention=link.require_mention,
        tools=list(link.tools),
    )


def serialize_user_link(link: PlatformUserLink) -> UserLinkShown:
    return UserLinkShown(
        id=str(link.pk),
        platform=link.platform,
        bot_account=link.bot_account,
        platform_user_id=link.platform_user_id,
        display_name=clean_name(link.display_name),
        created_at=_format_timestamp(link.created_at),
    )


def _format_timestamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
