"""API keys over REST: listed with a key or a cookie, made and revoked with a cookie alone (A20.6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import AwareDatetime, Field
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import api_keys, queries
from copilot.accounts.recent_login import check_recent_login
from copilot.api.doors import Door, instant_if
from copilot.api.parsing import Body, Clean, body_of
from copilot.models import ApiKey

Scope = Literal["read", "chat", "manage", "billing", "staff"]


class NewKeyBody(Body):
    name: Annotated[Clean, Field(max_length=100)] = ""
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=5)] = ["read", "chat"]
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
    """The only answer that ever holds the key itself."""

    key: str


@dataclass(frozen=True, kw_only=True)
class Keys:
    items: list[KeyShown]


class KeysView(Door):
    keys_may_write = False

    @operation("List keys", answers={200: Keys})
    def get(self, request: Request) -> HttpResponse:
        return answer(Keys(items=[_shown(row) for row in api_keys.of_user(self.caller_id)]))

    @operation("Make a key; it is shown once", answers={201: KeyMade}, body=NewKeyBody)
    def post(self, request: Request) -> HttpResponse:
        check_recent_login(request._request)
        asked = body_of(request, NewKeyBody)
        made = api_keys.create(
            self.caller, name=asked.name, scopes=tuple(asked.scopes), expires_at=asked.expires_at
        )
        response = answer(_made(made), 201)
        response["Cache-Control"] = "no-store"
        return response


class KeyView(Door):
    keys_may_write = False

    @operation("Revoke a key", answers={204: None})
    def delete(self, request: Request, key_id: UUID) -> HttpResponse:
        api_keys.revoke(self.caller_id, key_id)
        return nothing()


def _shown(row: ApiKey) -> KeyShown:
    return KeyShown(
        id=str(row.id),
        name=row.name,
        prefix=row.prefix,
        scopes=list(row.scopes),
        created_at=queries.instant(row.created_at),
        last_used_at=instant_if(row.last_used_at),
        expires_at=instant_if(row.expires_at),
    )


def _made(made: api_keys.NewKey) -> KeyMade:
    row = made.row
    return KeyMade(
        id=str(row.id),
        name=row.name,
        prefix=row.prefix,
        scopes=list(row.scopes),
        created_at=queries.instant(row.created_at),
        last_used_at=instant_if(row.last_used_at),
        expires_at=instant_if(row.expires_at),
        key=made.token,
    )
