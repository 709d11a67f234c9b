"""Lets the model run Python in the sandbox, and see the pictures it draws (A23.5)."""

from __future__ import annotations

import shutil
from typing import Annotated

from pydantic import Field, StringConstraints

from copilot.tools import sandbox
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, Arguments, Invocation, Tool, ToolOutput, prose
from copilot.tools.programs import LONGEST_SECONDS, Program, execute

MAX_CODE = 20_000
USUAL_SECONDS = min(120, LONGEST_SECONDS)


class PythonExec(Arguments):
    code: Annotated[str, StringConstraints(min_length=1, max_length=MAX_CODE, pattern=r"^[^\x00]*$")]
    timeout: int = Field(default=USUAL_SECONDS, ge=1, le=LONGEST_SECONDS, description="Seconds.")


async def python_exec(arguments: PythonExec, invocation: Invocation) -> ToolOutput:
    program = Program(
        words=[_python() or "python3", "-c", arguments.code], seconds=arguments.timeout, shows_images=True
    )
    return await execute(program, invocation)


def _python() -> str | None:
    """The system's Python, as the sandbox sees it; ours lies outside."""
    return shutil.which("python3", path=sandbox.ENVIRONMENT["PATH"])


def _missing() -> str:
    return sandbox.missing() or (
        "" if _python() else "The sandbox has no Python: install the system's python3."
    )


TOOL = Tool(
    name="python_exec",
    arguments=PythonExec,
    run=python_exec,
    description=prose(__file__, usual=USUAL_SECONDS, most=LONGEST_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,  # the code has its own limit, which the arguments name
    exclusive=True,
    missing=_missing,
)
