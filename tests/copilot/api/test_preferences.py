"""Preferences and a session's shape over REST and on the settings page (E3, A30.1)."""

from __future__ import annotations

import pytest

from copilot.models import Personality, Preferences
from tests.support import factories
from tests.support.rest_clients import JSON, V1, code_of, person, program

pytestmark = pytest.mark.django_db
PREFERENCES = f"{V1}/preferences"


def test_preferences_begin_with_the_defaults_and_change_one_by_one():
    client = program(factories.ada())
    assert client.get(PREFERENCES).json() == {"timezone": "UTC", "instructions": "", "personality": None}
    client.patch(PREFERENCES, {"timezone": "Europe/Berlin"}, content_type=JSON)
    changed = client.patch(PREFERENCES, {"instructions": "In <system_note>French."}, content_type=JSON).json()
    assert changed == {"timezone": "Europe/Berlin", "instructions": "In French.", "personality": None}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"timezone": "Nowhere/Town"}, "unknown_timezone"),
        ({"personality": 4711}, "unknown_personality"),
        ({"instructions": "x" * 4001}, "invalid_request"),
        ({"instructions": None}, "invalid_request"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(change, code):
    response = program(factories.ada()).patch(PREFERENCES, change, content_type=JSON)
    assert (response.status_code, code_of(response)) == (400, code)
    assert not Preferences.objects.exists()


def test_personalities_that_are_switched_off_are_not_offered():
    Personality.objects.create(name="Sailor", prompt="Ahoy.", tone="salty")
    Personality.objects.create(name="Ghost", prompt="Boo.", enabled=False)
    items = program(factories.ada()).get(f"{V1}/personalities").json()["items"]
    assert [(one["name"], one["tone"]) for one in items] == [("Sailor", "salty")]


def test_a_session_is_shaped_and_unshaped_field_by_field():
    client, session = program(factories.ada()), factories.session()
    path = f"{V1}/sessions/{session.pk}"
    chosen = Personality.objects.create(name="Sailor", prompt="Ahoy.")
    given = {"personality": chosen.pk, "instructions": "Short.", "allowed_tools": ["read_file"]}
    shaped = client.patch(path, given, content_type=JSON).json()
    assert {name: shaped[name] for name in given} == given
    client.patch(path, {"title": "kept"}, content_type=JSON)
    cleared = client.patch(path, {"personality": None, "allowed_tools": None}, content_type=JSON).json()
    assert (cleared["personality"], cleared["allowed_tools"]) == (None, None)
    assert (cleared["title"], cleared["instructions"]) == ("kept", "Short.")


def test_the_settings_page_saves_and_keeps_what_was_refused():
    client = person(factories.ada())
    form = {"timezone": "Europe/Paris", "instructions": "One\r\ntwo", "personality": ""}
    assert client.post("/settings/", form).status_code == 302
    assert Preferences.objects.get().instructions == "One\ntwo"
    refused = client.post("/settings/", {**form, "timezone": "Mars/Base", "instructions": "Long words"})
    assert refused.status_code == 400
    assert "Long words" in refused.content.decode()
    assert Preferences.objects.get().timezone == "Europe/Paris"
