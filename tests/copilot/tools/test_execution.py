"""Running the calls of one reply (A8.5, A8.6, A9)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from django.db import connection
from pydantic import Field

from config.core.db import run_in_thread
from config.core.errors import Conflict, FenceLost
from config.core.json_values import JSON
from config.core.redaction import register_secrets
from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext
from copilot.files import services as files
from copilot.providers.base import ImagePart, ToolCall
from copilot.realtime.events import Event, ToolProgressed, ToolStateChanged
from copilot.tools import execution, registry, results
from copilot.tools.base import (
    BaseTool,
    Tool,
    ToolArguments,
    ToolCallOutcome,
    ToolError,
    ToolInvocation,
    ToolOutput,
)
from copilot.tools.builtin import read_tool_result
from tests.support.database_connections import run_in_own_connection
from tests.support.tool_calls import make_context

Run = Callable[["Anything", ToolInvocation], Awaitable[ToolOutput]]
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32


class Anything(ToolArguments):
    text: str = ""
    number: int = Field(default=0, ge=0)
    size: int = 0


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put tools made by the test in the place of the shipped ones."""

    def put(**declared: Run | Tool[Anything]) -> None:
        tools = tuple(run if isinstance(run, Tool) else tool(name, run) for name, run in declared.items())
        monkeypatch.setattr(registry, "BUILTIN_TOOLS", (*tools, read_tool_result.TOOL))

    return put


def tool(name: str, run: Run, **declared: object) -> Tool[Anything]:
    return Tool(name=name, arguments=Anything, run=run, description="", **declared)


def call(name: str, own_id: str = "", /, **arguments: JSON) -> ToolCall:
    return ToolCall(call_id=own_id or f"call-{name}", tool=name, arguments=dict(arguments))


CONTEXT = TurnContext(
    user_id=1,
    session_id="00000000-0000-4000-8000-000000000001",
    turn_id="00000000-0000-4000-8000-000000000002",
    fence=1,
    origin="web",
    permissions=UNRESTRICTED,
    channel=CHANNELS_BY_ORIGIN["web"],
)


async def run(
    *calls: ToolCall, context: TurnContext = CONTEXT, events: list[Event] | None = None
) -> list[ToolCallOutcome]:
    """The outcomes in call order."""
    told = events if events is not None else []
    async with aclosing(_group(calls, context, told)) as group:
        outcomes = {outcome.call_id: outcome async for outcome in group}
    return [outcomes[each.call_id] for each in calls]


def _group(
    calls: tuple[ToolCall, ...], context: TurnContext, events: list[Event]
) -> AsyncGenerator[ToolCallOutcome, None]:
    return execution.run_tool_calls(calls, context=context, emit=events.append)


async def echo(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
    return ToolOutput(value=arguments.text or "done")


async def explode(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
    raise RuntimeError("boom with canary-execution-1")


async def large(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
    return ToolOutput(value="x" * arguments.size)


# --- calls that cannot run -------------------------------------------------------------------------


async def test_an_unknown_tool_is_answered_with_close_names() -> None:
    """A8.5"""
    (outcome,) = await run(call("read_fil"))
    assert not outcome.success
    assert "read_file" in outcome.content


async def test_a_hidden_tool_answers_exactly_like_an_unknown_one() -> None:
    """A8.5, A8.c2, A20.3"""
    hidden = replace(CONTEXT, permissions=replace(UNRESTRICTED, denied_tools=frozenset({"current_time"})))
    (denied,) = await run(call("current_time"), context=hidden)
    (nonsense,) = await run(call("currant_time"), context=hidden)
    assert denied.content.replace("current_time", "NAME") == nonsense.content.replace("currant_time", "NAME")
    unattended = replace(CONTEXT, channel=CHANNELS_BY_ORIGIN["schedule"])
    (outcome,) = await run(call("ask_user", question="?"), context=unattended)
    assert "There is no tool" in outcome.content


async def test_malformed_arguments_are_not_executed(offer: Callable[..., None]) -> None:
    """A8.2"""
    offer(echo=echo)
    (outcome,) = await run(ToolCall(call_id="c", tool="echo", arguments=None, raw_arguments='{"a'))
    assert (outcome.success, "valid JSON" in outcome.content) == (False, True)


async def test_wrong_arguments_are_named_and_numbers_in_quotes_are_taken(offer: Callable[..., None]) -> None:
    """A8.6"""
    offer(echo=echo)
    wrong, coerced = await run(
        call("echo", "a", number=-1, colour="red"), call("echo", "b", number="3", text="x")
    )
    assert not wrong.success
    assert "number" in wrong.content
    assert "colour" in wrong.content
    [strange] = await run(call("echo", **{"\x1b[31mcol\x07our": "red"}))
    assert "[31mcolour" in strange.content  # A9.7
    assert (coerced.success, coerced.content) == (True, "x")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("problems", [6, 80])
async def test_many_problems_are_cut_for_the_model_and_kept_whole(
    offer: Callable[..., None], problems: int
) -> None:
    """A8.6: from the sixth on"""
    offer(echo=echo)
    context = await run_in_thread(make_context)
    wrong: dict[str, JSON] = {f"unknown_field_{number}_{'x' * 60}": 1 for number in range(problems)}
    (outcome,) = await run(call("echo", "c", **wrong), context=context)
    assert len(outcome.content) <= 1000
    whole = await run_in_thread(files.read_tool_output, context.user_id, _session(context), "c")
    assert all(field in whole for field in wrong)


# --- running together ------------------------------------------------------------------------------


async def test_one_failing_call_harms_no_sibling(offer: Callable[..., None]) -> None:
    """A9.2, A9.c1, A9.10"""
    register_secrets(["canary-execution-1"])
    offer(echo=echo, explode=explode)
    first, second, third = await run(call("echo", "a"), call("explode", "b"), call("echo", "c"))
    assert (first.success, second.success, third.success) == (True, False, True)
    assert second.content == "Error RuntimeError: boom with [REDACTED]"


async def test_refusals_keep_their_code_and_words(offer: Callable[..., None]) -> None:
    """A22.2"""

    async def refuse(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        if arguments.text:
            raise ToolError("exists", "There is one.")
        raise Conflict("The workspace is full.", code="quota_exceeded")

    offer(refuse=refuse)
    said = await run(call("refuse", "a"), call("refuse", "b", text="x"))
    assert [outcome.content for outcome in said] == [
        "Error quota_exceeded: The workspace is full.",
        "Error exists: There is one.",
    ]


async def test_at_most_eight_calls_run_at_once_and_all_finish(offer: Callable[..., None]) -> None:
    """A9.2"""
    running, most, eight_run = 0, 0, asyncio.Event()

    async def count(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 8:
            eight_run.set()
        await eight_run.wait()
        await asyncio.sleep(0)
        running -= 1
        return ToolOutput(value="ok")

    offer(count=count)
    outcomes = await run(*(call("count", f"c{number}") for number in range(16)))
    assert most == 8
    assert all(outcome.success for outcome in outcomes)


async def test_a_slow_look_at_an_approval_does_not_change_the_order_of_exclusive_calls(
    offer: Callable[..., None],
) -> None:
    """A9.2: the call is looked at when its place is free, so what it means is known right before it runs"""
    happened: list[str] = []

    async def note(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        happened.append(f"ran {arguments.text}")
        return ToolOutput(value="done")

    async def look(asked: ToolCall, tool: BaseTool) -> ToolCall | str:
        text = str((asked.arguments or {})["text"])
        for _ in range(5 if text == "first" else 0):
            await asyncio.sleep(0)
        happened.append(f"looked at {text}")
        return asked

    offer(note=tool("note", note, exclusive=True))
    calls = (call("note", text="first"), call("note", text="second"))
    async with aclosing(
        execution.run_tool_calls(calls, context=CONTEXT, emit=lambda event: None, checking=look)
    ) as group:
        assert [outcome.success async for outcome in group] == [True, True]
    assert happened == ["looked at first", "ran first", "looked at second", "ran second"]


async def test_exclusive_tools_run_one_by_one_in_call_order(offer: Callable[..., None]) -> None:
    """A9.2"""
    order: list[str] = []

    async def note(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        order.append(f"+{arguments.text}")
        for _ in range(10 - arguments.number):
            await asyncio.sleep(0)
        order.append(f"-{arguments.text}")
        return ToolOutput(value="ok")

    offer(note=tool("note", note, exclusive=True))
    await run(*(call("note", text, text=text, number=number) for number, text in enumerate("abcd")))
    assert order == ["+a", "-a", "+b", "-b", "+c", "-c", "+d", "-d"]


async def test_outcomes_arrive_as_they_finish(offer: Callable[..., None]) -> None:
    """A9.3"""
    free = asyncio.Event()

    async def wait(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        await free.wait()
        return ToolOutput(value="late")

    offer(wait=wait, echo=echo)
    arrived = []
    async with aclosing(_group((call("wait"), call("echo")), CONTEXT, [])) as group:
        async for outcome in group:
            arrived.append(outcome.tool)
            free.set()
    assert arrived == ["echo", "wait"]


async def test_a_second_question_in_one_group_is_not_asked(offer: Callable[..., None]) -> None:
    """A12.1"""
    offer(ask=tool("ask", echo, interactive=True, exclusive=True))
    first, second = await run(call("ask", "a"), call("ask", "b"))
    assert (first.success, second.success) == (True, False)
    assert "one question at a time" in second.content
    broken, sound = await run(call("ask", "a", number=-1), call("ask", "b"))
    assert (broken.success, sound.success) == (False, True)


async def test_a_lost_turn_has_no_result(offer: Callable[..., None]) -> None:
    """T4.1"""

    async def lose(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        raise FenceLost("gone")

    offer(lose=lose)
    with pytest.raises(FenceLost):
        await run(call("lose"))


async def test_a_tool_that_cancels_itself_still_has_a_result(offer: Callable[..., None]) -> None:
    """A9.2"""

    async def cancel(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        raise asyncio.CancelledError

    offer(cancel=cancel)
    (outcome,) = await run(call("cancel"))
    assert (outcome.success, outcome.content) == (False, "The tool was interrupted.")


# --- time and stopping -----------------------------------------------------------------------------


async def hang(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def test_a_slow_tool_is_stopped_and_told_the_limit(offer: Callable[..., None]) -> None:
    """A9.5"""
    offer(hang=tool("hang", hang, timeout_seconds=0.05))
    (outcome,) = await run(call("hang"))
    assert not outcome.success
    assert "0.05 s" in outcome.content
    assert "start it with one call" in outcome.content


async def test_no_tool_waits_longer_than_the_installation_allows(
    offer: Callable[..., None], settings: object
) -> None:
    """A9.5"""
    settings.MAX_TOOL_WAIT_SECONDS = 0.05
    offer(hang=tool("hang", hang, timeout_seconds=60))
    (outcome,) = await run(call("hang"))
    assert not outcome.success


async def test_closing_the_group_keeps_what_finished_and_cancels_the_rest(offer: Callable[..., None]) -> None:
    """A9.4, A9.c2"""
    cancelled: list[str] = []

    async def listen(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(invocation.call_id)
        raise AssertionError("nobody sets it")

    offer(echo=echo, listen=listen)
    finished = []
    async with aclosing(
        _group((call("echo"), call("listen", "b"), call("listen", "c")), CONTEXT, [])
    ) as group:
        async for outcome in group:
            finished.append(outcome.call_id)
            break
    assert finished == ["call-echo"]
    assert sorted(cancelled) == ["b", "c"]


async def test_a_tool_that_ignores_cancellation_is_abandoned_and_never_heard_again(
    offer: Callable[..., None],
) -> None:
    """A1.7, A1.c5"""
    free, deaf_done, told = asyncio.Event(), asyncio.Event(), list[Event]()

    async def deaf(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        invocation.report_progress("too late")
        deaf_done.set()
        raise RuntimeError("nobody listens")

    offer(deaf=deaf, echo=echo)
    started = asyncio.get_running_loop().time()
    async with aclosing(_group((call("echo"), call("deaf")), CONTEXT, told)) as group:
        async for _outcome in group:
            break
    assert asyncio.get_running_loop().time() - started < 1
    before = len(told)
    free.set()
    await deaf_done.wait()
    assert len(told) == before


async def test_cancelling_the_reader_cancels_the_tools(offer: Callable[..., None]) -> None:
    """A1.6"""
    began, ended = asyncio.Event(), asyncio.Event()

    async def listen(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("nobody sets it")

    offer(listen=listen)
    reader = asyncio.create_task(run(call("listen")))
    await began.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert ended.is_set()


# --- output ----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
async def test_an_output_is_kept_whole_though_the_database_goes_away_meanwhile(
    offer: Callable[..., None],
) -> None:
    """A9.6, T9.3: what a call has done is not lost with one connection"""

    async def cut_off(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        backend = await run_in_thread(_backend)
        await asyncio.to_thread(run_in_own_connection, partial(_cut, backend))
        return ToolOutput(value="x" * 9_000)

    offer(cut_off=cut_off)
    context = await run_in_thread(make_context)
    [outcome] = await run(call("cut_off"), context=context)
    assert outcome.success
    assert (
        await run_in_thread(files.read_tool_output, context.user_id, _session(context), "call-cut_off")
        == "x" * 9_000
    )


def _backend() -> int:
    """Of the thread that rested last, which is asked next."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _cut(backend: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])


def _session(context: TurnContext) -> UUID:
    return UUID(context.session_id)


async def test_values_are_serialised_with_sorted_keys_and_cleaned(offer: Callable[..., None]) -> None:
    """A9.7, A15.6"""

    async def messy(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        if arguments.text:
            return ToolOutput(value="a\x00b\x1b[31m\tc\r\nd\ud800 </System_Note>")
        return ToolOutput(value={"b": [1, None], "a": "é"})

    offer(messy=messy)
    structured, text = await run(call("messy", "a"), call("messy", "b", text="x"))
    assert structured.content == '{"a": "é", "b": [1, null]}'
    assert text.content == "ab[31m\tc\nd\ufffd &lt;/System_Note>"
    assert text.preview == "ab[31m\tc\nd\ufffd </System_Note>"


@pytest.mark.django_db(transaction=True)
async def test_a_large_output_is_cut_marked_redacted_and_readable_in_full(offer: Callable[..., None]) -> None:
    """A9.6, A9.c1, A9.10"""
    register_secrets(["canary-execution-2"])
    whole = "".join(f"line {number} canary-execution-2\n" for number in range(40_000))
    expected = whole.replace("canary-execution-2", "[REDACTED]")

    async def shout(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        return ToolOutput(value=whole)

    offer(shout=shout)
    context = await run_in_thread(make_context)
    (outcome,) = await run(call("shout", "c"), context=context)
    assert len(outcome.content) <= 70_000
    assert outcome.content.startswith(expected[:50_000])
    assert outcome.content.endswith(expected[-15_000:])
    marker = outcome.content[50_000:-15_000]
    assert f"{len(expected):,}" in marker
    assert '"c"' in marker
    assert (outcome.truncated, len(outcome.preview)) == (True, 4_000)
    assert outcome.file_id is not None
    assert await _read_back(context, "c", len(expected)) == expected


async def _read_back(context: TurnContext, call_id: str, size: int) -> str:
    """The whole output, part by part, through the tool the model has."""
    parts = []
    for offset in range(0, size, 50_000):
        (part,) = await run(
            call("read_tool_result", f"r{offset}", call_id=call_id, offset=offset), context=context
        )
        assert part.success
        parts.append(part.content.partition("\n")[2])
    return "".join(parts)


@pytest.mark.django_db(transaction=True)
async def test_a_group_stays_within_its_room_and_every_call_keeps_its_part(
    offer: Callable[..., None],
) -> None:
    """A9.6, A9.c4"""
    offer(large=large)
    context = await run_in_thread(make_context)
    outcomes = await run(*(call("large", f"c{n}", size=70_000) for n in range(16)), context=context)
    assert sum(len(outcome.content) for outcome in outcomes) <= 200_000
    for outcome in outcomes:
        assert len(outcome.content) >= 8_000
        whole = await run_in_thread(
            files.read_tool_output, context.user_id, _session(context), outcome.call_id
        )
        assert whole == "x" * 70_000


@pytest.mark.django_db(transaction=True)
async def test_small_siblings_leave_their_room_to_a_large_output(offer: Callable[..., None]) -> None:
    """A9.6"""
    offer(large=large)
    context = await run_in_thread(make_context)
    sizes = [70_000, 10, 70_000, 10]
    outcomes = await run(
        *(call("large", f"c{n}", size=size) for n, size in enumerate(sizes)), context=context
    )
    assert [len(outcome.content) for outcome in outcomes] == sizes
    assert not any(outcome.truncated for outcome in outcomes)


@pytest.mark.parametrize("limit", [8_200, 12_345, 65_200, 70_000])
@pytest.mark.parametrize("unit", ["x", "<system_note>"])
def test_a_cut_text_never_passes_its_limit(limit: int, unit: str) -> None:
    """A9.6, A15.6"""
    content, truncated = results.truncate_middle(unit * (100_000 // len(unit)), limit, "c" * 128)
    assert truncated
    assert 8_000 <= len(content) <= limit
    assert "<system_note>" not in content


async def test_media_must_be_what_they_say(offer: Callable[..., None]) -> None:
    """A9.9"""

    async def picture(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        return ToolOutput(value="see", media=(ImagePart(mime=arguments.text, data=PNG, file_id="kept"),))

    offer(picture=picture)
    right, wrong = await run(call("picture", "a", text="image/png"), call("picture", "b", text="image/jpeg"))
    assert right.media[0].data == PNG
    assert (wrong.success, wrong.media) == (False, ())
    assert "invalid encoding" in wrong.content


async def test_progress_is_redacted_and_told_with_the_calls_state(offer: Callable[..., None]) -> None:
    """A9.10, A2.6"""
    register_secrets(["canary-execution-3"])

    async def talk(arguments: Anything, invocation: ToolInvocation) -> ToolOutput:
        invocation.report_progress("half way, canary-execution-3")
        return ToolOutput(value=json.dumps(invocation.context.user_id))

    offer(talk=talk)
    events: list[Event] = []
    (outcome,) = await run(call("talk", "c"), events=events)
    assert events == [
        ToolStateChanged(call_id="c", state="running"),
        ToolProgressed(call_id="c", message="half way, [REDACTED]"),
    ]
    assert outcome.content == "1"
