"""A key's scopes bind what the model does for it, whichever way the turn was started and wherever it continues."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from config.core.db import run_in_thread
from config.core.errors import Forbidden
from copilot.accounts import api_keys
from copilot.agents import services as agents
from copilot.chat import approval_decisions, goals
from copilot.chat.commands import DecideApproval
from copilot.chat.permissions import SCOPE_TOOLS, UNRESTRICTED, Permissions, permissions_for_scopes
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN
from copilot.files import services as files
from copilot.models import Agent, Approval, MemoryItem, Message, Schedule, Session, Share, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.tools import registry
from tests.support import factories
from tests.support.approvals import list_open_approvals, wait_until_turn_paused
from tests.support.goals import make_verdict
from tests.support.rest_clients import JSON, V1, code_of, person, program
from tests.support.turn_engine import Model, Rig, cue, ended, queue, quiet, start, until
from tests.support.websocket_client import connected, engine

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.attack]

# Every shipped tool, by the scope that REST asks for the same act. A new tool has to be put somewhere.
NEEDS = {
    "manage": {
        "cancel_scheduled_task",
        "create_agent",
        "edit_agent",
        "memory_add",
        "memory_forget",
        "schedule_task",
        "share_file",
    },
    "read": {"list_agents", "list_scheduled_tasks", "memory_search", "view_agent_output"},
    "chat": {
        "ask_user",
        "bash_exec",
        "current_time",
        "delete_file",
        "get_agent_guide",
        "get_sub_session_result",
        "list_files",
        "python_exec",
        "read_file",
        "read_tool_result",
        "run_agent",
        "run_sub_session",
        "todos_write",
        "web_fetch",
        "web_search",
        "write_file",
    },
}
SIDE_EFFECTS: list[tuple[str, dict]] = [
    ("memory_add", {"text": "The key was here."}),
    ("memory_forget", {"id": "00000000-0000-4000-8000-000000000000"}),
    ("create_agent", {"name": "Mole", "instructions": "Dig."}),
    ("edit_agent", {"agent_id": "00000000-0000-4000-8000-000000000000", "expected_version": 1}),
    ("share_file", {"file": "log.txt"}),
    ("schedule_task", {"prompt": "Dig.", "cron": "0 9 * * *", "timezone": "UTC"}),
    ("cancel_scheduled_task", {"id": "00000000-0000-4000-8000-000000000000"}),
]
USUAL = permissions_for_scopes(frozenset({"read", "chat"}))


def permissions_of(session: Session | None = None) -> Permissions:
    """Of the newest turn."""
    rows = Turn.objects.all() if session is None else Turn.objects.filter(session=session)
    return Permissions.from_json(rows.order_by("-created_at")[0].permissions)


@pytest.fixture(name="ada")
def ada_fixture(rig: Rig) -> User:
    return factories.ada()


# --- the matrix --------------------------------------------------------------------------------------


def test_every_shipped_tool_has_its_scope() -> None:
    assert {name for tools in NEEDS.values() for name in tools} == {
        tool.name for tool in registry.BUILTIN_TOOLS
    }
    assert {scope: set(tools) for scope, tools in SCOPE_TOOLS.items()} == {
        scope: NEEDS[scope] for scope in ("manage", "read")
    }
    assert {name for name, _ in SIDE_EFFECTS} == NEEDS["manage"]


@pytest.mark.parametrize(
    "scopes",
    [frozenset(some) for size in range(1, 6) for some in combinations(api_keys.SCOPES, size)],
    ids=lambda some: "+".join(sorted(some)),
)
def test_every_side_effect_is_offered_with_its_scope_alone(scopes: frozenset[str]) -> None:
    """All sets of scopes, all tools"""
    permissions = permissions_for_scopes(scopes)
    offered = {tool.name for tool in registry.list_offered_tools(permissions, CHANNELS_BY_ORIGIN["web"])}
    everything = {tool.name for tool in registry.list_offered_tools(UNRESTRICTED, CHANNELS_BY_ORIGIN["web"])}
    lacking = {name for scope in ("manage", "read") if scope not in scopes for name in NEEDS[scope]}
    if "read" not in scopes:
        lacking |= {"memory_add", "memory_forget"}  # what is remembered is neither told nor changed
    assert offered == everything - lacking
    assert permissions.is_within(UNRESTRICTED)
    assert (permissions.files == "workspace") == ("read" in scopes)
    assert permissions_for_scopes(None) == UNRESTRICTED


def test_the_model_cannot_do_for_a_key_what_the_key_cannot(ada: User, model: Model) -> None:
    session = factories.session(ada)
    files.store_file(ada.pk, name="log.txt", content=b"calm", source="upload")
    model.will(*(ScriptedCall(name, arguments) for name, arguments in SIDE_EFFECTS))
    model.will(ScriptedText("Done."))
    sent = program(ada, "read", "chat").post(
        f"{V1}/sessions/{session.pk}/messages", {"text": "Do it all"}, content_type=JSON
    )
    assert sent.status_code == 201
    ended(sent.json()["turn_id"])
    told = Message.objects.filter(session=session, kind="tool_result").values_list("content", flat=True)
    assert [text.partition(".")[0] for text in told] == [
        f'There is no tool named "{name}"' for name, _ in SIDE_EFFECTS
    ]
    for table in (MemoryItem, Agent, Share, Schedule, Approval):
        assert not table.objects.exists()


# --- every way in ------------------------------------------------------------------------------------


def _messages(client: Client, session: Session) -> None:
    client.post(f"{V1}/sessions/{session.pk}/messages", {"text": "Hello"}, content_type=JSON)


def _goal(client: Client, session: Session) -> None:
    client.post(f"{V1}/sessions/{session.pk}/goal", {"text": "Write"}, content_type=JSON)


def _slash(client: Client, session: Session) -> None:
    client.post(f"{V1}/sessions/{session.pk}/messages", {"text": "/new and go on"}, content_type=JSON)


def _retry(client: Client, session: Session) -> None:
    ended(start(session))
    quiet(session)
    said = Message.objects.filter(session=session, kind="user").get()
    body = {"act": "retry", "message_id": str(said.pk)}
    answer = client.post(f"{V1}/sessions/{session.pk}/branches", body, content_type=JSON)
    assert answer.status_code == 201, answer.content


def _agent(client: Client, session: Session) -> None:
    made = agents.create_agent(session.owner_id, agents.AgentDraft(name="Mole", instructions="Dig."))
    client.post(f"{V1}/agents/{made.agent_id}/runs", {}, content_type=JSON)


def _completion(client: Client, session: Session) -> None:
    body = {"model": "standard", "messages": [{"role": "user", "content": "Hello"}]}
    assert client.post("/v1/chat/completions", body, content_type=JSON).status_code == 200


@pytest.mark.parametrize("way", [_messages, _goal, _slash, _retry, _agent, _completion])
def test_every_way_in_of_a_key_narrows_its_turn(
    way: Callable[[Client, Session], None], ada: User, model: Model
) -> None:
    session = factories.session(ada, title="Named")
    before = set(Turn.objects.values_list("pk", flat=True))
    way(program(ada, "read", "chat"), session)
    until(lambda: not Turn.objects.exclude(status__in=["succeeded", "failed", "cancelled"]).exists())
    assert set(Turn.objects.values_list("pk", flat=True)) > before
    assert permissions_of().is_within(USUAL)
    assert permissions_of().denied_tools >= SCOPE_TOOLS["manage"]


async def test_sockets_of_a_key_and_of_its_tickets_are_bound_by_its_scopes() -> None:
    async with engine():
        ada = await run_in_thread(factories.ada)
        session = await run_in_thread(factories.session, ada)
        made = await run_in_thread(api_keys.create_api_key, ada)
        headers = {"authorization": f"Bearer {made.token}"}
        answer = await run_in_thread(Client(headers=headers).post, f"{V1}/ws-tickets", {}, content_type=JSON)
        ways = [
            {"headers": [(b"authorization", f"Bearer {made.token}".encode())]},
            {"query": f"?ticket={answer.json()['ticket']}"},
        ]
        for way in ways:
            async with connected(ada, **way) as socket:
                told = await socket.ask("message.send", session_id=str(session.pk), text="Hello")
                assert told["kind"] == "ack", told
                said = await run_in_thread(Message.objects.get, pk=told["message_id"])
                assert Permissions.from_json(said.permissions) == USUAL


# --- and where it continues ----------------------------------------------------------------------------


def test_a_sub_session_may_do_no_more(ada: User, model: Model) -> None:
    session = factories.session(ada)
    model.will(ScriptedCall("run_sub_session", {"prompt": "Remember this.", "wait_seconds": 60}))
    ended(start(session, permissions=USUAL))
    child = Turn.objects.get(origin="parent")
    assert Permissions.from_json(child.permissions).is_within(USUAL)


def test_a_persons_waiting_message_that_a_key_edits_may_do_no_more_than_the_key(
    ada: User, model: Model
) -> None:
    session = factories.session(ada)
    model.will(cue(1), ScriptedText("First."))
    start(session)
    model.reaches(1)
    message_id = queue(session, "A person's words", run_id="own-turn")
    path = f"{V1}/sessions/{session.pk}/queue/{message_id}"
    assert person(ada).patch(path, {"text": "Mine still"}, content_type=JSON).status_code == 200
    assert Permissions.from_json(Message.objects.get(pk=message_id).permissions) == UNRESTRICTED
    changed = program(ada, "read", "chat").patch(path, {"text": "Share it all"}, content_type=JSON)
    assert changed.status_code == 200, changed.content
    model.give(1)
    quiet(session)
    turn = Message.objects.get(pk=message_id).turn
    assert turn is not None
    assert Permissions.from_json(turn.permissions) == USUAL


def test_a_keys_message_does_not_join_a_persons_turn(ada: User, model: Model) -> None:
    session = factories.session(ada)
    model.will(cue(1), ScriptedCall("current_time", {}))
    first = start(session)
    model.reaches(1)
    queued = program(ada, "read", "chat").post(
        f"{V1}/sessions/{session.pk}/messages", {"text": "And share it"}, content_type=JSON
    )
    assert queued.status_code == 202
    model.give(1)
    quiet(session)
    own = Message.objects.get(pk=queued.json()["message_id"]).turn
    assert own is not None
    assert own.pk != first
    assert Permissions.from_json(own.permissions) == USUAL


def test_a_goal_that_a_key_set_continues_with_the_keys_permissions(
    rig: Rig, ada: User, model: Model, judge: Model
) -> None:
    """Though the turn that was judged is a person's"""
    session = factories.session(ada, title="Named")
    goals.set_goal(ada.pk, session.pk, "Share everything", USUAL)
    judge.will(make_verdict(False, "Share it"))
    start(session)
    rig.run_errands()
    quiet(session)
    went_on = Turn.objects.get(session=session, origin="goal")
    assert Permissions.from_json(went_on.permissions).is_within(USUAL)


def test_a_schedule_that_a_key_made_runs_with_its_permissions(ada: User) -> None:
    body = {"prompt": "Dig.", "cron": "0 9 * * *", "timezone": "UTC"}
    made = program(ada, "manage").post(f"{V1}/schedules", body, content_type=JSON)
    assert made.status_code == 201, made.content
    kept = Permissions.from_json(Schedule.objects.get().permissions)
    assert kept == permissions_for_scopes(frozenset({"manage"}))
    assert not kept.memory


# --- deciding ----------------------------------------------------------------------------------------


@pytest.fixture(name="asked")
def asked_fixture(ada: User, model: Model) -> Approval:
    """A person's turn asks whether a file may be shared."""
    session = factories.session(ada)
    files.store_file(ada.pk, name="log.txt", content=b"calm", source="upload")
    model.will(ScriptedCall("share_file", {"file": "log.txt"}))
    start(session)
    wait_until_turn_paused(session)
    [row] = list_open_approvals(session)
    return row


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_key_without_the_scope_cannot_decide_what_only_a_person_may_allow(
    decision: str, asked: Approval, ada: User
) -> None:
    client = program(ada, "read", "chat")
    one = client.post(f"{V1}/approvals/{asked.pk}/decide", {"decision": decision}, content_type=JSON)
    many = client.post(
        f"{V1}/approvals/decide",
        {"decisions": [{"approval_id": str(asked.pk), "decision": decision}]},
        content_type=JSON,
    )
    for answer in (one, many):
        assert (answer.status_code, code_of(answer)) == (403, "insufficient_scope"), answer.content
    asked.refresh_from_db()
    assert (asked.state, Share.objects.count()) == ("requested", 0)


@pytest.mark.parametrize("who", [lambda ada: person(ada), lambda ada: program(ada, "chat", "manage")])
def test_a_person_and_a_key_with_the_scope_decide(
    who: Callable[[User], Client], asked: Approval, ada: User
) -> None:
    answer = who(ada).post(f"{V1}/approvals/{asked.pk}/decide", {"decision": "approve"}, content_type=JSON)
    assert answer.status_code == 200, answer.content
    ended(asked.turn_id)
    assert Share.objects.count() == 1


def test_other_calls_are_decided_with_the_scope_chat(ada: User, model: Model, settings) -> None:
    """A20.6"""
    settings.ASK_BEFORE_TOOLS = ["current_time"]
    session = factories.session(ada)
    model.will(ScriptedCall("current_time", {}))
    start(session)
    wait_until_turn_paused(session)
    [row] = list_open_approvals(session)
    answer = program(ada, "chat").post(
        f"{V1}/approvals/{row.pk}/decide", {"decision": "approve"}, content_type=JSON
    )
    assert answer.status_code == 200, answer.content
    ended(row.turn_id)


def test_a_key_cannot_let_calls_run_without_asking_that_it_may_not_approve(ada: User, model: Model) -> None:
    session = factories.session(ada)
    agent = agents.create_agent(ada.pk, agents.AgentDraft(name="Mole", instructions="Dig."))
    switched = program(ada, "read", "chat").patch(
        f"{V1}/sessions/{session.pk}", {"auto_approve": {"enabled": True}}, content_type=JSON
    )
    assert switched.status_code == 200, switched.content
    model.will(
        ScriptedCall("edit_agent", {"agent_id": str(agent.agent_id), "expected_version": 1, "name": "Spy"})
    )
    start(session)
    wait_until_turn_paused(session)
    [row] = list_open_approvals(session)
    assert row.tool == "edit_agent"


def test_one_refused_decision_is_a_refusal_of_all(asked: Approval, ada: User) -> None:
    decisions = [DecideApproval(approval_id=asked.pk, decision="approve")]
    with pytest.raises(Forbidden):
        approval_decisions.decide_approvals(ada.pk, decisions, scopes=frozenset({"chat"}))
    assert approval_decisions.decide_approvals(ada.pk, decisions).resumed == [asked.turn_id]
    ended(asked.turn_id)
