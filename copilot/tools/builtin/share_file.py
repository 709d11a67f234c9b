"""The `share_file` tool: publish a file by a revocable link after a person approved it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.core.db import run_in_thread
from config.core.errors import NotFound
from config.core.json_values import JSON
from copilot.chat.turn_context import TurnContext
from copilot.files import services as files
from copilot.models import Share
from copilot.sharing import services as sharing
from copilot.tools.base import (
    ALWAYS_ASKS_REASON,
    Tool,
    ToolArguments,
    ToolInvocation,
    ToolOutput,
    get_file_scope,
    guard_always,
    load_description,
)

REVOKE_NOTE = "The user can revoke the link at any time under Shared links."


class ShareFile(ToolArguments):
    file: str = Field(min_length=1, max_length=500, description="A file id, a workspace:// URI, or a name.")
    expires_in_days: Annotated[int, Field(ge=1, le=365)] = Field(
        default=30, description="After so many days the link opens no more."
    )


async def share_file(arguments: ShareFile, invocation: ToolInvocation) -> ToolOutput:
    share = await run_in_thread(_publish_share, arguments, invocation.context)
    return ToolOutput(
        value={
            "url": sharing.get_share_url(share),
            "name": str(share.payload["title"]),
            "expires_at": share.expires_at.isoformat() if share.expires_at else None,
            "note": REVOKE_NOTE,
        }
    )


def _publish_share(arguments: ShareFile, context: TurnContext) -> Share:
    file = files.find_file(context.user_id, arguments.file, session_id=get_file_scope(context))
    seconds = arguments.expires_in_days * sharing.DAY_SECONDS
    return sharing.publish_file(context.user_id, file.id, sharing.ShareTerms(expires_in=seconds))


def _approval_reason(arguments: ShareFile, context: TurnContext) -> str:
    """Name the file that was found, as several may have the same name."""
    try:
        file = files.find_file(context.user_id, arguments.file, session_id=get_file_scope(context))
    except NotFound:
        return ALWAYS_ASKS_REASON  # the call itself will report it
    return f"Anyone with the link can read {file.name} ({file.size_bytes:,} bytes)."


def _pin_arguments(arguments: ShareFile, context: TurnContext) -> dict[str, JSON]:
    file = files.find_file(context.user_id, arguments.file, session_id=get_file_scope(context))
    return {"arguments": {"file": str(file.id)}, "sha256": file.sha256}


TOOL = Tool(
    name="share_file",
    arguments=ShareFile,
    run=share_file,
    pins=_pin_arguments,
    description=load_description(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    approval="manual_only",
    approval_reason=_approval_reason,
    guard=guard_always("Allow sharing this file by a public link?"),
)
