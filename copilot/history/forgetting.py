"""Rows of conversations that are gone for good: removed in batches, so that no statement is long (S17)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from copilot.models import Message


def forget(session_ids: Sequence[UUID], limit: int) -> int:
    """Remove up to `limit` rows of these sessions; answers how many there were."""
    some = Message.objects.filter(session__in=session_ids).values("pk")[:limit]
    removed, _ = Message.objects.filter(pk__in=some).delete()
    return removed
