"""Shares that end with their owner, all at once; everything else about a share is `shares`' (S17)."""

from __future__ import annotations

from django.db.models.functions import Now

from copilot.models import Share


def revoke_all(owner_id: int) -> int:
    """Dead with this transaction, whatever becomes of the account."""
    standing = Share.objects.filter(owner=owner_id, revoked_at=None)
    return standing.update(revoked_at=Now(), revoke_reason=Share.Reason.OWNER_GONE)


def forget(owner_id: int, limit: int) -> int:
    """Remove shares for good, payloads and allow-lists included; answers how many."""
    some = list(Share.objects.filter(owner=owner_id).values_list("pk", flat=True)[:limit])
    Share.objects.filter(pk__in=some).delete()
    return len(some)
