"""What the agent remembers of a user, over REST: read, edit, forget, and switch it off (A25.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, nothing, operation
from copilot import memories, queries
from copilot.api.doors import Door
from copilot.api.parsing import Body, Clean, body_of
from copilot.models import MemoryItem


class MemoryText(Body):
    text: Annotated[Clean, Field(min_length=1, max_length=memories.MAX_CHARACTERS)]


class MemorySetting(Body):
    on: bool


@dataclass(frozen=True, kw_only=True)
class MemoryShown:
    id: str
    text: str
    created_at: str
    remembered_at: str


@dataclass(frozen=True, kw_only=True)
class Memories:
    """`on` is false when the user does not want to be remembered; what is there is kept."""

    on: bool
    items: list[MemoryShown]


class MemoriesView(Door):
    write_scopes = ("manage",)

    @operation("List what is remembered", answers={200: Memories})
    def get(self, request: Request) -> HttpResponse:
        return answer(_all(self.caller_id))

    @operation("Remember something", answers={201: MemoryShown}, body=MemoryText)
    def post(self, request: Request) -> HttpResponse:
        return answer(_shown(memories.add(self.caller_id, body_of(request, MemoryText).text)), 201)

    @operation("Switch memory on or off", answers={200: Memories}, body=MemorySetting)
    def patch(self, request: Request) -> HttpResponse:
        memories.switch(self.caller_id, on=body_of(request, MemorySetting).on)
        return answer(_all(self.caller_id))


class MemoryView(Door):
    write_scopes = ("manage",)

    @operation("Say a memory differently", answers={200: MemoryShown}, body=MemoryText)
    def patch(self, request: Request, memory_id: UUID) -> HttpResponse:
        return answer(_shown(memories.edit(self.caller_id, memory_id, body_of(request, MemoryText).text)))

    @operation("Forget a memory", answers={204: None})
    def delete(self, request: Request, memory_id: UUID) -> HttpResponse:
        memories.forget(self.caller_id, memory_id)
        return nothing()


def _all(owner_id: int) -> Memories:
    return Memories(on=memories.is_on(owner_id), items=[_shown(item) for item in memories.listed(owner_id)])


def _shown(item: MemoryItem) -> MemoryShown:
    return MemoryShown(
        id=str(item.pk),
        text=item.text,
        created_at=queries.instant(item.created_at),
        remembered_at=queries.instant(item.remembered_at),
    )
