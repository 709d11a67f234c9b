"""Preferences over REST: what a user asks of every conversation, and the personalities to choose from (A30.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from copilot import preferences
from copilot.api.doors import Door
from copilot.api.parsing import Body, Clean, body_of


class PreferenceChanges(Body):
    """Absent fields stay as they are."""

    timezone: Annotated[str, Field(max_length=64)] = ""
    instructions: Annotated[Clean, Field(max_length=preferences.MAX_INSTRUCTIONS)] = ""
    personality: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None

    def given(self) -> preferences.Changes:
        changes: preferences.Changes = {}
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


class PreferencesView(Door):
    @operation("Read your preferences", answers={200: preferences.PreferencesView})
    def get(self, request: Request) -> HttpResponse:
        return answer(preferences.of_user(self.caller_id))

    @operation("Change your preferences", answers={200: preferences.PreferencesView}, body=PreferenceChanges)
    def patch(self, request: Request) -> HttpResponse:
        changes = body_of(request, PreferenceChanges).given()
        return answer(preferences.change(self.caller_id, changes))


class PersonalitiesView(Door):
    @operation("List the personalities to choose from", answers={200: Personalities})
    def get(self, request: Request) -> HttpResponse:
        shown = [
            PersonalityShown(id=one.pk, name=one.name, tone=one.tone, style=one.style)
            for one in preferences.personalities()
        ]
        return answer(Personalities(items=shown))
