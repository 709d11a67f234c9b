"""What an account holds besides its conversations, as plain values for its owner to take along (S15)."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.utils.module_loading import import_string

from copilot.models import Agent, McpServer, MemoryItem, Preferences, Schedule, Share, WorkspaceFile
from copilot.queries import instant

SCHEMA = "pilothouse.account/1"

Values = dict[str, Any]  # JSON; times become text where it is written


def described(owner_id: int) -> Values:
    """Nothing secret: neither keys, nor headers of servers, nor links that would open a share.

    Other apps add what they hold by themselves (EXPORT_PARTS).
    """
    elsewhere: Values = {}
    for name in settings.EXPORT_PARTS:
        elsewhere |= import_string(name)(owner_id)
    user = User.objects.get(pk=owner_id)
    chosen = Preferences.objects.filter(owner=owner_id).values("timezone", "instructions").first()
    return elsewhere | {
        "schema": SCHEMA,
        "account": {"email": user.email, "name": user.get_username(), "joined_at": instant(user.date_joined)},
        "preferences": chosen or {},
        "memories": _listed(MemoryItem.objects.filter(owner=owner_id).values("text", "created_at")),
        "agents": _listed(
            Agent.objects.filter(owner=owner_id, deleted_at=None).values("name", "description", "version")
        ),
        "schedules": _listed(
            Schedule.objects.filter(owner=owner_id, cancelled_at=None).values(
                "name", "prompt", "cron", "timezone", "created_at"
            )
        ),
        "mcp_servers": _listed(McpServer.objects.filter(owner=owner_id).values("name", "url", "created_at")),
        "shares": _listed(
            Share.objects.filter(owner=owner_id).values("kind", "created_at", "expires_at", "revoked_at")
        ),
        "files": _files(owner_id),
    }


def _files(owner_id: int) -> list[Values]:
    own = WorkspaceFile.objects.filter(owner=owner_id, deleted_at=None, purged_at=None)
    listed = own.exclude(source=WorkspaceFile.Source.TOOL_OUTPUT).order_by("created_at", "id")
    return [dict(row) for row in listed.values("id", "name", "mime", "size_bytes", "sha256", "created_at")]


def _listed(rows: Any) -> list[Values]:
    return list(rows.order_by("pk"))
