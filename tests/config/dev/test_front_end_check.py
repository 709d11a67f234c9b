"""Scripts and styles are checked with locked tools; where those cannot be had, the check says so and praises nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from config.dev import front_end_check
from config.dev.servers import find_free_port


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Locked tools, and a registry at which nobody answers."""
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{find_free_port()}/")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    return Path(shutil.copytree(front_end_check.LOCK, tmp_path / "lock"))


def test_without_a_registry_nothing_is_installed_and_nothing_fails(lock: Path, tmp_path: Path) -> None:
    assert not front_end_check.install_tools(lock, tmp_path / "node")
    assert list(tmp_path.glob("node*")) == []


def test_tools_of_an_older_lock_are_used_while_the_registry_is_away(lock: Path, tmp_path: Path) -> None:
    tools = tmp_path / "node"
    tools.mkdir()
    (tools / "installed").write_text("of an older lock")
    assert front_end_check.install_tools(lock, tools)
    assert (tools / "installed").read_text() == "of an older lock"


def test_a_lock_that_cannot_be_read_fails_the_check(lock: Path, tmp_path: Path) -> None:
    (lock / "package.json").write_text("{")
    with pytest.raises(front_end_check.InstallProblem, match="JSON"):
        front_end_check.install_tools(lock, tmp_path / "node")


def test_a_missing_registry_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(front_end_check, "install_tools", lambda *_: False)
    assert front_end_check.main([]) == 0
    assert capsys.readouterr().out == "front end: NOT CHECKED (npm registry not reachable)\n"


def test_problems_of_vendored_files_are_not_ours() -> None:
    ours = [
        "static/js/chat/socket.js(3,1): error TS2304: Cannot find name 'x'.",
        "  It is explained here.",
    ]
    theirs = ["static/vendor/marked/marked.esm.js(1,1): error TS1: No.", "  And here."]
    assert front_end_check.own_problems([*theirs, *ours, *theirs]) == ours


def test_every_tool_is_locked_by_a_hash() -> None:
    packages = json.loads((front_end_check.LOCK / "package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if name and "integrity" not in package] == []
