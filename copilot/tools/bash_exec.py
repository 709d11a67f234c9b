"""Lets the model run shell commands in the sandbox (A23.3)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from copilot.tools import sandbox
from copilot.tools.base import MAX_TOOL_WAIT_SECONDS, Arguments, Invocation, Tool, ToolOutput, prose
from copilot.tools.programs import LONGEST_SECONDS, Program, execute

MAX_COMMAND = 20_000
USUAL_SECONDS = min(120, LONGEST_SECONDS)


class BashExec(Arguments):
    command: Annotated[str, StringConstraints(min_length=1, max_length=MAX_COMMAND, pattern=r"^[^\x00]*$")]
    timeout: int = Field(default=USUAL_SECONDS, ge=1, le=LONGEST_SECONDS, description="Seconds.")
    workdir: str = Field(default="", max_length=500, description="A folder below the working directory.")


async def bash_exec(arguments: BashExec, invocation: Invocation) -> ToolOutput:
    program = Program(
        words=["/bin/bash", "-c", arguments.command], seconds=arguments.timeout, workdir=arguments.workdir
    )
    return await execute(program, invocation)


TOOL = Tool(
    name="bash_exec",
    arguments=BashExec,
    run=bash_exec,
    description=prose(__file__, usual=USUAL_SECONDS, most=LONGEST_SECONDS),
    returns_user_text=True,
    timeout_seconds=MAX_TOOL_WAIT_SECONDS,  # the command has its own limit, which the arguments name
    exclusive=True,
    missing=sandbox.missing,
)
