"""The shipped tools, run as the agent runs them (A12, A22, A25.3)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from config.core.db import run_in_thread
from config.core.json_values import JSON
from copilot.chat import questions
from copilot.chat import selectors as chat_selectors
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import TurnContext
from copilot.files import services as files
from copilot.models import Question, Session, WorkspaceFile
from copilot.providers.base import ToolCall
from copilot.realtime.events import ArtifactAdded, Event, QuestionAsked, QuestionClosed, TodosChanged
from copilot.realtime.payloads import Todo
from copilot.tools import execution
from copilot.tools.base import ToolCallOutcome
from copilot.tools.builtin import ask_user, delete_file
from tests.support import factories
from tests.support.tool_calls import make_context

pytestmark = pytest.mark.django_db(transaction=True)
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32


@pytest.fixture
async def context() -> TurnContext:
    """Ada's running turn."""
    return await run_in_thread(make_context, timezone="Europe/Berlin")


async def use(
    context: TurnContext, tool: str, /, *, events: list[Event] | None = None, **arguments: JSON
) -> ToolCallOutcome:
    call = ToolCall(call_id="this-call", tool=tool, arguments=arguments)
    told: list[Event] = [] if events is None else events
    async with aclosing(_group(call, context, told.append)) as group:
        return await anext(group)


def _group(
    call: ToolCall, context: TurnContext, emit: Callable[[Event], None]
) -> AsyncGenerator[ToolCallOutcome, None]:
    return execution.run_tool_calls([call], context=context, emit=emit)


def values(outcome: ToolCallOutcome) -> Any:
    assert outcome.success, outcome.content
    return json.loads(outcome.content)


# --- files -----------------------------------------------------------------------------------------


async def test_a_written_file_is_read_back_by_name_id_and_uri(context: TurnContext) -> None:
    """A22.1"""
    events: list[Event] = []
    made = values(await use(context, "write_file", events=events, name="notes.md", content="# Hé\nline"))
    assert made["type"] == "text/markdown"
    for reference in ("notes.md", made["file_id"], made["uri"], f"{made['uri']}/x#y"):
        read = await use(context, "read_file", file=reference)
        assert read.content.partition("\n")[2] == "# Hé\nline"
        assert "end of file" in read.content
    artifact = next(event for event in events if isinstance(event, ArtifactAdded))
    assert (artifact.name, artifact.file_id) == ("notes.md", made["file_id"])


async def test_a_taken_name_needs_overwrite_and_then_means_the_new_file(context: TurnContext) -> None:
    """A22.1, A22.2, S2"""
    first = values(await use(context, "write_file", name="a.txt", content="one"))
    refused = await use(context, "write_file", name="a.txt", content="two")
    assert (refused.success, refused.content.split(":")[0]) == (False, "Error exists")
    await use(context, "write_file", name="a.txt", content="two", overwrite=True)
    assert (await use(context, "read_file", file="a.txt")).content.endswith("two")
    assert (await use(context, "read_file", file=first["file_id"])).content.endswith("one")


async def test_of_calls_side_by_side_one_has_the_name(context: TurnContext) -> None:
    """A22.1: without overwrite a name is given once, however many ask for it together"""
    for number in range(5):
        asked = [use(context, "write_file", name=f"{number}.txt", content=str(one)) for one in range(4)]
        outcomes = await asyncio.gather(*asked)
        assert sorted(outcome.success for outcome in outcomes) == [False, False, False, True]
    assert await run_in_thread(WorkspaceFile.objects.count) == 5


async def test_a_path_is_flattened_and_a_claim_ignored(context: TurnContext) -> None:
    """A22.3, A22.c1"""
    flat = values(await use(context, "write_file", name="../../etc/passwd", content="x"))
    page = values(await use(context, "write_file", name="p.png", content="<html>", mime="image/png"))
    nameless = await use(context, "write_file", name="../..", content="x")
    assert (flat["name"], page["type"]) == ("passwd", "text/html")
    assert "invalid_name" in nameless.content


async def test_bytes_come_as_base64_and_an_image_is_read_as_one(context: TurnContext) -> None:
    """A22.1, A22.4"""
    encoded = base64.b64encode(PNG).decode()
    assert values(await use(context, "write_file", name="a.png", base64=encoded))["type"] == "image/png"
    read = await use(context, "read_file", file="a.png")
    assert [part.data for part in read.media] == [PNG]
    broken = await use(context, "write_file", name="b.png", base64="***")
    assert "invalid_base64" in broken.content
    neither = await use(context, "write_file", name="b.png")
    assert "either content or base64" in neither.content


async def test_a_deleted_file_is_gone_and_can_be_brought_back(context: TurnContext) -> None:
    """A22.1, A22.3, A32: asked for first, soft, and only what the turn may see"""
    made = values(await use(context, "write_file", name="old.txt", content="x"))
    deleted = await use(context, "delete_file", file="old.txt")
    assert deleted.success
    assert not (await use(context, "read_file", file=made["file_id"])).success
    again = await use(context, "delete_file", file=made["uri"])
    assert (again.success, again.content.split(":")[0]) == (False, "Error not_found")
    await run_in_thread(files.restore_file, context.user_id, UUID(made["file_id"]))
    assert (await use(context, "read_file", file="old.txt")).success
    assert (await run_in_thread(delete_file.TOOL.assess_call, {"file": "old.txt"}, context)).reason


async def test_text_is_read_in_parts(context: TurnContext) -> None:
    """A22.1"""
    await use(context, "write_file", name="a.txt", content="é" * 10 + "end")
    middle = await use(context, "read_file", file="a.txt", offset=8, length=3)
    beyond = await use(context, "read_file", file="a.txt", offset=99)
    assert middle.content.partition("\n")[2] == "éée"
    assert "characters 8 to 11; more follows" in middle.content
    assert "nothing at this offset" in beyond.content
    assert not (await use(context, "read_file", file="a.txt", length=50_001)).success


async def test_other_files_are_described_and_false_text_is_named(context: TurnContext) -> None:
    """A22.2, A22.4"""
    owner = context.user_id
    await run_in_thread(files.store_file, owner, name="a.zip", content=b"PK\x03\x04", source="upload")
    await run_in_thread(files.store_file, owner, name="b.txt", content=b"x" * 9000 + b"\xff", source="upload")
    assert "a.zip, application/zip, 4 bytes" in (await use(context, "read_file", file="a.zip")).content
    assert "Error not_text" in (await use(context, "read_file", file="b.txt")).content


async def test_foreign_files_are_not_found(context: TurnContext) -> None:
    """A22.c1, A-S3.1"""
    bob = await run_in_thread(factories.bob)
    foreign = await run_in_thread(files.store_file, bob.pk, name="b.txt", content=b"x", source="upload")
    said = [
        (await use(context, "read_file", file=reference)).content
        for reference in (str(foreign.id), "b.txt", str(UUID(int=4)), "workspace://nonsense")
    ]
    assert set(said) == {"Error not_found: There is no such file."}


async def test_the_quota_speaks_in_codes(context: TurnContext) -> None:
    """A22.2"""
    from copilot.files import quotas

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(quotas.PLAN_QUOTAS, "FREE", quotas.StorageQuota(file_bytes=10, total_bytes=15, files=9))
        assert (
            "Error file_too_large" in (await use(context, "write_file", name="a", content="x" * 11)).content
        )
        assert (await use(context, "write_file", name="a", content="x" * 10)).success
        assert (
            "Error quota_exceeded" in (await use(context, "write_file", name="b", content="x" * 10)).content
        )


async def test_files_are_listed_in_pages_and_by_prefix(context: TurnContext) -> None:
    """A22.1"""
    for name in ("a1.txt", "b.txt", "a2.txt"):
        await use(context, "write_file", name=name, content="x")
    first = values(await use(context, "list_files", limit=2))
    rest = values(await use(context, "list_files", cursor=first["next_cursor"]))
    listed = [file["name"] for page in (first, rest) for file in page["files"]]
    assert (listed, rest["next_cursor"]) == (["a2.txt", "b.txt", "a1.txt"], None)
    assert len(values(await use(context, "list_files", prefix="a"))["files"]) == 2


async def test_a_guest_turn_sees_only_its_sessions_files(context: TurnContext) -> None:
    """S3, A20.1"""
    await run_in_thread(files.store_file, context.user_id, name="out.txt", content=b"x", source="upload")
    guest = replace(context, permissions=replace(UNRESTRICTED, files="session"))
    await use(guest, "write_file", name="in.txt", content="x")
    assert [file["name"] for file in values(await use(guest, "list_files"))["files"]] == ["in.txt"]
    assert not (await use(guest, "read_file", file="out.txt")).success


async def test_results_are_read_in_range_and_only_of_this_session(context: TurnContext) -> None:
    """A22.5"""
    session_id = UUID(context.session_id)
    await run_in_thread(files.store_tool_output, session_id, "old-call", "0123456789")
    part = await use(context, "read_tool_result", call_id="old-call", offset=3, length=4)
    beyond = await use(context, "read_tool_result", call_id="old-call", offset=99)
    elsewhere = replace(context, session_id=str((await run_in_thread(factories.session)).id))
    assert part.content == "[characters 3 to 7 of 10]\n3456"
    assert beyond.content == "[nothing there of 10]\n"
    assert not (await use(elsewhere, "read_tool_result", call_id="old-call")).success


async def test_server_tags_in_a_file_are_escaped_for_the_model_and_stay_in_the_file(
    context: TurnContext,
) -> None:
    """A15.6"""
    made = values(await use(context, "write_file", name="a.txt", content="see </system_note>"))
    assert (await use(context, "read_file", file="a.txt")).content.endswith("see &lt;/system_note>")
    file = await run_in_thread(WorkspaceFile.objects.get, pk=made["file_id"])
    assert file.size_bytes == len("see </system_note>")


# --- todos and time --------------------------------------------------------------------------------


async def test_todos_replace_the_list_and_are_published(context: TurnContext) -> None:
    """A25.3: and are there after a reload"""
    events: list[Event] = []
    items: list[JSON] = [{"text": " one ", "status": "in_progress"}, {"text": "two"}]
    outcome = await use(context, "todos_write", events=events, items=items)
    session = await run_in_thread(Session.objects.get, pk=context.session_id)
    expected = [Todo(text="one", status="in_progress"), Todo(text="two", status="pending")]
    assert outcome.success
    assert session.todos == [{"text": "one", "status": "in_progress"}, {"text": "two", "status": "pending"}]
    assert TodosChanged(items=expected) in events
    assert (await run_in_thread(chat_selectors.build_snapshot, session.pk))[0].todos == expected
    await use(context, "todos_write", items=[{"text": "three"}])
    await run_in_thread(session.refresh_from_db)
    assert session.todos == [{"text": "three", "status": "pending"}]


@pytest.mark.parametrize(
    ("items", "rule"),
    [
        ([{"text": "x"}] * 51, "at most 50 items"),
        ([{"text": "x", "status": "in_progress"}] * 2, "at most one item may be in_progress"),
        ([{"text": "x" * 201}], "at most 200 characters"),
        ([{"text": "x", "status": "done"}], "'pending', 'in_progress' or 'completed'"),
    ],
)
async def test_a_list_that_breaks_a_rule_is_refused_by_its_name(
    context: TurnContext, items: list[JSON], rule: str
) -> None:
    """A25.c1"""
    outcome = await use(context, "todos_write", items=items)
    assert not outcome.success
    assert rule in outcome.content


async def test_the_time_is_given_in_the_users_zone_or_in_the_one_named(context: TurnContext) -> None:
    """A32"""
    here = values(await use(context, "current_time"))
    there = values(await use(context, "current_time", timezone="UTC"))
    assert (here["timezone"], there["timezone"]) == ("Europe/Berlin", "UTC")
    assert str(there["time"]).endswith("+00:00")
    for wrong in ("Mars/Olympus", "../etc/passwd", "Europe", ""):
        outcome = await use(context, "current_time", timezone=wrong)
        assert outcome.success is (wrong == "")


# --- questions -------------------------------------------------------------------------------------


class Asked:
    """A question that is being asked: the running tool, and what clients were told."""

    def __init__(self, context: TurnContext, **arguments: JSON) -> None:
        self.context = context
        self.told: asyncio.Queue[Event] = asyncio.Queue()
        call = ToolCall(call_id="ask-1", tool="ask_user", arguments={"question": "Red or blue?", **arguments})
        self.task = asyncio.create_task(self._run(call))

    async def _run(self, call: ToolCall) -> ToolCallOutcome:
        async with aclosing(_group(call, self.context, self.told.put_nowait)) as group:
            return await anext(group)

    async def question(self) -> Question:
        while True:
            event = await self.told.get()
            if isinstance(event, QuestionAsked):
                return await run_in_thread(Question.objects.get, pk=event.question.id)

    def closed(self) -> list[str]:
        told = [self.told.get_nowait() for _ in range(self.told.qsize())]
        return [event.outcome for event in told if isinstance(event, QuestionClosed)]


async def test_an_answer_reaches_the_model(context: TurnContext) -> None:
    """A12.2, A12.3"""
    asked = Asked(context, choices=["red", "blue"])
    question = await asked.question()
    await run_in_thread(questions.record_answer, context.user_id, question.id, text=None, choice="blue")
    outcome = await asked.task
    assert (outcome.success, outcome.content) == (True, "The user answered: blue")
    assert asked.closed() == ["answered"]


async def test_without_an_answer_the_model_continues_on_its_own(context: TurnContext) -> None:
    """A12.3, A12.c1"""
    asked = Asked(context)
    question = await asked.question()
    waiting = question.deadline - question.created_at
    assert timedelta(seconds=119) < waiting < timedelta(seconds=121)
    past = timezone.now() - timedelta(seconds=1)
    await run_in_thread(Question.objects.filter(pk=question.pk).update, deadline=past)
    outcome = await asked.task
    assert (outcome.success, outcome.content) == (True, ask_user.NO_ANSWER_MESSAGE)
    assert asked.closed() == ["timed_out"]


async def test_a_message_instead_of_an_answer_supersedes_the_question(context: TurnContext) -> None:
    """A12.3"""
    asked = Asked(context)
    question = await asked.question()
    await run_in_thread(questions.close_questions_of_turn, question.turn_id, "superseded")
    assert (await asked.task).content == ask_user.REPLY_FOLLOWS_MESSAGE
    assert asked.closed() == ["superseded"]


async def test_stopping_invents_no_result_and_a_redelivery_finds_the_open_question(
    context: TurnContext,
) -> None:
    """A12.3, A12.4, A12.c1"""
    asked = Asked(context)
    question = await asked.question()
    asked.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked.task
    assert asked.closed() == []
    again = Asked(context)
    found = await again.question()
    assert (found.pk, found.deadline) == (question.pk, question.deadline)
    await run_in_thread(questions.record_answer, context.user_id, question.id, text="red", choice=None)
    assert (await again.task).content == "The user answered: red"


@pytest.mark.parametrize(("asked_for", "given"), [(1, 10), (60, 60), (900, 298)])
async def test_the_time_to_answer_is_kept_within_bounds(
    context: TurnContext, asked_for: int, given: int
) -> None:
    """A12.1, A32.c1"""
    asked = Asked(context, timeout_seconds=asked_for)
    question = await asked.question()
    left = (question.deadline - timezone.now()).total_seconds()
    assert given - 2 < left <= given + 1
    asked.task.cancel()
    await asyncio.gather(asked.task, return_exceptions=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"question": ""},
        {"question": "x" * 1001},
        {"question": "?", "choices": ["x"] * 9},
        {"question": "?", "choices": ["x" * 201]},
        {"question": "?", "allow_text": False},
    ],
)
async def test_a_question_nobody_could_answer_is_not_asked(
    context: TurnContext, arguments: dict[str, Any]
) -> None:
    """A12.1"""
    assert not (await use(context, "ask_user", **arguments)).success
    assert not await run_in_thread(Question.objects.exists)
