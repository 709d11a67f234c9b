"""What tools make is looked through like any upload, and the model is told how that ended (S4)."""

from __future__ import annotations

import json
from typing import Any, Literal
from uuid import UUID

import pytest

from config.core.db import run_in_thread
from config.core.errors import Conflict, Forbidden, RequestRefused
from config.core.json_values import JSON
from copilot import tasks
from copilot.chat.turn_context import TurnContext
from copilot.files import services as files
from copilot.models import Message, WorkspaceFile
from copilot.providers.base import ImagePart, ToolCall
from copilot.providers.scripted import ScriptedCall
from copilot.realtime.events import ArtifactAdded, Event
from copilot.tools import results
from copilot.tools.base import BaseTool, ToolCallOutcome, ToolInvocation, ToolOutput
from copilot.tools.builtin import delete_file, share_file
from copilot.tools.sandbox import bubblewrap
from tests.support import factories, mcp_servers
from tests.support.tool_calls import make_context, use
from tests.support.turn_engine import Model, Rig, ended, start

pytestmark = pytest.mark.django_db(transaction=True)

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32
BAD_PNG = PNG + b"EICAR"


@pytest.fixture(autouse=True)
def scanner(settings: Any) -> None:
    settings.WORKSPACE_SCAN_HOOK = "tests.copilot.files.test_virus_scan.scan"


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker takes every scan as soon as it is sent."""
    monkeypatch.setattr(
        tasks.scan_file, "apply_async", lambda *, args, countdown, retry: tasks.scan_file(*args)
    )


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker takes a scan, and nobody waits for one."""
    monkeypatch.setattr(tasks.scan_file, "apply_async", lambda **sent: None)
    monkeypatch.setattr(results, "SCAN_WAIT_SECONDS", 0.0)


@pytest.fixture
async def context() -> TurnContext:
    return await run_in_thread(make_context)


async def agreed(context: TurnContext, tool: BaseTool, **arguments: JSON) -> ToolOutput:
    """A call that a person has let through."""
    invocation = ToolInvocation(context=context, call_id="this-call", emit=lambda event: None)
    return await tool.bind(arguments)(invocation)


async def shown(context: TurnContext, *parts: ImagePart) -> ToolCallOutcome:
    """The outcome of a call whose tool answered with pictures."""
    return await results.build_outcome(
        ToolCall(call_id="this-call", tool="draw", arguments={}),
        results.make_result(ToolOutput(value="Drawn.", media=parts)),
        session_id=context.session_id,
        budget=results.OutputBudget(1),
        duration_ms=1,
    )


# --- files -------------------------------------------------------------------------------------------


async def test_a_file_that_a_scan_lets_through_is_usable_by_the_next_call(
    at_work: None, context: TurnContext
) -> None:
    """S4"""
    made = json.loads((await use(context, "write_file", name="a.txt", content="fine")).content)
    assert "scan" not in made
    assert (await use(context, "read_file", file="a.txt")).content.endswith("fine")


async def test_the_model_learns_that_its_file_is_in_quarantine(at_work: None, context: TurnContext) -> None:
    """S4, A-S4.5: and neither reading nor sharing brings it out; deleting it is allowed"""
    written = await use(context, "write_file", name="a.txt", content="EICAR")
    assert (written.success, written.content.split(":")[0]) == (False, "Error quarantined")
    file = await run_in_thread(WorkspaceFile.objects.get)
    assert (file.scan, file.size_bytes) == ("infected", 5)
    refused = await use(context, "read_file", file="a.txt")
    assert (refused.success, refused.content.split(":")[0]) == (False, "Error quarantined")
    with pytest.raises(RequestRefused) as unshared:
        await agreed(context, share_file.TOOL, file="a.txt")
    assert unshared.value.code == "quarantined"
    assert "trash" in str((await agreed(context, delete_file.TOOL, file="a.txt")).value)


async def test_the_model_learns_that_its_file_is_still_being_scanned(
    away: None, context: TurnContext
) -> None:
    """S4: an older file of that name does not answer for it, and the name is taken"""
    old = await run_in_thread(_clean_file, context, "a.txt", b"old")
    events: list[Event] = []
    written = await use(context, "write_file", events=events, name="a.txt", content="new", overwrite=True)
    assert json.loads(written.content)["scan"] == results.SCAN_PENDING_NOTE
    assert [event.name for event in events if isinstance(event, ArtifactAdded)] == ["a.txt"]
    refused = await use(context, "read_file", file="a.txt")
    assert (refused.success, refused.content.split(":")[0]) == (False, "Error scan_pending")
    with pytest.raises(RequestRefused) as unshared:
        await agreed(context, share_file.TOOL, file="a.txt")
    assert unshared.value.code == "scan_pending"
    assert "Error exists" in (await use(context, "write_file", name="a.txt", content="newer")).content
    assert (await use(context, "read_file", file=str(old.id))).content.endswith("old")


def _clean_file(context: TurnContext, name: str, content: bytes) -> WorkspaceFile:
    file = files.store_file(context.user_id, name=name, content=content, source="upload")
    WorkspaceFile.objects.filter(pk=file.pk).update(scan="clean")
    return file


async def test_a_list_of_files_says_which_cannot_be_used(away: None, context: TurnContext) -> None:
    """S4"""
    await use(context, "write_file", name="a.txt", content="new")
    await run_in_thread(_clean_file, context, "b.txt", b"fine")
    [fine, pending] = json.loads((await use(context, "list_files")).content)["files"]
    assert ("scan" in fine, pending["scan"]) == (False, results.SCAN_PENDING_NOTE)


# --- programs ----------------------------------------------------------------------------------------


@pytest.fixture
def sandboxed() -> None:
    if reason := bubblewrap.find_sandbox_problem():
        pytest.skip(reason)


async def test_files_that_a_program_leaves_are_reported_by_their_scan(
    sandboxed: None, at_work: None, context: TurnContext
) -> None:
    """S4, A23.4"""
    command = "echo fine > good.txt; echo EICAR > bad.txt"
    fields = json.loads((await use(context, "bash_exec", command=command)).content)
    [bad, good] = fields["files"]
    assert (bad["name"], bad["scan"]) == ("bad.txt", results.SCAN_INFECTED_NOTE)
    assert (good["name"], "scan" in good) == ("good.txt", False)
    again = json.loads((await use(context, "bash_exec", command="ls")).content)
    assert again["stdout"] == "good.txt\n"
    assert "bad.txt" in again["message"]
    assert "room" not in again["message"]


@pytest.mark.parametrize("state", ["at_work", "away"])
async def test_a_picture_that_a_program_draws_is_shown_once_it_is_clean(
    sandboxed: None, request: pytest.FixtureRequest, state: Literal["at_work", "away"], context: TurnContext
) -> None:
    """S4, A23.5"""
    request.getfixturevalue(state)
    code = f"open('a.png', 'wb').write(bytes.fromhex('{PNG.hex()}'))"
    outcome = await use(context, "python_exec", code=code)
    assert [part.data for part in outcome.media] == ([PNG] if state == "at_work" else [])


# --- pictures and outputs ----------------------------------------------------------------------------


async def test_a_tools_picture_goes_to_the_model_once_it_is_clean(
    at_work: None, context: TurnContext
) -> None:
    """S4: one in quarantine is told in words, its neighbour is shown"""
    outcome = await shown(
        context, ImagePart(mime="image/png", data=BAD_PNG), ImagePart(mime="image/png", data=PNG)
    )
    assert [part.data for part in outcome.media] == [PNG]
    assert outcome.content == f"Drawn.\n\n[A picture was left out: {results.SCAN_INFECTED_NOTE}]"
    assert await run_in_thread(_states) == ["clean", "infected"]


async def test_a_tools_picture_that_is_still_being_scanned_is_described_in_text(
    away: None, context: TurnContext
) -> None:
    """S4"""
    outcome = await shown(context, ImagePart(mime="image/png", data=PNG))
    assert (outcome.media, results.SCAN_PENDING_NOTE in outcome.content) == ((), True)
    assert await run_in_thread(_states) == ["pending"]


def _states() -> list[str]:
    return sorted(WorkspaceFile.objects.values_list("scan", flat=True))


async def test_a_picture_that_cannot_be_kept_is_not_shown_unseen(
    at_work: None, context: TurnContext, settings: Any, tmp_path: Any
) -> None:
    """S4: without a file nothing can be looked through"""
    (tmp_path / "ws").write_text("in the way")
    settings.STORAGES = {
        **settings.STORAGES,
        "workspace": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path)},
        },
    }
    outcome = await shown(context, ImagePart(mime="image/png", data=PNG))
    assert (outcome.media, results.SCAN_MISSING_NOTE in outcome.content) == ((), True)


async def test_the_whole_output_of_a_call_is_looked_through(at_work: None, context: TurnContext) -> None:
    """S4, A9.6"""
    for text in ("fine " * 2_000, "EICAR" * 2_000):
        await run_in_thread(files.store_tool_output, UUID(context.session_id), text[:5].strip(), text)
    assert (await use(context, "read_tool_result", call_id="fine")).success
    refused = await use(context, "read_tool_result", call_id="EICAR")
    assert (refused.success, refused.content.split(":")[0]) == (False, "Error quarantined")


def test_an_output_that_was_not_scanned_is_refused_by_its_name(away: None) -> None:
    """S4"""
    context = make_context()
    files.store_tool_output(UUID(context.session_id), "c", "text")
    with pytest.raises(Conflict) as pending:
        files.read_tool_output(context.user_id, UUID(context.session_id), "c")
    assert pending.value.code == "scan_pending"
    WorkspaceFile.objects.update(scan="infected")
    with pytest.raises(Forbidden):
        files.read_tool_output(context.user_id, UUID(context.session_id), "c")


@pytest.mark.parametrize(("found", "told"), [("clean", True), ("infected", False)])
def test_a_picture_of_an_mcp_server_passes_the_scan_before_the_model_sees_it(
    rig: Rig, model: Model, settings: Any, found: str, told: bool
) -> None:
    """S4, A28.5"""
    settings.WORKSPACE_SCAN_HOOK = f"tests.copilot.tools.test_scanned_results.all_{found}"
    session = factories.session()
    model.will(ScriptedCall("mcp_files_picture", {}))
    mcp_servers.everybodys("files", mcp_servers.standing())
    ended(start(session))
    row = Message.objects.get(session=session, kind="tool_result")
    assert ("image/png" in model.said_to(), bool(row.attachments)) == (told, told)
    assert (results.SCAN_INFECTED_NOTE in row.content) is not told
    assert WorkspaceFile.objects.get(source="tool_output").scan == found


def all_clean(stream: object, meta: object) -> str:
    return "clean"


def all_infected(stream: object, meta: object) -> str:
    return "infected"
