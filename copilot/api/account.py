"""REST views for what belongs to the caller: API keys, preferences, memories and WebSocket tickets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpResponse
from pydantic import AwareDatetime, Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json, respond_no_content
from copilot.accounts import api_keys, preferences
from copilot.accounts.recent_login import check_recent_login
from copilot.api.authentication import get_credential
from copilot.api.base import AuthenticatedApiView, CleanText, format_instant_or_none
from copilot.memories import services as memories
from copilot.models import ApiKey, MemoryItem
from copilot.realtime import authentication, payloads

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
    return KeyMade(**asdict(_serialize_key(created.row)), key=created.token)


class PreferenceChanges(RequestBody):
    """Absent fields stay as they are."""

    timezone: Annotated[str, Field(max_length=64)] = ""
    instructions: Annotated[CleanText, Field(max_length=preferences.MAX_INSTRUCTIONS_CHARACTERS)] = ""
    personality: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None

    def to_changes(self) -> preferences.PreferenceUpdate:
        changes: preferences.PreferenceUpdate = {}
        if "timezone" in self.model_fields_set:
            changes["timezone"] = self.timezone
        if "instructions" in self.model_fields_set:
            changes["instructions"] = self.instructions
        if "personality" in self.model_fields_set:
            changes["personality_id"] = self.personality
        return changes


@dataclass(frozen=True, kw_only=True)
class PersonalityShown:
    id: int
    name: str
    tone: str
    style: str


@dataclass(frozen=True, kw_only=True)
class Personalities:
    items: list[PersonalityShown]


class PreferencesView(AuthenticatedApiView):
    @document_operation("Read your preferences", answers={200: preferences.UserPreferences})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(preferences.get_preferences(self.caller_id))

    @document_operation(
        "Change your preferences", answers={200: preferences.UserPreferences}, body=PreferenceChanges
    )
    def patch(self, request: Request) -> HttpResponse:
        changes = parse_body(request, PreferenceChanges).to_changes()
        return respond_json(preferences.update_preferences(self.caller_id, changes))


class PersonalitiesView(AuthenticatedApiView):
    @document_operation("List the personalities to choose from", answers={200: Personalities})
    def get(self, request: Request) -> HttpResponse:
        personalities = [
            PersonalityShown(id=row.pk, name=row.name, tone=row.tone, style=row.style)
            for row in preferences.list_personalities()
        ]
        return respond_json(Personalities(items=personalities))


class Nothing(RequestBody):
    """An empty object."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    ticket: str
    expires_in_seconds: int


class TicketsView(AuthenticatedApiView):
    write_scopes = ("read", "chat")  # a socket both reads and sends

    @document_operation("Get a ticket that opens one WebSocket", answers={201: Ticket}, body=Nothing)
    def post(self, request: Request) -> HttpResponse:
        parse_body(request, Nothing)
        ticket = authentication.issue_ticket(
            self.caller_id, self.caller_scopes, get_credential(request).proof
        )
        return respond_json(
            Ticket(ticket=ticket, expires_in_seconds=authentication.TICKET_LIFETIME_SECONDS), 201
        )


class MemoryText(RequestBody):
    text: Annotated[CleanText, Field(min_length=1, max_length=memories.MAX_MEMORY_CHARACTERS)]


class MemorySetting(RequestBody):
    on: bool


@dataclass(frozen=True, kw_only=True)
class MemoryShown:
    id: str
    text: str
    created_at: str
    remembered_at: str


@dataclass(frozen=True, kw_only=True)
class Memories:
    """`on` is false while memory is switched off; existing memories are kept."""

    on: bool
    items: list[MemoryShown]


class MemoriesView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("List your memories", answers={200: Memories})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(_serialize_memories(self.caller_id))

    @document_operation("Add a memory", answers={201: MemoryShown}, body=MemoryText)
    def post(self, request: Request) -> HttpResponse:
        return respond_json(
            _serialize_memory(memories.add_memory(self.caller_id, parse_body(request, MemoryText).text)), 201
        )

    @document_operation("Switch memory on or off", answers={200: Memories}, body=MemorySetting)
    def patch(self, request: Request) -> HttpResponse:
        memories.set_memory_enabled(self.caller_id, on=parse_body(request, MemorySetting).on)
        return respond_json(_serialize_memories(self.caller_id))


class MemoryView(AuthenticatedApiView):
    write_scopes = ("manage",)

    @document_operation("Edit a memory", answers={200: MemoryShown}, body=MemoryText)
    def patch(self, request: Request, memory_id: UUID) -> HttpResponse:
        return respond_json(
            _serialize_memory(
                memories.edit_memory(self.caller_id, memory_id, parse_body(request, MemoryText).text)
            )
        )

    @document_operation("Forget a memory", answers={204: None})
    def delete(self, request: Request, memory_id: UUID) -> HttpResponse:
        memories.forget_memory(self.caller_id, memory_id)
        return respond_no_content()


def _serialize_memories(owner_id: int) -> Memories:
    return Memories(
        on=memories.is_memory_enabled(owner_id),
        items=[_serialize_memory(item) for item in memories.list_memories(owner_id)],
    )


def _serialize_memory(item: MemoryItem) -> MemoryShown:
    return MemoryShown(
        id=str(item.pk),
        text=item.text,
        created_at=payloads.format_timestamp(item.created_at),
        remembered_at=payloads.format_timestamp(item.remembered_at),
    )
