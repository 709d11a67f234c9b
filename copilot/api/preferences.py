"""REST views for a user's preferences and the personalities to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import RequestBody, parse_body
from config.core.api.views import document_operation, respond_json
from copilot.accounts import preferences
from copilot.api.base import AuthenticatedApiView, CleanText


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
