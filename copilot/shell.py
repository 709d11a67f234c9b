"""What a program put out, taken apart for its tool row: command, exit status, stdout, stderr (W2.3); see shell.js."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _

PROGRAMS = {"bash_exec": "command", "python_exec": "code"}
_CUT_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3})?$")


@dataclass(frozen=True, kw_only=True)
class Shell:
    command: str
    status: str
    stdout: str
    stderr: str
    message: str


def of(tool: str, given: Mapping[str, str], preview: str) -> Shell | None:
    """None when it was no program, or when its result cannot be read."""
    if tool not in PROGRAMS:
        return None
    said = _parsed(preview) if preview else {}
    if said is None or (preview and "exit_code" not in said):
        return None
    return Shell(
        command=given.get(PROGRAMS[tool], ""),
        status=_status(said),
        stdout=str(said.get("stdout", "")),
        stderr=str(said.get("stderr", "")),
        message=str(said.get("message", "")),
    )


def _status(said: Mapping[str, object]) -> str:
    if said.get("timed_out"):
        return _("timed out")
    return _("exit {code}").format(code=said["exit_code"]) if "exit_code" in said else ""


def _parsed(preview: str) -> dict[str, object] | None:
    """The preview may end anywhere; its keys are sorted, so that what is cut is the end of stdout or stderr."""
    for text in (preview, _CUT_ESCAPE.sub("", preview) + '"}'):
        try:
            said = json.loads(text)
        except ValueError:
            continue
        return said if isinstance(said, dict) else None
    return None
