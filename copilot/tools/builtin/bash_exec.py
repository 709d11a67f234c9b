"""The `bash_exec` tool: run shell commands in the sandbox."""

from __future__ import annotations

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

MAX_COMMAND_CHARACTERS = 20_000
DEFAULT_TIMEOUT_SECONDS = min(120, MAX_PROGRAM_SECONDS)


class BashExec(ToolArguments):
    command: Annotated[
        str, StringConstraints(min_length=1, max_length=MAX_COMMAND_CHARACTERS, pattern=r"^[^\x00]*$")
    ]
    timeout: int = Field(
        default=DEFAULT_TIMEOUT_SECONDS, ge=1, le=MAX_PROGRAM_SECONDS, description="Seconds."
    )
    workdir: str = Field(default="", max_length=500, description="A folder below the working directory.")


async def bash_exec(arguments: BashExec, invocation: ToolInvocation) -> ToolOutput:
    program = SandboxProgram(
        words=["/bin/bash", "-c", arguments.command], seconds=arguments.timeout, workdir=arguments.workdir
    )
    return await execute_program(program, invocation)


TOOL = Tool(
    name="bash_exec",
    arguments=BashExec,
    run=bash_exec,
    description=load_description(__file__, usual=DEFAULT_TIMEOUT_SECONDS, most=MAX_PROGRAM_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,  # the command has its own limit, which the arguments name
    exclusive=True,
    unavailable_reason=bubblewrap.find_sandbox_problem,
)
