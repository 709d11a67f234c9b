"""Say in a few words what a tool call does, and how it ended: "Searched the web", "8 results"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from config.core.json_values import JSON
from config.core.text import gettext_noop as _
from copilot.realtime.payloads import get_tool_label


class CallLabel(NamedTuple):
    """The words for a call while it runs, and once it is done."""

    running: str
    done: str


TESTS = CallLabel(_("Running tests"), _("Ran tests"))
CALL_LABELS: dict[str, CallLabel] = {
    "ask_user": CallLabel(_("Asking you"), _("Asked you")),
    "bash_exec": CallLabel(_("Running a command"), _("Ran a command")),
    "cancel_scheduled_task": CallLabel(_("Cancelling a task"), _("Cancelled a task")),
    "create_agent": CallLabel(_("Creating an agent"), _("Created an agent")),
    "current_time": CallLabel(_("Checking the time"), _("Checked the time")),
    "delete_file": CallLabel(_("Deleting a file"), _("Deleted a file")),
    "edit_agent": CallLabel(_("Editing an agent"), _("Edited an agent")),
    "get_agent_guide": CallLabel(_("Reading the agent guide"), _("Read the agent guide")),
    "get_sub_session_result": CallLabel(_("Checking delegated work"), _("Checked delegated work")),
    "list_agents": CallLabel(_("Listing agents"), _("Listed agents")),
    "list_files": CallLabel(_("Listing files"), _("Listed files")),
    "list_scheduled_tasks": CallLabel(_("Listing tasks"), _("Listed tasks")),
    "memory_add": CallLabel(_("Remembering"), _("Remembered")),
    "memory_forget": CallLabel(_("Forgetting a memory"), _("Forgot a memory")),
    "memory_search": CallLabel(_("Searching memory"), _("Searched memory")),
    "python_exec": CallLabel(_("Running Python"), _("Ran Python")),
    "read_file": CallLabel(_("Reading a file"), _("Read a file")),
    "read_tool_result": CallLabel(_("Reading a result"), _("Read a result")),
    "run_agent": CallLabel(_("Running an agent"), _("Ran an agent")),
    "run_sub_session": CallLabel(_("Delegating"), _("Delegated")),
    "schedule_task": CallLabel(_("Scheduling a task"), _("Scheduled a task")),
    "share_file": CallLabel(_("Sharing a file"), _("Shared a file")),
    "todos_write": CallLabel(_("Updating the to-do list"), _("Updated the to-do list")),
    "view_agent_output": CallLabel(_("Reading an agent's output"), _("Read an agent's output")),
    "web_fetch": CallLabel(_("Reading a web page"), _("Read a web page")),
    "web_search": CallLabel(_("Searching the web"), _("Searched the web")),
    "write_file": CallLabel(_("Writing a file"), _("Wrote a file")),
}
COUNTED_LISTS = {  # key of a list in a result → one and many
    "results": ("result", "results"),
    "files": ("file", "files"),
    "tasks": ("task", "tasks"),
    "memories": ("memory", "memories"),
}
MAX_TAIL_CHARACTERS = 4_000  # of a program's output, where test runners say how it went
MAX_PARSED_CHARACTERS = 1_000_000  # of a result
_TEST_COMMAND = re.compile(
    r"\b(?:pytest|unittest|jest|vitest|mocha|rspec|phpunit|ctest|tox|nox)\b"
    r"|\b(?:npm|pnpm|yarn|bun|make|cargo|go|mvn|gradle|mix|dotnet|swift|deno|manage\.py)(?: run)? test\b"
)
_TEST_COUNT = re.compile(r"\b(\d{1,7}) (passed|failed|errors?|skipped|failing|passing)\b")
_HTTP_STATUS = re.compile(r"; status (\d{3});")


def describe_call(tool: str, arguments: Mapping[str, JSON]) -> CallLabel:
    """Describe a call by its tool, and a program by what it runs; tools of MCP servers are called by their names."""
    command = arguments.get("command")
    if tool == "bash_exec" and isinstance(command, str) and _TEST_COMMAND.search(command[:2_000]):
        return TESTS
    label = get_tool_label(tool)
    return CALL_LABELS.get(tool, CallLabel(label, label))


def summarize_result(tool: str, text: str) -> str:
    """Summarize the outcome of a call in a few words, or return nothing if its label says enough.

    The text may be cut at its end.
    """
    if tool == "web_fetch":
        match = _HTTP_STATUS.search(text[:2_500])
        return "" if match is None or match[1].startswith("2") else f"status {match[1]}"
    value = _parse_result(text)
    if isinstance(value, list):
        return _count(len(value), "agent", "agents") if tool == "list_agents" else ""
    if not isinstance(value, dict):
        return ""
    if "exit_code" in value:
        return _summarize_program(value)
    for key, (one, many) in COUNTED_LISTS.items():
        if isinstance(found := value.get(key), list):
            return _count(len(found), one, many)
    status = value.get("status")
    return status.replace("_", " ") if isinstance(status, str) and len(status) <= 32 else ""


def _parse_result(text: str) -> JSON:
    """Parse JSON that may be cut in its last string, as in a program's output, and there within an escape."""
    if len(text) > MAX_PARSED_CHARACTERS or not text.startswith(("{", "[")):
        return None
    cut = text[: text.rfind("\\")] if "\\" in text[-6:] else text
    for candidate in (text, text + '"}', cut + '"}'):
        try:
            value: JSON = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return value
    return None


def _summarize_program(value: Mapping[str, JSON]) -> str:
    code = value["exit_code"]
    parts = (
        ["timed out" if value.get("timed_out") else f"exit {code}"]
        if code != 0 or value.get("timed_out")
        else []
    )
    output = (
        f"{value.get('stdout', '')}"[-MAX_TAIL_CHARACTERS:]
        + f"{value.get('stderr', '')}"[-MAX_TAIL_CHARACTERS:]
    )
    counts: dict[str, str] = {}
    for number, word in _TEST_COUNT.findall(output):
        counts[{"failing": "failed", "passing": "passed", "error": "errors"}.get(word, word)] = number
    wanted = ("failed", "errors") if {"failed", "errors"} & counts.keys() else ("passed",)
    parts += [f"{counts[word]} {word}" for word in wanted if word in counts]
    return " · ".join(parts)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def is_failed_program(text: str) -> bool:
    """Tell whether a program ended with an error, although the tool itself worked."""
    value = _parse_result(text)
    return (
        isinstance(value, dict)
        and ("exit_code" in value)
        and (value["exit_code"] != 0 or bool(value.get("timed_out")))
    )
