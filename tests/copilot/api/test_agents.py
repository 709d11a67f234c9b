"""Agents over REST and on their pages (A27, E3)."""

from __future__ import annotations

import pytest

from copilot.agents import services as agents
from copilot.models import Agent, Message, Session
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, V1, code_of, person, program

pytestmark = pytest.mark.django_db
AGENTS = f"{V1}/agents"
NEW = {"name": "Planner", "instructions": "Plan a trip.", "tools": ["read_file"]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def manager():
    return program(factories.ada(), "read", "manage", "chat")


def made(client, **fields):
    return client.post(AGENTS, NEW | fields, content_type=JSON).json()


def test_an_agent_is_made_read_edited_and_deleted():
    client = manager()
    first = made(client)
    path = f"{AGENTS}/{first['id']}"
    assert client.get(path).json() == first
    second = client.patch(path, {"expected_version": 1, "name": "Guide"}, content_type=JSON).json()
    assert (second["version"], second["name"], second["instructions"]) == (2, "Guide", "Plan a trip.")
    late = client.patch(path, {"expected_version": 1, "name": "Late"}, content_type=JSON)
    assert (late.status_code, code_of(late)) == (409, "version_conflict")
    assert [one["version"] for one in client.get(f"{path}/versions").json()["items"]] == [2, 1]
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


def test_writing_needs_the_scope_manage():
    """A20.6"""
    response = program(factories.ada()).post(AGENTS, NEW, content_type=JSON)
    assert (response.status_code, code_of(response)) == (403, "insufficient_scope")


def test_what_is_wrong_is_listed():
    response = manager().post(AGENTS, NEW | {"inputs_schema": {"type": "array"}}, content_type=JSON)
    assert (response.status_code, code_of(response)) == (400, "validation_failed")
    assert len(response.json()["error"]["details"]["errors"]) == 1


@pytest.mark.parametrize("path", ["", "/versions"])
def test_other_users_agents_look_unknown(path):
    foreign = agents.create_agent(
        factories.bob().pk, agents.AgentDraft(name="His", instructions="Secret.")
    ).agent_id
    bodies = {manager().get(f"{AGENTS}/{one}{path}").content for one in (foreign, NOBODYS)}
    assert len(bodies) == 1


def test_pages_follow_each_other():
    client = manager()
    for name in ("b", "a", "c", "a"):
        made(client, name=name)
    first = client.get(f"{AGENTS}?limit=3").json()
    rest = client.get(f"{AGENTS}?limit=3&cursor={first['next_cursor']}").json()
    assert [one["name"] for one in first["items"] + rest["items"]] == ["a", "a", "b", "c"]
    assert rest["next_cursor"] is None


def test_a_run_starts_a_session_bound_to_the_version():
    """A27.5"""
    client = manager()
    agent = made(client, inputs_schema=SCHEMA)
    path = f"{AGENTS}/{agent['id']}/runs"
    dry = client.post(path, {"inputs": {"city": "Oslo"}, "dry_run": True}, content_type=JSON)
    assert (dry.status_code, dry.json()["session_id"]) == (200, None)
    refused = client.post(path, {"inputs": {}}, content_type=JSON)
    assert (refused.status_code, code_of(refused)) == (400, "inputs_invalid")
    started = client.post(path, {"inputs": {"city": "Oslo"}}, content_type=JSON)
    assert started.status_code == 201
    session = Session.objects.get(pk=started.json()["session_id"])
    assert session.agent_version.number == 1
    assert "Oslo" in Message.objects.get(session=session).content


def test_the_builder_is_one_session():
    """A27.6"""
    client = manager()
    path = f"{AGENTS}/{made(client)['id']}/builder"
    assert client.post(path).json()["id"] == client.post(path).json()["id"]


def test_an_agent_is_made_edited_run_and_built_on_its_pages():
    client = person(factories.ada())
    form = {
        "name": "Planner",
        "instructions": "One\r\ntwo",
        "tools": "read_file\nweb_fetch",
        "inputs_schema": "{}",
    }
    assert client.get("/agents/new/").status_code == 200
    assert client.post("/agents/new/", form | {"inputs_schema": "nope"}).status_code == 400
    made_at = client.post("/agents/new/", form)
    agent = Agent.objects.get()
    assert made_at["Location"] == f"/agents/{agent.pk}/"
    assert b"Planner" in client.get("/agents/").content
    edit = form | {"expected_version": "1", "name": "Guide"}
    assert client.post(made_at["Location"], edit).status_code == 302
    conflict = client.post(made_at["Location"], edit | {"name": "Late"})
    assert (conflict.status_code, b"Late" in conflict.content) == (409, True)
    version = agents.get_version(factories.ada().pk, agent.pk)
    assert (version.name, version.tools, version.instructions) == (
        "Guide",
        ["read_file", "web_fetch"],
        "One\ntwo",
    )
    assert client.post(f"/agents/{agent.pk}/run/", {"inputs": '{"a": 1}'}).status_code == 400
    ran = client.post(f"/agents/{agent.pk}/run/", {"inputs": ""})
    assert Session.objects.get(agent_version=version).pk.hex in ran["Location"].replace("-", "")
    built = client.post(f"/agents/{agent.pk}/build/")
    assert Session.objects.get(built_agent=agent).pk.hex in built["Location"].replace("-", "")
    assert client.post(f"/agents/{agent.pk}/delete/").status_code == 302
    assert client.get(f"/agents/{agent.pk}/").status_code == 404


@pytest.mark.parametrize(
    ("choice", "names", "kept"),
    [
        ("any", "", None),
        ("none", "", []),
        ("none", "read_file", []),
        ("listed", "read_file", ["read_file"]),
        ("any", "read_file", ["read_file"]),
        ("", "", None),
    ],
)
def test_an_agent_without_tools_stays_without_when_its_page_is_saved(choice, names, kept):
    client = person(factories.ada())
    version = agents.create_agent(
        factories.ada().pk, agents.AgentDraft(name="Quiet", instructions="Think.", tools=[])
    )
    page = f"/agents/{version.agent_id}/"
    assert '<option value="none" selected>' in client.get(page).content.decode()
    form = {"name": "Quiet", "instructions": "Think.", "inputs_schema": "{}", "expected_version": "1"}
    assert client.post(page, form | {"tool_choice": choice, "tools": names}).status_code == 302
    assert agents.get_version(factories.ada().pk, version.agent_id).tools == kept


def test_a_list_of_tools_without_names_is_asked_for():
    form = {"name": "Quiet", "instructions": "Think.", "tool_choice": "listed", "tools": " "}
    refused = person(factories.ada()).post("/agents/new/", form)
    assert refused.status_code == 400
    assert b"Name at least one" in refused.content
