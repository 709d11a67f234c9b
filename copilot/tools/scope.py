"""Which files a turn's tools may see (A20.1, S3)."""

from __future__ import annotations

from uuid import UUID

from copilot.context import TurnContext


def session_scope(context: TurnContext) -> UUID | None:
    """The session whose files alone are visible, or None for the whole workspace."""
    return None if context.permissions.files == "workspace" else UUID(context.session_id)
