"""The `todos_write` tool: keep a visible to-do list."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import Field, StringConstraints, model_validator

from config.core.db import run_in_thread
from config.core.redaction import redact_secret_patterns
from copilot.chat import sessions
from copilot.realtime.events import TodosChanged
from copilot.realtime.payloads import Todo
from copilot.tools.base import Tool, ToolArguments, ToolInvocation, ToolOutput, load_description

MAX_ITEMS = 50
MAX_ITEM_CHARACTERS = 200


class Item(ToolArguments):
    text: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_ITEM_CHARACTERS)
    ]
    status: Literal["pending", "in_progress", "completed"] = "pending"


class TodosWrite(ToolArguments):
    items: list[Item] = Field(max_length=MAX_ITEMS, description="The whole list; it replaces the old one.")

    @model_validator(mode="after")
    def _check_single_in_progress(self) -> Self:
        if sum(item.status == "in_progress" for item in self.items) > 1:
            raise ValueError("at most one item may be in_progress")
        return self


async def todos_write(arguments: TodosWrite, invocation: ToolInvocation) -> ToolOutput:
    items = [Todo(text=redact_secret_patterns(item.text), status=item.status) for item in arguments.items]
    context = invocation.context
    await run_in_thread(sessions.set_todos, UUID(context.turn_id), context.fence, items)
    invocation.emit(TodosChanged(items=items))
    done = sum(item.status == "completed" for item in items)
    return ToolOutput(value=f"Saved: {len(items)} items, {done} completed.")


TOOL = Tool(
    name="todos_write",
    arguments=TodosWrite,
    run=todos_write,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=10,
    exclusive=True,
    repeatable=True,
)
