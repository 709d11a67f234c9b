"""Secrets are masked for everyone who could leak them, and no mask reveals whether a guess was right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from config.core import redaction
from config.core.db import run_in_thread
from config.core.redaction import redact, redact_secret_patterns, redact_user_text
from copilot.models import McpServer, Message
from copilot.providers.base import ToolCall
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.sharing import payloads
from copilot.sharing.payloads import IncludedParts, TranscriptRow
from copilot.tools import execution, registry
from copilot.tools.mcp import services as mcp
from copilot.tools.results import preview_arguments, redact_arguments
from tests.support import exports, factories, mcp_servers
from tests.support.rest_clients import V1, program
from tests.support.tool_calls import make_context
from tests.support.turn_engine import Model, Rig, ended, start

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.attack]

GUESS = "guessed-password-4711"  # a secret of this installation that a user guesses whole
HEADER = "canary-header-of-ada-01"
SHORT = "ordinary-word"


@pytest.fixture(name="installation_secret")
def installation_secret_fixture() -> Iterator[None]:
    redaction.register_temporary_secrets([GUESS])
    assert GUESS not in redact(f"a log line with {GUESS}")
    yield
    redaction.release_temporary_secrets([GUESS])


def results(session: object) -> str:
    rows = Message.objects.filter(session=session, kind="tool_result").order_by("sequence")
    return "\n".join(rows.values_list("content", flat=True))


# --- a user's header values --------------------------------------------------------------------------


def test_a_header_value_is_masked_only_in_its_owners_turn(
    rig: Rig, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bob = factories.ada(), factories.bob()
    port = mcp_servers.standing()
    mcp_servers.may_reach(monkeypatch, port)
    secrets = {"X-Key": HEADER, "X-Word": SHORT}
    for owner, given in ((ada, secrets), (bob, {})):
        draft = mcp.McpServerDraft(name="mine", secrets=given)
        mcp_servers.users(
            owner,
            "mine",
            mcp_servers.url(port),
            never_ask=["headers", "greet"],
            secrets=mcp._encrypt_secrets(draft.secrets or {}),
        )
    spoken = []
    for owner in (ada, bob):
        session = factories.session(owner)
        model.will(
            ScriptedCall("mcp_mine_headers", {}),
            ScriptedCall("mcp_mine_greet", {"name": f"{HEADER} {SHORT}"}),
        )
        model.will(ScriptedText("Done."))
        ended(start(session))
        spoken.append(results(session))
    of_ada, of_bob = spoken
    assert HEADER not in of_ada
    assert SHORT in of_ada
    assert f"Hello, {HEADER} {SHORT}!" in of_bob


async def test_tasks_see_the_secrets_of_their_own_turn_alone() -> None:
    """Both turns run at once, each in its task and the threads it starts."""
    both = asyncio.Barrier(2)

    async def turn(own: str) -> list[str]:
        redaction.set_user_secrets([own])
        await both.wait()
        return [redact(f"{HEADER} {GUESS}"), await run_in_thread(redact_user_text, f"{HEADER} {GUESS}")]

    first, second = await asyncio.gather(asyncio.create_task(turn(HEADER)), asyncio.create_task(turn(GUESS)))
    assert first == [f"[REDACTED] {GUESS}"] * 2
    assert second == [f"{HEADER} [REDACTED]"] * 2
    assert redact(f"{HEADER} {GUESS}") == f"{HEADER} {GUESS}"


# --- no oracle ---------------------------------------------------------------------------------------


def test_import_and_export_do_not_tell_a_secret_from_any_other_word(installation_secret: None) -> None:
    parts = [
        {"type": "reasoning", "text": GUESS},
        {"type": "tool_call", "call_id": "c", "tool": "bash_exec", "arguments": {GUESS: GUESS}},
        {
            "type": "tool_result",
            "call_id": "c",
            "tool": "bash_exec",
            "success": True,
            "text": GUESS,
            "duration_ms": 1,
        },
        {"type": "assistant", "text": GUESS},
    ]
    said = {"role": "user", "parts": [{"type": "user", "text": GUESS}]}
    session = exports.imported(factories.ada(), exports.document(said, exports.answer(*parts)))
    document = json.dumps(exports.exported(session))
    assert document.count(GUESS) == 6
    assert redaction.MASK not in document


def test_a_published_conversation_does_not_either(installation_secret: None) -> None:
    rows = [
        TranscriptRow(kind=kind, created_at="", text=GUESS) for kind in ("user", "assistant", "reasoning")
    ]
    payload = payloads.build_payload(rows, title=GUESS, included=IncludedParts(reasoning=True, tools=True))
    assert redaction.MASK not in repr(payload)


def test_arguments_shown_to_people_do_not_either(installation_secret: None) -> None:
    given = {"text": GUESS, GUESS: [GUESS]}
    assert redact_arguments(given) == given
    assert redaction.MASK not in repr(preview_arguments(given))


ECHOES = [
    ("todos_write", {"items": [{"text": GUESS, "status": "pending"}]}),
    ("memory_add", {"text": GUESS}),
    ("read_file", {"file": GUESS}),
    ("write_file", {"name": f"{GUESS}.txt", "content": GUESS}),
    ("memory_forget", {"id": GUESS}),
    (GUESS, {}),
    ("web_fetch", {"url": f"ftp://{GUESS}.example/"}),
    ("list_files", {"query": GUESS}),
    ("bash_exec", {"command": f"echo {GUESS}"}),
]


@pytest.mark.parametrize(("tool", "arguments"), ECHOES, ids=[tool for tool, _ in ECHOES])
async def test_no_tool_masks_what_the_user_made_it_say(
    tool: str, arguments: dict, installation_secret: None
) -> None:
    context = await run_in_thread(make_context)
    events: list = []
    call = ToolCall(call_id="c", tool=tool, arguments=arguments)
    outcomes = [one async for one in execution.run_tool_calls([call], context=context, emit=events.append)]
    assert redaction.MASK not in repr((outcomes, events))


def test_every_shipped_tool_says_whether_its_output_could_hold_our_secrets() -> None:
    """Only the search engine was given a key of ours."""
    assert [tool.name for tool in registry.BUILTIN_TOOLS if not tool.returns_user_text] == ["web_search"]


def test_a_users_server_gets_no_answer_about_our_secrets(
    installation_secret: None, rig: Rig, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = factories.ada()
    port = mcp_servers.standing()
    mcp_servers.may_reach(monkeypatch, port)
    mcp_servers.users(ada, "mine", mcp_servers.url(port), never_ask=["greet"])
    session = factories.session(ada)
    model.will(ScriptedCall("mcp_mine_greet", {"name": GUESS}))
    ended(start(session))
    assert f"Hello, {GUESS}!" in results(session)


def test_secrets_recognized_by_shape_are_masked_for_everyone() -> None:
    key = "sk-" + "a1B2" * 8
    assert {mask(key) for mask in (redact, redact_user_text, redact_secret_patterns)} == {redaction.MASK}


# --- another origin ----------------------------------------------------------------------------------


URL = "https://tools.example/mcp"
LISTED = {"name": "x", "description": "", "parameters": {}, "read_only": False, "left_out": ""}


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        (URL, True),
        ("https://tools.example/other?x=1", True),
        ("HTTPS://TOOLS.EXAMPLE:443/mcp", True),
        ("https://tools.example./mcp", True),
        ("https://evil.example/mcp", False),
        ("https://tools.example.evil.example/mcp", False),
        ("http://tools.example/mcp", False),
        ("https://tools.example:80/mcp", False),
        ("https://töols.example/mcp", False),
    ],
)
def test_a_server_at_another_origin_has_no_secrets(url: str, kept: bool) -> None:
    ada = factories.ada()
    row = mcp.create_server(
        ada.pk, mcp.McpServerDraft(name="mine", url=URL, secrets={"Authorization": HEADER})
    )
    McpServer.objects.filter(pk=row.pk).update(tools=[LISTED])
    answer = program(ada, "manage").patch(
        f"{V1}/mcp-servers/{row.pk}", {"url": url}, content_type="application/json"
    )
    assert answer.status_code == 200, answer.content
    assert answer.json()["secret_names"] == (["Authorization"] if kept else [])
    used = mcp.build_trial_config(McpServer.objects.get(pk=row.pk))
    assert (dict(used.secrets), len(used.tools)) == (({"Authorization": HEADER}, 1) if kept else ({}, 0))


def test_new_secrets_given_with_the_new_origin_are_kept() -> None:
    ada = factories.ada()
    row = mcp.create_server(
        ada.pk, mcp.McpServerDraft(name="mine", url=URL, secrets={"Authorization": HEADER})
    )
    draft = replace(mcp.draft_from_server(row), url="https://other.example/", secrets={"X-New": GUESS})
    assert mcp.list_secret_names(mcp.update_server(ada.pk, row.pk, draft)) == ["X-New"]


def test_everybodys_server_forgets_its_secrets_with_its_transport_or_its_command(settings: Any) -> None:
    settings.MCP_STDIO_COMMANDS = [("tool", "x"), ("other", "x"), ("tool",)]
    row = mcp.create_server(
        None, mcp.McpServerDraft(name="a", transport="stdio", command=("tool", "x"), secrets={"KEY": HEADER})
    )
    same = replace(mcp.draft_from_server(row), never_ask=("y",))
    assert mcp.list_secret_names(mcp.update_server(None, row.pk, same)) == ["KEY"]
    other = replace(same, command=("other", "x"))
    assert mcp.list_secret_names(mcp.update_server(None, row.pk, other)) == []
    row = mcp.create_server(
        None, mcp.McpServerDraft(name="b", transport="stdio", command=("tool",), secrets={"KEY": HEADER})
    )
    assert (
        mcp.list_secret_names(
            mcp.update_server(None, row.pk, replace(mcp.draft_from_server(row), transport="http", url=URL))
        )
        == []
    )
