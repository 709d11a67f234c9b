"""What people read about a tool call (G4.1)."""

from __future__ import annotations

import json

import pytest

from copilot.tools import labels, registry


def test_every_tool_says_in_words_what_it_does() -> None:
    """G4.1"""
    assert {tool.name for tool in registry.BUILTIN_TOOLS} == set(labels.CALL_LABELS)
    for label in labels.CALL_LABELS.values():
        assert label.running != label.done
        assert "_" not in label.running + label.done


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python -m pytest -q tests", "Ran tests"),
        ("cd app && npm run test", "Ran tests"),
        ("ls latest", "Ran a command"),
        ("go test ./...", "Ran tests"),
    ],
)
def test_a_command_that_runs_tests_says_so(command: str, words: str) -> None:
    """G4.1"""
    assert labels.describe_call("bash_exec", {"command": command}).done == words


def test_a_tool_of_a_server_is_called_by_its_name() -> None:
    assert labels.describe_call("mcp_github_list_issues", {}).done == "Mcp github list issues"


@pytest.mark.parametrize(
    ("tool", "value", "words"),
    [
        (
            "bash_exec",
            {"exit_code": 1, "stdout": "== 3 failed, 9 passed in 2s ==", "stderr": ""},
            "exit 1 · 3 failed",
        ),
        ("bash_exec", {"exit_code": 0, "stdout": "12 passed in 0.1s", "stderr": ""}, "12 passed"),
        ("bash_exec", {"exit_code": 0, "stdout": "a", "stderr": ""}, ""),
        ("python_exec", {"exit_code": -9, "timed_out": True, "stdout": "", "stderr": ""}, "timed out"),
        ("web_search", {"results": [{}] * 8}, "8 results"),
        ("web_search", {"results": [{}]}, "1 result"),
        ("list_files", {"files": [], "next_cursor": None}, "0 files"),
        ("list_agents", [{}, {}], "2 agents"),
        ("run_sub_session", {"status": "running"}, "running"),
        ("current_time", {"time": "now"}, ""),
    ],
)
def test_a_result_is_summed_up_in_a_few_words(tool: str, value: object, words: str) -> None:
    """G4.1"""
    assert labels.summarize_result(tool, json.dumps(value, sort_keys=True)) == words


def test_a_result_that_is_cut_or_no_json_is_no_problem() -> None:
    whole = json.dumps({"exit_code": 2, "stdout": "x\\" * 50}, sort_keys=True)
    assert labels.summarize_result("bash_exec", whole[:60]) == "exit 2"
    assert labels.is_failed_program(whole[:61])
    assert labels.summarize_result("web_search", "[" * 200_000) == ""
    assert labels.summarize_result("web_fetch", "[https://x; status 404; text/html]") == "status 404"
    assert labels.summarize_result("web_fetch", "[https://x; status 200; text/html]") == ""
