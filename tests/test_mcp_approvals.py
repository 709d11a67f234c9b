"""Tools of MCP servers ask first, and whom to believe when they say they need not (A28.6, A11)."""

from __future__ import annotations

import pytest

from config.core.errors import InvalidRequest
from copilot.models import Approval, McpServer, Message
from copilot.providers.scripted import ScriptedCall
from tests import make, mcp_rig
from tests.engine import Model, Rig, ended, start
from tests.engine import model_fixture as model_fixture
from tests.engine import rig_fixture as rig_fixture
from tests.test_approvals import approve, open_requests, paused

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_call_waits_for_a_person_and_runs_in_another_worker(rig: Rig, model: Model) -> None:
    """A28.6, A11.10: the tools are there again when the turn goes on, and edited arguments are checked meanwhile"""
    session = make.session()
    mcp_rig.everybodys("files", mcp_rig.standing(), never_ask=())
    model.will(ScriptedCall("mcp_files_greet", {"name": "Ada"}))
    turn_id = start(session)
    paused(session)
    rig.worker.leave()
    rig.start_worker()
    [request] = open_requests(session)
    with pytest.raises(InvalidRequest) as caught:
        approve(request, arguments={"name": 7})
    assert caught.value.code == "invalid_arguments"
    approve(request, arguments={"name": "Bob"})
    ended(turn_id)
    assert "Hello, Bob!" in Message.objects.get(session=session, kind="tool_result").content
    assert model.requests[0].tools == model.requests[1].tools


def test_a_changed_call_of_a_server_that_was_removed_can_only_be_rejected(rig: Rig, model: Model) -> None:
    """A11.6"""
    session = make.session()
    mcp_rig.everybodys("files", mcp_rig.standing(), never_ask=())
    model.will(ScriptedCall("mcp_files_greet", {"name": "Ada"}))
    start(session)
    paused(session)
    McpServer.objects.all().delete()
    with pytest.raises(InvalidRequest):
        approve(*open_requests(session), arguments={"name": "Bob"})
    assert open_requests(session)


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
    session = make.session()
    mcp_rig.everybodys("files", mcp_rig.standing(), **({"never_ask": ()} | fields))
    model.will(ScriptedCall("mcp_files_label", {}), ScriptedCall("mcp_files_greet", {"name": "Ada"}))
    start(session)
    paused(session)
    requests = Approval.objects.filter(session=session).order_by("position")
    assert [request.tool for request in requests] == asked


def test_a_users_own_server_is_not_believed(rig: Rig, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A28.6"""
    session = make.session()
    port = mcp_rig.standing()
    mcp_rig.may_reach(monkeypatch, port)
    mcp_rig.users(session.owner, "mine", mcp_rig.url(port))
    model.will(ScriptedCall("mcp_mine_label", {}))
    start(session)
    paused(session)
    assert [request.tool for request in open_requests(session)] == ["mcp_mine_label"]
