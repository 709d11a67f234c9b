"""Forms of the pages: a wrong value is explained at its field, what was typed stays, and nothing is written."""

from __future__ import annotations

from io import BytesIO

import pytest
from django.test import Client

from copilot.accounts import api_keys
from copilot.agents import services as agents
from copilot.memories import services as memories
from copilot.models import (
    AccountDeletion,
    Agent,
    AgentVersion,
    ApiKey,
    McpServer,
    MemoryItem,
    Preferences,
    Schedule,
    Session,
    Share,
    WorkspaceFile,
)
from copilot.sharing import services as sharing
from copilot.tools.mcp import services as mcp
from tests.support import factories, rest_clients
from tests.support.html_forms import check_error, parse_elements
from tests.support.shares import spoken, stored, stranger

pytestmark = pytest.mark.django_db(transaction=True)

TASK = {"name": "Plants", "prompt": "Water them", "cron": "0 8 * * *", "timezone": "UTC"}
AGENT = {"name": "Planner", "instructions": "Plan.", "tool_choice": "any", "inputs_schema": "{}"}
URL = "https://mcp.example/api"


@pytest.fixture
def ada() -> Client:
    return rest_clients.person(factories.ada())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cron", "every day", "Use 5 fields"),
        ("cron", "* * * * *", "at most every"),
        ("cron", "", "This field is required."),
        ("timezone", "Mars/Base", "That time zone doesn't exist."),
        ("prompt", "x" * 64_001, "Messages can be up to"),
        ("name", "n" * 101, "at most 100 characters"),
    ],
)
def test_a_wrong_task_is_explained_at_its_field(ada: Client, name: str, value: str, message: str) -> None:
    page = ada.post("/settings/schedules/", TASK | {name: value})
    assert page.status_code == 400
    check_error(page, name, message, kept=value)
    assert not Schedule.objects.exists()


def test_the_other_fields_of_a_wrong_task_are_kept(ada: Client) -> None:
    page = ada.post("/settings/schedules/", TASK | {"cron": "never"}).content.decode()
    assert 'value="Plants"' in page
    assert "Water them</textarea>" in page


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("timezone", "Mars/Base", "That time zone doesn't exist."),
        ("instructions", "x" * 4_001, "Instructions can be up to 4,000 characters."),
    ],
)
def test_wrong_settings_are_explained_at_their_field(
    ada: Client, name: str, value: str, message: str
) -> None:
    page = ada.post("/settings/", {"timezone": "UTC", "instructions": "", name: value})
    assert page.status_code == 400
    check_error(page, name, message, kept=value)
    assert not Preferences.objects.exists()


def test_an_empty_memory_is_refused_at_its_own_field(ada: Client) -> None:
    first, second = (memories.add_memory(factories.ada().pk, text) for text in ("Drinks tea.", "Sails."))
    page = ada.post(f"/settings/memories/{first.pk}/edit/", {"text": " "})
    assert page.status_code == 400
    control = check_error(page, "text", "This field is required.")
    assert control.attributes["id"] == f"text-{first.pk}"
    page = ada.post(f"/settings/memories/{second.pk}/edit/", {"text": "x" * 1_001})
    check_error(page, "text", "Memories can be up to 1,000 characters.", kept="x" * 1_001)
    assert set(MemoryItem.objects.values_list("text", flat=True)) == {"Drinks tea.", "Sails."}


def test_a_key_without_rights_is_refused_at_its_field(ada: Client) -> None:
    page = ada.post("/settings/keys/", {"name": "ci"})
    assert page.status_code == 400
    check_error(page, "scopes", "Choose at least one.")
    assert b'value="ci"' in page.content
    page = ada.post("/settings/keys/", {"name": "n" * 101, "scopes": ["read"]})
    check_error(page, "name", "at most 100 characters", kept="n" * 101)
    assert not ApiKey.objects.exists()


def test_one_key_too_many_is_refused_above_the_form(ada: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "MAX_KEYS_PER_USER", 0)
    page = ada.post("/settings/keys/", {"name": "ci", "scopes": ["read"]})
    assert page.status_code == 409
    [alert] = [one for one in parse_elements(page.content.decode()) if one.attributes.get("role") == "alert"]
    assert "You can have up to 0 keys." in alert.text
    assert "autofocus" in alert.attributes


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("name", "", "This field is required."),
        ("instructions", "x" * 32_001, "Must have 1 to 32,000 characters"),
        ("tools", "no/such tool", "is not a tool name."),
        ("inputs_schema", "[1]", "Enter a JSON object"),
        ("inputs_schema", '{"type": "array"}', 'Its "type" must be "object".'),
        ("tier", "huge", "Select a valid choice."),
    ],
)
def test_a_wrong_agent_is_explained_at_its_field(ada: Client, name: str, value: str, message: str) -> None:
    page = ada.post("/agents/new/", AGENT | {name: value})
    assert page.status_code == 400
    check_error(page, name, message, kept=value if name != "tier" else None)
    assert not Agent.objects.exists()


def test_listed_tools_without_a_name_are_refused(ada: Client) -> None:
    page = ada.post("/agents/new/", AGENT | {"tool_choice": "listed", "tools": ""})
    check_error(page, "tools", "Name at least one tool")
    assert not Agent.objects.exists()


def test_an_agent_changed_in_the_meantime_keeps_what_was_typed(ada: Client) -> None:
    version = agents.create_agent(factories.ada().pk, agents.AgentDraft(name="Planner", instructions="Plan."))
    changed = AGENT | {"instructions": "Mine", "expected_version": "7"}
    page = ada.post(f"/agents/{version.agent_id}/", changed)
    assert page.status_code == 409
    assert "The agent has changed since version 7." in page.content.decode()
    assert b"Mine</textarea>" in page.content
    assert AgentVersion.objects.count() == 1


def test_wrong_inputs_of_a_run_are_explained_at_their_field(ada: Client) -> None:
    version = agents.create_agent(factories.ada().pk, agents.AgentDraft(name="Planner", instructions="Plan."))
    page = ada.post(f"/agents/{version.agent_id}/run/", {"inputs": "nonsense"})
    assert page.status_code == 400
    check_error(page, "inputs", "Enter a JSON object", kept="nonsense")
    page = ada.post(f"/agents/{version.agent_id}/run/", {"inputs": '{"where": 1}'})
    check_error(page, "inputs", "this agent takes no inputs", kept='{"where": 1}')
    assert not Session.objects.exists()


@pytest.mark.parametrize(
    ("sent", "name", "message"),
    [
        ({"password": "short"}, "password", "Use a password of 8 to 128 characters."),
        ({"expires": "custom", "days": "soon"}, "days", "Enter after how many days the link expires."),
        ({"expires": "custom", "days": "99999"}, "days", "Links can last up to"),
        ({"expires": "later"}, "expires", "Select a valid choice."),
    ],
)
def test_a_wrong_change_of_a_share_is_explained_at_its_field(
    ada: Client, sent: dict[str, str], name: str, message: str
) -> None:
    session = spoken("Hello", "Hi")
    share = sharing.publish_session(
        session.owner_id, session.pk, sharing.ShareRequest(), sharing.ShareTerms()
    )
    page = ada.post(f"/settings/shares/{share.pk}/change/", sent)
    assert page.status_code == 400
    check_error(page, name, message, kept=sent["days"] if name == "days" else None)
    assert b"short" not in page.content.split(b"<main")[1].replace(b"shortest", b"")
    row = Share.objects.get()
    assert (row.expires_at, row.password_hash) == (None, "")


def test_a_share_opens_only_with_its_password() -> None:
    session = spoken("Hello", "Hi")
    terms = sharing.ShareTerms(password="open sesame")
    share = sharing.publish_session(session.owner_id, session.pk, sharing.ShareRequest(), terms)
    page = stranger().post(f"/share/{share.token}/unlock", {"password": "guess"})
    assert page.status_code == 403
    check_error(page, "password", "Wrong password.", kept="")


@pytest.mark.parametrize(
    ("sent", "name", "message"),
    [
        ({"name": "no spaces!"}, "name", "Use 1–40 letters"),
        ({"url": "ftp://mcp.example"}, "url", ""),
        ({"url": "https://127.0.0.1/"}, "url", "public"),
        ({"secrets": "no colon"}, "secrets", "Enter one header per line, as Name: value."),
        ({"secrets": "Host: canary"}, "secrets", "cannot be set"),
    ],
)
def test_a_wrong_server_is_explained_at_its_field(
    ada: Client, sent: dict[str, str], name: str, message: str
) -> None:
    """Secrets are the one thing that is not sent back."""
    whole = {"name": "files", "url": URL, "secrets": ""} | sent
    page = ada.post("/settings/mcp/", whole)
    assert page.status_code == 400
    check_error(page, name, message, kept=sent[name] if name != "secrets" else "")
    assert b"canary" not in page.content
    assert not McpServer.objects.exists()


def test_a_server_of_the_same_name_is_refused_at_the_name(ada: Client) -> None:
    for name in ("one", "two"):
        mcp.create_server(factories.ada().pk, mcp.McpServerDraft(name=name, url=URL))
    server = McpServer.objects.get(name="two")
    page = ada.post(f"/settings/mcp/{server.pk}/", {"name": "one", "url": URL, "enabled": "1"})
    assert page.status_code == 409
    control = check_error(page, "name", "You already have a server named one.", kept="one")
    assert control.attributes["id"] == f"name-{server.pk}"
    assert b"<details open>" in page.content
    assert set(McpServer.objects.values_list("name", flat=True)) == {"one", "two"}


def test_a_file_cannot_lose_its_name(ada: Client) -> None:
    file = stored("plan.txt")
    page = ada.post(f"/files/{file.pk}/rename/", {"name": "/", "place": "q=plan"})
    assert page.status_code == 400
    check_error(page, "name", "A file needs a name.", kept="/")
    assert b'name="q" value="plan"' in page.content
    assert WorkspaceFile.objects.get().name == "plan.txt"


def test_a_wrong_document_is_explained_at_its_field(ada: Client) -> None:
    page = ada.post("/settings/account/import/")
    assert page.status_code == 400
    check_error(page, "document", "Choose a file first.")
    document = BytesIO(b'{"schema": "nothing"}')
    document.name = "wrong.json"
    page = ada.post("/settings/account/import/", {"document": document, "force": "on"})
    assert page.status_code == 400
    check_error(page, "document", "")
    assert b"checked" in page.content.split(b'name="force"')[1][:80]
    assert not Session.objects.exists()


def test_deleting_an_account_needs_its_name_and_the_password(ada: Client) -> None:
    sent = {"phrase": "somebody@example.com", "password": factories.PASSWORD}
    page = ada.post("/settings/account/delete/", sent)
    assert page.status_code == 400
    check_error(page, "phrase", "The name doesn't match.", kept="somebody@example.com")
    page = ada.post("/settings/account/delete/", {"phrase": "ada@example.com", "password": "wrong"})
    assert page.status_code == 400
    check_error(page, "password", "Wrong password.", kept="")
    assert b'value="ada@example.com"' in page.content
    assert not AccountDeletion.objects.exists()


def test_a_message_that_is_too_long_stays_in_the_composer(ada: Client) -> None:
    page = ada.post("/chat/start/", {"text": "x" * 64_001})
    assert page.status_code == 400
    assert b"Messages can be up to 64,000 characters" in page.content
    assert b"x" * 64_001 + b"</textarea>" in page.content
    assert not Session.objects.exists()
