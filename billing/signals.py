"""Tells whoever waits that a user may go on: the one call out of billing, by configuration (B2.4)."""

from __future__ import annotations

import logging

from django.conf import settings
from django.db import transaction
from django.utils.module_loading import import_string

logger = logging.getLogger(__name__)


def notify_limit_lifted(user_id: int) -> None:
    """After commit; a hook that fails undoes nothing."""
    transaction.on_commit(lambda: _call_hooks(user_id))


def _call_hooks(user_id: int) -> None:
    for name in settings.BILLING_LIMIT_LIFTED_HOOKS:
        try:
            import_string(name)(user_id)
        except Exception:
            logger.exception("The hook %s failed for user %s.", name, user_id)
