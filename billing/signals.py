"""Tell the rest of the system that a user's limit was lifted, through hooks named in the settings."""

from __future__ import annotations

import structlog
from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

log = structlog.get_logger(__name__)


def notify_limit_lifted(user_id: int) -> None:
    """Call the hooks after commit. A failing hook is logged and undoes nothing."""
    transaction.on_commit(lambda: _call_hooks(user_id))


def _call_hooks(user_id: int) -> None:
    for name in settings.BILLING_LIMIT_LIFTED_HOOKS:
        try:
            import_string(name)(user_id)
        except Exception:
            log.exception("limit_lifted_hook_failed", hook=name, user_id=user_id)
