"""REST views for memories: list, add, edit, forget, and switch memory on or off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json, respond_no_content
from copilot.api.base import AuthenticatedApiView, CleanText
from copilot.memories import services as memories
from copilot.models import MemoryItem
from copilot.realtime import payloads


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
