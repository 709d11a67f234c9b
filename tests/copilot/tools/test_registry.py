"""The shipped tools as data, and which of them a turn is offered (A20, A32)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from django.conf import settings

from copilot import tools
from copilot.agents import services as agents
from copilot.chat.permissions import NO_PERMISSIONS, UNRESTRICTED
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, Channel
from copilot.files import services as files
from copilot.memories import services as memories
from copilot.schedules import cron
from copilot.schedules import services as schedules
from copilot.tools import json_schema, registry
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, BaseTool
from copilot.tools.builtin import (
    ask_user,
    bash_exec,
    get_sub_session_result,
    memory_search,
    python_exec,
    read_file,
    read_tool_result,
    todos_write,
    web_fetch,
    web_search,
)
from copilot.tools.sandbox import workspace_sync

WEB, SCHEDULE = CHANNELS_BY_ORIGIN["web"], CHANNELS_BY_ORIGIN["schedule"]
PROSE = Path(tools.__path__[0]) / "builtin"


def names(offered: tuple[BaseTool, ...]) -> list[str]:
    return [tool.name for tool in offered]


def declared(tool: BaseTool) -> tuple[str, int, set[str]]:
    flags = {
        flag
        for flag in (
            "exclusive",
            "repeatable",
            "read_only",
            "polling",
            "interactive",
            "network",
            "memory",
            "schedules",
            "sub_sessions",
            "billable",
        )
        if getattr(tool, flag)
    }
    return tool.approval, tool.timeout_seconds, flags


def test_the_registry_is_the_table_of_tools() -> None:
    """A32: `ask_user` repeats because it finds its own question again (A12.4)"""
    assert {tool.name: declared(tool) for tool in registry.BUILTIN_TOOLS} == {
        "write_file": ("never", 30, set()),
        "read_file": ("never", 30, {"read_only", "repeatable"}),
        "list_files": ("never", 30, {"read_only", "repeatable"}),
        "delete_file": ("ask", 30, set()),
        "share_file": ("manual_only", 30, set()),
        "read_tool_result": ("never", 30, {"read_only", "repeatable"}),
        "bash_exec": ("never", MAX_TOOL_WAIT_SECONDS, {"exclusive"}),
        "python_exec": ("never", MAX_TOOL_WAIT_SECONDS, {"exclusive"}),
        "web_fetch": ("never", 30, {"read_only", "repeatable", "network"}),
        "web_search": ("never", 20, {"read_only", "repeatable", "network"}),
        "memory_add": ("never", 10, {"memory"}),
        "memory_search": ("never", 10, {"read_only", "repeatable", "memory"}),
        "memory_forget": ("never", 10, {"memory"}),
        "schedule_task": ("manual_only", 10, {"schedules"}),
        "list_scheduled_tasks": ("never", 10, {"read_only", "repeatable", "schedules"}),
        "cancel_scheduled_task": ("never", 10, {"schedules"}),
        "todos_write": ("never", 10, {"exclusive", "repeatable"}),
        "current_time": ("never", 10, {"read_only", "repeatable"}),
        "ask_user": ("never", MAX_TOOL_WAIT_SECONDS, {"exclusive", "repeatable", "interactive"}),
        "run_sub_session": ("never", MAX_TOOL_WAIT_SECONDS, {"sub_sessions", "billable"}),
        "get_sub_session_result": (
            "never",
            MAX_TOOL_WAIT_SECONDS,
            {"sub_sessions", "polling", "repeatable"},
        ),
        "get_agent_guide": ("never", 10, {"read_only", "repeatable"}),
        "list_agents": ("never", 10, {"read_only", "repeatable"}),
        "create_agent": ("never", 30, {"exclusive"}),
        "edit_agent": ("never", 30, {"exclusive"}),
        "run_agent": ("never", MAX_TOOL_WAIT_SECONDS, {"sub_sessions", "billable"}),
        "view_agent_output": (
            "never",
            MAX_TOOL_WAIT_SECONDS,
            {"sub_sessions", "polling", "repeatable", "read_only"},
        ),
    }


def test_every_tool_has_its_prose_and_every_prose_its_tool() -> None:
    """A32.1"""
    assert {path.stem for path in PROSE.glob("*.md")} == set(names(registry.BUILTIN_TOOLS))
    assert all(tool.description for tool in registry.BUILTIN_TOOLS)


@pytest.mark.parametrize(
    ("tool", "limits"),
    [
        ("read_file", {read_file.MAX_CHARACTERS}),
        ("read_tool_result", {read_tool_result.MAX_CHARACTERS}),
        ("list_files", {files.MAX_PAGE_FILES}),
        ("todos_write", {todos_write.MAX_ITEMS, todos_write.MAX_ITEM_CHARACTERS}),
        (
            "ask_user",
            {
                1000,
                8,
                200,
                ask_user.DEFAULT_TIMEOUT_SECONDS,
                ask_user.MIN_TIMEOUT_SECONDS,
                MAX_TOOL_WAIT_SECONDS,
            },
        ),
        (
            "bash_exec",
            {
                workspace_sync.MAX_SAVED_FILES,
                bash_exec.MAX_COMMAND_CHARACTERS,
                bash_exec.DEFAULT_TIMEOUT_SECONDS,
                MAX_TOOL_WAIT_SECONDS,
            },
        ),
        (
            "python_exec",
            {python_exec.MAX_CODE_CHARACTERS, python_exec.DEFAULT_TIMEOUT_SECONDS, MAX_TOOL_WAIT_SECONDS},
        ),
        (
            "web_fetch",
            {web_fetch.DEFAULT_CHARACTERS, settings.TOOL_OUTPUT_CHARACTERS, web_fetch.MAX_URL_CHARACTERS},
        ),
        ("web_search", {web_search.DEFAULT_RESULTS, web_search.MAX_RESULTS, web_search.MAX_QUERY_CHARACTERS}),
        ("memory_add", {memories.MAX_MEMORY_CHARACTERS}),
        ("memory_search", {memories.MAX_SEARCH_RESULTS, memory_search.MAX_QUERY_CHARACTERS}),
        ("memory_forget", set()),
        (
            "schedule_task",
            {cron.MIN_INTERVAL_MINUTES, schedules.MAX_ACTIVE_SCHEDULES, schedules.SHOWN_NEXT_RUNS},
        ),
        ("list_scheduled_tasks", set()),
        ("cancel_scheduled_task", set()),
        ("run_sub_session", {32_000, 30_000, 5, 3, 60, 0, 300}),
        (
            "get_sub_session_result",
            {60, 0, MAX_TOOL_WAIT_SECONDS, 5, get_sub_session_result.MAX_PROGRESS_CHARACTERS},
        ),
        ("write_file", set()),
        ("delete_file", {settings.WORKSPACE_TRASH_DAYS}),
        ("current_time", set()),
        ("get_agent_guide", set()),
        ("list_agents", {agents.AGENTS_PER_PAGE}),
        ("create_agent", {1, agents.MAX_INSTRUCTIONS_CHARACTERS, json_schema.MAX_PROPERTIES}),
        ("edit_agent", set()),
        ("run_agent", {0, MAX_TOOL_WAIT_SECONDS}),
        ("view_agent_output", {0, MAX_TOOL_WAIT_SECONDS}),
    ],
)
def test_the_numbers_in_the_prose_are_those_of_the_code(tool: str, limits: set[int]) -> None:
    """A32.1"""
    found = registry.find_tool(tool)
    assert found is not None
    text = found.description.replace("base64", "")
    assert {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", text)} == limits


def test_names_are_valid_and_times_within_the_longest_wait() -> None:
    """A9.1, A9.5"""
    for tool in registry.BUILTIN_TOOLS:
        assert re.fullmatch(r"[a-z0-9_]{1,64}", tool.name)
        assert tool.timeout_seconds <= MAX_TOOL_WAIT_SECONDS
        assert registry.find_tool(tool.name) is tool
    assert registry.find_tool("nonsense") is None


def test_the_specifications_stay_below_32_000_characters() -> None:
    """A8.7"""
    array = [
        {"name": s.name, "description": s.description, "parameters": s.parameters}
        for s in (tool.specification() for tool in registry.BUILTIN_TOOLS)
    ]
    assert len(json.dumps(array)) < 32_000


def test_an_unrestricted_turn_is_offered_everything_in_order() -> None:
    """A15.2, A20.2"""
    able = tuple(
        tool for tool in registry.BUILTIN_TOOLS if tool.name not in registry.list_unavailable_tools()
    )
    assert registry.list_offered_tools(UNRESTRICTED, WEB) == able


def test_a_tool_that_cannot_work_here_is_not_offered_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """A32.2, A32.c1"""
    broken = replace(registry.BUILTIN_TOOLS[0], unavailable_reason=lambda: "no engine")
    monkeypatch.setattr(registry, "BUILTIN_TOOLS", (broken, *registry.BUILTIN_TOOLS[1:]))
    assert broken.name not in names(registry.list_offered_tools(UNRESTRICTED, WEB))
    assert registry.list_unavailable_tools()[broken.name] == "no engine"


def test_a_turn_without_network_or_memory_is_offered_no_tool_that_needs_it() -> None:
    """A20.1, A20.3"""
    offered = registry.list_offered_tools(replace(UNRESTRICTED, network=False, memory=False), WEB)
    assert not [tool.name for tool in offered if tool.network or tool.memory]


def test_a_turn_without_permissions_is_offered_nothing() -> None:
    """A20.2, A20.c1"""
    assert registry.list_offered_tools(NO_PERMISSIONS, WEB) == ()


def test_nobody_is_asked_where_nobody_can_answer() -> None:
    """A12.5: scheduled runs and sub-sessions among them; elsewhere it is offered"""
    asks = {
        name
        for name, channel in CHANNELS_BY_ORIGIN.items()
        if "ask_user" in names(registry.list_offered_tools(UNRESTRICTED, channel))
    }
    assert asks == {"web", "api", "goal", "follow_up"}
    deaf = Channel(async_delivery=True, interactive=False)  # as a place on a chat platform may be
    assert "ask_user" not in names(registry.list_offered_tools(UNRESTRICTED, deaf))


def test_allowed_and_denied_sets_narrow_the_offer_and_results_stay_readable() -> None:
    """A20.3, A20.5"""
    one = replace(UNRESTRICTED, tools=frozenset({"current_time"}))
    assert names(registry.list_offered_tools(one, WEB)) == ["read_tool_result", "current_time"]
    denied = replace(UNRESTRICTED, denied_tools=frozenset({"write_file", "read_tool_result"}))
    assert names(registry.list_offered_tools(denied, WEB)) == [
        name for name in names(registry.list_offered_tools(UNRESTRICTED, WEB)) if name != "write_file"
    ]
