"""Signals that billing sends to apps that it does not import; they connect receivers in their `AppConfig.ready`."""

from __future__ import annotations

from django.db import transaction
from django.dispatch import Signal

from billing.models import Account

limit_lifted = Signal()  # with `user_id`, whose work may have waited for it


def send_limit_lifted(user_id: int) -> None:
    """Send the signal after the commit. Django logs a receiver that fails, which undoes nothing."""
    transaction.on_commit(lambda: limit_lifted.send_robust(sender=Account, user_id=user_id))
