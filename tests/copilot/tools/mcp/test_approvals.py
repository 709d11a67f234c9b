"""Tools of MCP servers ask first, and whom to believe when they say they need not (A28.6, A11)."""

from __future__ import annotations

import pytest

from config.core.errors import InvalidRequest
from copilot.models import Approval, McpServer, Message
from copilot.providers.scripted import ScriptedCall
from tests.support import factories, mcp_servers
from tests.support.approvals import approve_requests, list_open_approvals, wait_until_turn_paused
from tests.support.turn_engine import Model, Rig, ended, start

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_call_waits_for_a_person_and_runs_in_another_worker(rig: Rig, model: Model) -> None:
    """A28.6, A11.10: the tools are there again when the turn continues, and edited arguments are checked meanwhile"""
    session = factories.session()
    mcp_servers.everybodys("files", mcp_servers.standing(), never_ask=())
    model.will(ScriptedCall("mcp_files_greet", {"name": "Ada"}))
    turn_id = start(session)
    wait_until_turn_paused(session)
    rig.worker.leave()
    rig.start_worker()
    [request] = list_open_approvals(session)
    with pytest.raises(InvalidRequest) as caught:
        approve_requests(request, arguments={"name": 7})
    assert caught.value.code == "invalid_arguments"
    approve_requests(request, arguments={"name": "Bob"})
    ended(turn_id)
    assert "Hello, Bob!" in Message.objects.get(session=session, kind="tool_result").content
    assert model.requests[0].tools == model.requests[1].tools


def test_a_changed_call_of_a_server_that_was_removed_can_only_be_rejected(rig: Rig, model: Model) -> None:
    """A11.6"""
    session = factories.session()
    mcp_servers.everybodys("files", mcp_servers.standing(), never_ask=())
    model.will(ScriptedCall("mcp_files_greet", {"name": "Ada"}))
    start(session)
    wait_until_turn_paused(session)
    McpServer.objects.all().delete()
    with pytest.raises(InvalidRequest):
        approve_requests(*list_open_approvals(session), arguments={"name": "Bob"})
    assert list_open_approvals(session)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, ["mcp_files_label", "mcp_files_greet"]),
        ({"never_ask": ("greet",)}, ["mcp_files_label"]),
        ({"trusted": True}, ["mcp_files_greet"]),
    ],
)
def test_who_need_not_ask_is_for_administrators_to_say(
    rig: Rig, model: Model, fields: dict[str, object], asked: list[str]
) -> None:
    """A28.6: `label` says of itself that it only reads"""
    session = factories.session()
    mcp_servers.everybodys("files", mcp_servers.standing(), **({"never_ask": ()} | fields))
    model.will(ScriptedCall("mcp_files_label", {}), ScriptedCall("mcp_files_greet", {"name": "Ada"}))
    start(session)
    wait_until_turn_paused(session)
    requests = Approval.objects.filter(session=session).order_by("position")
    assert [request.tool for request in requests] == asked


def test_a_users_own_server_is_not_believed(rig: Rig, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A28.6"""
    session = factories.session()
    port = mcp_servers.standing()
    mcp_servers.may_reach(monkeypatch, port)
    mcp_servers.users(session.owner, "mine", mcp_servers.url(port))
    model.will(ScriptedCall("mcp_mine_label", {}))
    start(session)
    wait_until_turn_paused(session)
    assert [request.tool for request in list_open_approvals(session)] == ["mcp_mine_label"]
