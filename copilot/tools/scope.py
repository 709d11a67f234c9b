"""Which files a turn's tools may see (A20.1, S3)."""

from __future__ import annotations

from uuid import UUID

from copilot.context import TurnContext


def session_scope(context: TurnContext) -> UUID | None:
    """The session whose files alone are visible, or None for the whole workspace."""
    session_id = context.workspace.session_id
    return None if session_id is None else UUID(session_id)
