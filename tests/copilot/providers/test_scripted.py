"""Scripts play as written and refuse what vendors would refuse; the demo is honest and deterministic (A5.6, A33.c1)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from copilot.providers.base import (
    AssistantMessage,
    CallFragment,
    CatalogueEntry,
    ImagePart,
    ModelMessage,
    ModelRequest,
    ProviderFailure,
    ReasoningDelta,
    ReasoningReplay,
    ReplyFinished,
    StreamItem,
    TextDelta,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    ToolSpecification,
    UsageReported,
    UserMessage,
)
from copilot.providers.catalogue import DEMO_ENTRY
from copilot.providers.demo import DemoProvider
from copilot.providers.request_validation import find_request_problems
from copilot.providers.scripted import (
    Script,
    ScriptedCall,
    ScriptedCut,
    ScriptedFailure,
    ScriptedFinish,
    ScriptedHang,
    ScriptedPause,
    ScriptedProvider,
    ScriptedReasoning,
    ScriptedReply,
    ScriptedText,
    ScriptItem,
    expect_image,
    expect_last_text,
    expect_tool,
)

ENTRY = CatalogueEntry(name="x", provider="scripted", model="x")
TOOLS = tuple(
    ToolSpecification(name=name, description=name, parameters={"type": "object"})
    for name in ("write_file", "todos_write", "ask_user", "current_time")
)


class Clock:
    def __init__(self) -> None:
        self.slept = 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds


def request(*messages: ModelMessage, entry: CatalogueEntry = ENTRY) -> ModelRequest:
    given = messages or (UserMessage(text="hi"),)
    return ModelRequest(entry=entry, system="s", messages=given, tools=TOOLS, thinking_tokens=1000)


async def played(*items: ScriptItem) -> list[StreamItem]:
    return [item async for item in ScriptedProvider(Script(items), Clock()).stream(request())]


# --- playing -----------------------------------------------------------------------------------------


async def test_items_are_played_as_written() -> None:
    items = await played(
        ScriptedReasoning("hm", "sig"),
        ScriptedText("abcd", size=2),
        ScriptedCall("write_file", {"a": 1}, "c1", 2),
    )
    assert items[0] == ReasoningDelta("hm")
    assert isinstance(items[1], ReasoningReplay)
    assert items[2:] == [
        TextDelta("ab"),
        TextDelta("cd"),
        CallFragment(0, "c1", "write_file"),
        CallFragment(0, arguments='{"a"'),
        CallFragment(0, arguments=":1}"),
        ReplyFinished("tool_calls", "scripted-1"),
    ]


async def test_raw_fragments_and_reasons_pass_through() -> None:
    raw = CallFragment(None, "", "ls", "{")
    assert await played(raw, ScriptedFinish("length")) == [raw, ReplyFinished("length", "scripted-1")]


async def test_pauses_use_the_injected_clock() -> None:
    clock = Clock()
    provider = ScriptedProvider(Script([ScriptedPause(3600), ScriptedText("late")]), clock)
    items = [item async for item in provider.stream(request())]
    assert items[0] == TextDelta("late")
    assert clock.slept == 3600


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (ScriptedFailure("overloaded"), "overloaded"),
        (ScriptedFailure(status=429, body="insufficient quota"), "quota_exhausted"),
        (ScriptedFailure(status=429, headers={"retry-after": "20"}), "rate_limited"),
        (ScriptedCut(), "no_response"),
    ],
)
async def test_failures_are_raised_as_classes(item: ScriptItem, code: str) -> None:
    with pytest.raises(ProviderFailure) as failure:
        await played(item)
    assert failure.value.code == code


async def test_a_cut_after_text_is_a_malformed_stream_a5_c2() -> None:
    with pytest.raises(ProviderFailure, match="malformed_stream"):
        await played(ScriptedText("half"), ScriptedCut())


async def test_a_hanging_reply_can_be_cancelled() -> None:
    task = asyncio.create_task(played(ScriptedHang()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_running_past_the_script_is_a_bad_request() -> None:
    provider = ScriptedProvider(Script([ScriptedText("one")]))
    assert [item async for item in provider.stream(request())]
    with pytest.raises(ProviderFailure, match=r"bad_request.*request 2"):
        [item async for item in provider.stream(request())]
    assert len(provider.script.requests) == 2


async def test_an_unmet_predicate_fails_with_a_diff() -> None:
    script = Script(
        ScriptedReply(
            [ScriptedText("x")], requires=[expect_last_text("bye"), expect_tool("rm"), expect_image]
        )
    )
    with pytest.raises(AssertionError, match=r"(?s)-bye.*\+hi.*'rm'.*image"):
        [item async for item in ScriptedProvider(script).stream(request())]


async def test_met_predicates_let_the_reply_play() -> None:
    seen = UserMessage(text="look", images=(ImagePart(mime="image/png", data=b"x"),))
    script = Script(
        ScriptedReply(
            [ScriptedText("x")], requires=[expect_last_text("look"), expect_tool("ask_user"), expect_image]
        )
    )
    seeing = request(seen, entry=replace(ENTRY, supports_images=True))
    assert [item async for item in ScriptedProvider(script).stream(seeing)]


@pytest.mark.parametrize("sees", [True, False])
def test_pictures_are_refused_where_the_model_takes_none(sees: bool) -> None:
    """A5.6, A9.9"""
    picture = ImagePart(mime="image/png", data=b"x")
    entry = replace(ENTRY, supports_images=sees)
    group = ToolResultsMessage(
        results=(ToolResult(call_id="c1", tool="write_file", content="x", images=(picture,)),)
    )
    shown = find_request_problems(request(UserMessage(text="look", images=(picture,)), entry=entry))
    returned = find_request_problems(request(HI, CALLING, group, entry=entry))
    assert [any("does not support them" in problem for problem in shown), len(returned)] == [not sees, 1]
    assert find_request_problems(
        request(HI, CALLING, group, entry=replace(entry, media_in_tool_results=True))
    ) == ([] if sees else returned)


# --- strictness --------------------------------------------------------------------------------------

HI = UserMessage(text="hi")
CALL = ToolCall(call_id="c1", tool="write_file", arguments={})
CALLING = AssistantMessage(text="", calls=(CALL,))
RESULT = ToolResult(call_id="c1", tool="write_file", content="ok")
RESULTS = ToolResultsMessage(results=(RESULT,))

REFUSED: list[tuple[str, tuple[ModelMessage, ...]]] = [
    ("first message", (AssistantMessage(text="hi"),)),
    ("without results", (HI, CALLING)),
    ("without results", (HI, CALLING, HI, RESULTS)),
    ("without calls", (HI, RESULTS)),
    ("without calls", (HI, CALLING, RESULTS, RESULTS)),
    ("do not answer", (HI, CALLING, ToolResultsMessage(results=(replace(RESULT, call_id="c2"),)))),
    ("do not answer", (HI, CALLING, ToolResultsMessage(results=(RESULT, RESULT)))),
    ("twice", (HI, replace(CALLING, calls=(CALL, CALL)), ToolResultsMessage(results=(RESULT, RESULT)))),
    ("empty user", (UserMessage(text=" "),)),
    ("empty assistant", (HI, AssistantMessage(text=""), HI)),
    ("NUL", (UserMessage(text="a\x00b"),)),
    ("surrogate", (UserMessage(text="a\ud800b"),)),
    ("unusable", (HI, replace(CALLING, calls=(replace(CALL, call_id=""),)), RESULTS)),
    ("not JSON", (HI, AssistantMessage(text="x", replay=("{",)), HI)),
]


@pytest.mark.parametrize(("problem", "messages"), REFUSED)
async def test_an_invalid_request_is_refused_by_name_a5_6(
    problem: str, messages: tuple[ModelMessage, ...]
) -> None:
    provider = ScriptedProvider(Script([ScriptedText("never")]))
    with pytest.raises(ProviderFailure, match=problem) as failure:
        [item async for item in provider.stream(request(*messages))]
    assert failure.value.code == "bad_request"


async def test_a_valid_tool_loop_is_accepted_a5_6() -> None:
    provider = ScriptedProvider(Script([ScriptedText("fine")]))
    assert [item async for item in provider.stream(request(HI, CALLING, RESULTS, HI))]


# --- the demo ----------------------------------------------------------------------------------------


async def demo(*messages: ModelMessage, rate: int = 60) -> tuple[str, list[StreamItem], float]:
    clock = Clock()
    provider = DemoProvider(rate, clock)
    items = [item async for item in provider.stream(request(*messages, entry=DEMO_ENTRY))]
    return "".join(i.text for i in items if isinstance(i, TextDelta)), items, clock.slept


async def test_the_first_answer_says_that_it_is_a_demo_a33_c1() -> None:
    text, items, _ = await demo(UserMessage(text="Hello!"))
    assert "scripted demo, not an AI" in text
    assert isinstance(items[0], ReasoningDelta)
    usage = items[-2]
    assert isinstance(usage, UsageReported)
    assert usage.cost == "0"
    later, _, _ = await demo(
        UserMessage(text="Hello!"), AssistantMessage(text=text), UserMessage(text="And?")
    )
    assert "scripted demo" not in later


async def test_the_long_answer_takes_a_minute_and_shows_everything() -> None:
    text, _, slept = await demo(UserMessage(text="a long one, please"))
    assert 55 < slept < 75
    assert all(sign in text for sign in ("```python", "|---|---|", "\n1. "))


@pytest.mark.parametrize(
    ("asked", "tools"),
    [
        ("use a tool", ["current_time"]),
        ("write a file", ["write_file"]),
        ("a todo list", ["todos_write"]),
        ("ask me something", ["ask_user"]),
        ("a file and a todo", ["write_file", "todos_write"]),
        ("make an artifact", ["write_file"]),
        ("my profile mask", []),
    ],
)
async def test_words_call_tools(asked: str, tools: list[str]) -> None:
    _, items, _ = await demo(UserMessage(text=asked))
    assert [i.name for i in items if isinstance(i, CallFragment) and i.name] == tools
    assert isinstance(items[-1], ReplyFinished)
    assert items[-1].reason == ("tool_calls" if tools else "stop")


def test_the_demos_calls_fit_the_shipped_tools() -> None:
    from copilot.providers.demo import PAGE_ARGUMENTS, TOOL_ARGUMENTS
    from copilot.tools.builtin import ask_user, current_time, delete_file, todos_write, write_file

    shipped = (write_file.TOOL, delete_file.TOOL, todos_write.TOOL, ask_user.TOOL, current_time.TOOL)
    assert {tool.name for tool in shipped} == set(TOOL_ARGUMENTS)
    for tool in shipped:
        tool.arguments.model_validate(TOOL_ARGUMENTS[tool.name])
    write_file.TOOL.arguments.model_validate(PAGE_ARGUMENTS)


async def test_a_request_to_think_aloud_gets_a_longer_thought() -> None:
    """W1.2"""
    _, short, _ = await demo(UserMessage(text="Hello!"))
    _, long, _ = await demo(UserMessage(text="think aloud"))
    thoughts = [[item for item in items if isinstance(item, ReasoningDelta)] for items in (short, long)]
    assert len(thoughts[1]) > 2 * len(thoughts[0])


async def test_a_deletion_is_proposed_once_the_file_exists_a33_c1() -> None:
    """Its tool asks first: so the demo shows an approval."""
    from copilot.tools.builtin import delete_file

    asked = UserMessage(text="delete a file")
    tools = (delete_file.TOOL.specification(),)
    replies = [
        DemoProvider().reply_to(replace(request(asked, CALLING, *rest, entry=DEMO_ENTRY), tools=tools))
        for rest in ((RESULTS,), (ToolResultsMessage(results=(replace(RESULT, tool="delete_file"),)),))
    ]
    called = [[item.tool for item in reply.items if isinstance(item, ScriptedCall)] for reply in replies]
    assert called == [["delete_file"], []]


async def test_results_are_summed_up() -> None:
    text, _, _ = await demo(HI, CALLING, RESULTS)
    assert "`write_file` said: ok" in text
    assert "scripted demo, not an AI" in text  # text before the calls is folded
    later, _, _ = await demo(HI, AssistantMessage(text=text), HI, CALLING, RESULTS)
    assert "scripted demo" not in later


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"file_id": "1", "name": "a.md", "uri": "workspace://1"}', "said: [a.md](workspace://1)"),
        ('{"time": "noon", "parts": [1]}', "said: time: noon"),
        ("[1]", "said: [1]"),
    ],
)
async def test_results_are_said_as_people_would(content: str, said: str) -> None:
    """W1.2: a file by its name, which is a link"""
    text, _, _ = await demo(HI, CALLING, ToolResultsMessage(results=(replace(RESULT, content=content),)))
    assert said in text


@pytest.mark.parametrize("note", [(), (UserMessage(text="<system_note>Continue.</system_note>"),)])
@pytest.mark.parametrize("end", [1, 57, 400])
async def test_an_interrupted_answer_continues_exactly_where_it_stopped(
    end: int, note: tuple[UserMessage, ...]
) -> None:
    asked = UserMessage(text="a long one")
    whole, _, _ = await demo(asked)
    rest, items, _ = await demo(asked, AssistantMessage(text=whole[:end]), *note)
    assert whole[:end] + rest == whole
    assert not any(isinstance(item, ReasoningDelta) for item in items)
