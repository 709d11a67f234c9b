"""Lets the model publish a file by a link that its owner can revoke, once a person has agreed (A22.1, A11.12)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from copilot.bridge import in_thread
from copilot.context import TurnContext
from copilot.errors import NotFound
from copilot.events import JSON
from copilot.models import Share
from copilot.tools.base import ALWAYS_ASKS, Arguments, Invocation, Tool, ToolOutput, guard_act, prose
from copilot.tools.scope import session_scope
from copilot.workspace import files, shares

REVOKE = "The user can end the link at any time under Shared links."


class ShareFile(Arguments):
    file: str = Field(min_length=1, max_length=500, description="A file id, a workspace:// URI, or a name.")
    expires_in_days: Annotated[int, Field(ge=1, le=365)] = Field(
        default=30, description="After so many days the link opens no more."
    )


async def share_file(arguments: ShareFile, invocation: Invocation) -> ToolOutput:
    share = await in_thread(_share, arguments, invocation.context)
    return ToolOutput(
        value={
            "url": shares.url(share),
            "name": str(share.payload["title"]),
            "expires_at": share.expires_at.isoformat() if share.expires_at else None,
            "note": REVOKE,
        }
    )


def _share(arguments: ShareFile, context: TurnContext) -> Share:
    file = files.find(context.user_id, arguments.file, session_id=session_scope(context))
    seconds = arguments.expires_in_days * shares.DAY_SECONDS
    return shares.publish_file(context.user_id, file.id, shares.Terms(expires_in=seconds))


def _asks(arguments: ShareFile, context: TurnContext) -> str:
    """Which of the files of this name it is."""
    try:
        file = files.find(context.user_id, arguments.file, session_id=session_scope(context))
    except NotFound:
        return ALWAYS_ASKS  # what cannot be found is not asked about
    return f"Anybody with the link could read {file.name} ({file.size_bytes:,} bytes)."


def _pins(arguments: ShareFile, context: TurnContext) -> dict[str, JSON]:
    file = files.find(context.user_id, arguments.file, session_id=session_scope(context))
    return {"arguments": {"file": str(file.id)}, "sha256": file.sha256}


TOOL = Tool(
    name="share_file",
    arguments=ShareFile,
    run=share_file,
    pins=_pins,
    description=prose(__file__),
    returns_user_text=True,
    timeout_seconds=30,
    approval="manual_only",
    asks=_asks,
    guard=guard_act("Allow sharing this file by a public link?"),
)
