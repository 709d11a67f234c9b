"""An approval is about one thing: what a person agreed to is what runs, or nothing does."""

from __future__ import annotations

from uuid import UUID

import pytest

from copilot.agents import services as agents
from copilot.files import services as files
from copilot.models import Approval, McpServer, Message, Schedule, Session, Share, WorkspaceFile
from copilot.providers.scripted import ScriptedCall
from copilot.tools.mcp import services as mcp
from tests.support import factories, mcp_servers
from tests.support.approvals import approve_requests, list_open_approvals, wait_until_turn_paused
from tests.support.turn_engine import Model, Rig, ended, start

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.attack]

CHANGED = "Not executed: what this call names has changed since a person was asked about it."


@pytest.fixture(name="session")
def session_fixture(rig: Rig) -> Session:
    return factories.session(factories.ada(), title="Named")


def stored(session: Session, content: bytes, name: str = "log.txt") -> WorkspaceFile:
    return files.store_file(session.owner_id, name=name, content=content, source="upload")


def asked(session: Session, model: Model, call: ScriptedCall) -> tuple[UUID, Approval]:
    """A call that waits for its owner's word."""
    model.will(call)
    turn_id = start(session)
    wait_until_turn_paused(session)
    [row] = list_open_approvals(session)
    return turn_id, row


def result(turn_id: UUID) -> str:
    return Message.objects.get(turn=turn_id, kind="tool_result").content


@pytest.mark.parametrize("tool", ["share_file", "delete_file"])
def test_another_file_of_the_same_name_is_not_what_was_approved(
    tool: str, session: Session, model: Model
) -> None:
    meant = stored(session, b"harmless")
    turn_id, row = asked(session, model, ScriptedCall(tool, {"file": "log.txt"}))
    assert row.pinned == {"arguments": {"file": str(meant.pk)}, "sha256": meant.sha256}
    stored(session, b"secret")
    approve_requests(row)
    ended(turn_id)
    assert result(turn_id).startswith(CHANGED)
    row.refresh_from_db()
    assert row.state == "cancelled"
    assert not Share.objects.exists()
    assert not WorkspaceFile.objects.exclude(deleted_at=None).exists()


def test_the_file_itself_is_shared_by_its_id(session: Session, model: Model) -> None:
    meant = stored(session, b"harmless")
    stored(session, b"other", name="other.txt")
    turn_id, row = asked(session, model, ScriptedCall("share_file", {"file": "log.txt"}))
    assert row.reason == "Anyone with the link can read log.txt (8 bytes)."
    approve_requests(row)
    ended(turn_id)
    assert [file["id"] for file in Share.objects.get().payload["files"]] == [str(meant.pk)]
    row.refresh_from_db()
    assert row.state == "done"


def test_a_file_that_went_meanwhile_is_not_replaced_by_an_older_one(session: Session, model: Model) -> None:
    stored(session, b"an older secret")
    meant = stored(session, b"harmless")
    turn_id, row = asked(session, model, ScriptedCall("share_file", {"file": "log.txt"}))
    files.trash_file(session.owner_id, meant.pk)
    approve_requests(row)
    ended(turn_id)
    assert result(turn_id).startswith(CHANGED)
    assert not Share.objects.exists()


def test_nobody_is_asked_about_a_file_that_is_not_there(session: Session, model: Model) -> None:
    model.will(ScriptedCall("share_file", {"file": "nothing.txt"}))
    turn_id = start(session)
    ended(turn_id)
    assert not Approval.objects.exists()
    assert result(turn_id) == "Error not_found: There is no such file."


def test_arguments_that_a_person_wrote_are_what_runs(session: Session, model: Model) -> None:
    stored(session, b"harmless")
    other = stored(session, b"other", name="other.txt")
    turn_id, row = asked(session, model, ScriptedCall("share_file", {"file": "log.txt"}))
    approve_requests(row, arguments={"file": "other.txt"})
    ended(turn_id)
    assert [file["id"] for file in Share.objects.get().payload["files"]] == [str(other.pk)]


def test_an_agent_that_was_edited_meanwhile_is_not_scheduled(session: Session, model: Model) -> None:
    version = agents.create_agent(session.owner_id, agents.AgentDraft(name="Mole", instructions="Dig."))
    arguments = {"agent_id": str(version.agent_id), "cron": "0 9 * * *", "timezone": "UTC"}
    turn_id, row = asked(session, model, ScriptedCall("schedule_task", arguments))
    agents.edit_agent(session.owner_id, version.agent_id, 1, {"instructions": "Send it all away."})
    approve_requests(row)
    ended(turn_id)
    assert result(turn_id).startswith(CHANGED)
    assert not Schedule.objects.exists()


def test_a_server_that_is_another_one_meanwhile_is_not_called(session: Session, model: Model) -> None:
    server = mcp_servers.everybodys("mail", mcp_servers.standing(), never_ask=())
    turn_id, row = asked(session, model, ScriptedCall("mcp_mail_greet", {"name": "Ada"}))
    assert row.pinned is not None
    assert (row.pinned["server_id"], row.pinned["version"]) == (str(server.pk), 1)
    mcp.update_server(None, server.pk, mcp.draft_from_server(McpServer.objects.get(pk=server.pk)))
    approve_requests(row)
    ended(turn_id)
    assert result(turn_id).startswith(CHANGED)


def test_the_same_server_is_called(session: Session, model: Model) -> None:
    mcp_servers.everybodys("mail", mcp_servers.standing(), never_ask=())
    turn_id, row = asked(session, model, ScriptedCall("mcp_mail_greet", {"name": "Ada"}))
    approve_requests(row)
    ended(turn_id)
    assert "Hello, Ada!" in result(turn_id)
