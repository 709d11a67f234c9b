"""The `python_exec` tool: run Python in the sandbox and show the images it makes."""

from __future__ import annotations

import shutil
from typing import Annotated

from pydantic import Field, StringConstraints

from copilot.tools.base import (
    MAX_TOOL_WAIT_SECONDS,
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
    load_description,
)
from copilot.tools.sandbox import bubblewrap
from copilot.tools.sandbox.programs import MAX_PROGRAM_SECONDS, SandboxProgram, execute_program

MAX_CODE_CHARACTERS = 20_000
DEFAULT_TIMEOUT_SECONDS = min(120, MAX_PROGRAM_SECONDS)


class PythonExec(ToolArguments):
    code: Annotated[
        str, StringConstraints(min_length=1, max_length=MAX_CODE_CHARACTERS, pattern=r"^[^\x00]*$")
    ]
    timeout: int = Field(
        default=DEFAULT_TIMEOUT_SECONDS, ge=1, le=MAX_PROGRAM_SECONDS, description="Seconds."
    )


async def python_exec(arguments: PythonExec, invocation: ToolInvocation) -> ToolOutput:
    program = SandboxProgram(
        words=[_find_python() or "python3", "-c", arguments.code],
        seconds=arguments.timeout,
        shows_images=True,
    )
    return await execute_program(program, invocation)


def _find_python() -> str | None:
    """Return the system's Python as the sandbox sees it; our own is not visible there."""
    return shutil.which("python3", path=bubblewrap.SANDBOX_ENVIRONMENT["PATH"])


def _unavailable_reason() -> str:
    return bubblewrap.find_sandbox_problem() or (
        "" if _find_python() else "The sandbox has no Python: install the system's python3."
    )


TOOL = Tool(
    name="python_exec",
    arguments=PythonExec,
    run=python_exec,
    description=load_description(__file__, usual=DEFAULT_TIMEOUT_SECONDS, most=MAX_PROGRAM_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,  # the code has its own limit, which the arguments name
    exclusive=True,
    unavailable_reason=_unavailable_reason,
)
