"""Store a user's preferences for all sessions. The only writer of Preferences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict
from zoneinfo import available_timezones

from django.db import DataError, connection, transaction

from config.core.errors import InvalidRequest
from copilot.models import Personality, Preferences

MAX_INSTRUCTIONS_CHARACTERS = 4_000


@dataclass(frozen=True, kw_only=True)
class UserPreferences:
    timezone: str
    instructions: str
    personality: int | None


class PreferenceUpdate(TypedDict, total=False):
    """The changed fields; absent ones stay as they are."""

    timezone: str
    instructions: str
    personality_id: int | None


def get_preferences(owner_id: int) -> UserPreferences:
    row = Preferences.objects.filter(owner=owner_id).first() or Preferences(owner_id=owner_id)
    return UserPreferences(
        timezone=row.timezone or "UTC", instructions=row.instructions, personality=row.personality_id
    )


def update_preferences(owner_id: int, changes: PreferenceUpdate) -> UserPreferences:
    if timezone := changes.get("timezone"):
        _check_time_zone(timezone)
    check_instructions(changes.get("instructions", ""))
    check_personality(changes.get("personality_id"))
    Preferences.objects.update_or_create(owner_id=owner_id, defaults={**changes})
    return get_preferences(owner_id)


def check_instructions(text: str) -> None:
    if len(text) > MAX_INSTRUCTIONS_CHARACTERS:
        raise InvalidRequest(
            f"Instructions can be up to {MAX_INSTRUCTIONS_CHARACTERS:,} characters.", field="instructions"
        )


def check_personality(personality_id: int | None) -> None:
    if personality_id is not None and not any(
        personality.pk == personality_id for personality in list_personalities()
    ):
        raise InvalidRequest(
            "That personality doesn't exist.", code="unknown_personality", field="personality"
        )


def list_personalities() -> list[Personality]:
    return list(Personality.objects.filter(enabled=True).order_by("name"))


def list_time_zones() -> list[str]:
    return sorted(name for name in available_timezones() if "/" in name or name == "UTC")


def _check_time_zone(name: str) -> None:
    """Check that both Python and Postgres know the zone, because both use it."""
    unknown = InvalidRequest(
        "That time zone doesn't exist. Use a name like Europe/Berlin.",
        code="unknown_timezone",
        field="timezone",
    )
    if name not in available_timezones():
        raise unknown
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT now() AT TIME ZONE %s", [name])
    except DataError as problem:
        raise unknown from problem


def erase_preferences(owner_id: int) -> int:
    removed, _ = Preferences.objects.filter(owner=owner_id).delete()
    return removed
