"""Signals that copilot sends to apps that it does not import; they connect receivers in their `AppConfig.ready`."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.dispatch import Signal

from copilot.models import Turn

# --- Turns: sent after the commit with `turn_id`, perhaps twice for one event ------------------------

turn_started = Signal()
turn_awaits_person = Signal()  # it has asked a question or requested approvals
turn_ended = Signal()

# Turns of our own pages and API are answered there. No other app waits for them, so they pay for no signal.
OWN_ORIGINS = frozenset({"web", "api"})


def concerns_other_apps(origin: str) -> bool:
    return origin not in OWN_ORIGINS


def send_turn_signal(signal: Signal, turn_id: UUID, origin: str) -> None:
    """Send the signal after the commit. Django logs a receiver that fails, and calls the others."""
    if concerns_other_apps(origin):
        transaction.on_commit(lambda: signal.send_robust(sender=Turn, turn_id=turn_id))


# --- Accounts: sent with `user_id` -------------------------------------------------------------------

account_exporting = Signal()  # receivers return a dict to add to the export
account_closing = (
    Signal()
)  # deletion was requested, and again when it begins: stop everything that runs outside
account_purging = Signal()  # receivers delete a batch and return its size; sent again until all return 0
