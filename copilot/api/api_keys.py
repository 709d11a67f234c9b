"""REST views for API keys: keys may list them, only a signed-in person creates and revokes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import AwareDatetime, Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json, respond_no_content
from copilot.accounts import api_keys
from copilot.accounts.recent_login import check_recent_login
from copilot.api.base import AuthenticatedApiView, CleanText, format_instant_or_none
from copilot.models import ApiKey
from copilot.realtime import payloads

ScopeName = Literal["read", "chat", "manage", "billing", "staff"]


class NewKeyBody(RequestBody):
    name: Annotated[CleanText, Field(max_length=100)] = ""
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=5)] = ["read", "chat"]
    expires_at: Annotated[AwareDatetime, Field(strict=False)] | None = None


@dataclass(frozen=True, kw_only=True)
class KeyShown:
    id: str
    name: str
    prefix: str
    scopes: list[str]
    created_at: str
    last_used_at: str | None
    expires_at: str | None


@dataclass(frozen=True, kw_only=True)
class KeyMade(KeyShown):
    """The only answer that contains the key itself."""

    key: str


@dataclass(frozen=True, kw_only=True)
class Keys:
    items: list[KeyShown]


class KeysView(AuthenticatedApiView):
    keys_may_write = False

    @document_operation("List your API keys", answers={200: Keys})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(
            Keys(items=[_serialize_key(row) for row in api_keys.list_api_keys(self.caller_id)])
        )

    @document_operation("Create an API key; it is shown only once", answers={201: KeyMade}, body=NewKeyBody)
    def post(self, request: Request) -> HttpResponse:
        check_recent_login(request._request)
        body = parse_body(request, NewKeyBody)
        created = api_keys.create_api_key(
            self.caller, name=body.name, scopes=tuple(body.scopes), expires_at=body.expires_at
        )
        response = respond_json(_serialize_created_key(created), 201)
        response["Cache-Control"] = "no-store"
        return response


class KeyView(AuthenticatedApiView):
    keys_may_write = False

    @document_operation("Revoke an API key", answers={204: None})
    def delete(self, request: Request, key_id: UUID) -> HttpResponse:
        api_keys.revoke_api_key(self.caller_id, key_id)
        return respond_no_content()


def _serialize_key(row: ApiKey) -> KeyShown:
    return KeyShown(
        id=str(row.id),
        name=row.name,
        prefix=row.prefix,
        scopes=list(row.scopes),
        created_at=payloads.format_timestamp(row.created_at),
        last_used_at=format_instant_or_none(row.last_used_at),
        expires_at=format_instant_or_none(row.expires_at),
    )


def _serialize_created_key(created: api_keys.NewApiKey) -> KeyMade:
    row = created.row
    return KeyMade(
        id=str(row.id),
        name=row.name,
        prefix=row.prefix,
        scopes=list(row.scopes),
        created_at=payloads.format_timestamp(row.created_at),
        last_used_at=format_instant_or_none(row.last_used_at),
        expires_at=format_instant_or_none(row.expires_at),
        key=created.token,
    )
