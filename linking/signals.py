"""Signals that linking sends to its own tasks; `LinkingConfig.ready` connects the receivers."""

from __future__ import annotations

from django.dispatch import Signal

link_confirmed = Signal()  # sent after the commit, with `token_id`
deliveries_recorded = Signal()  # sent after new deliveries were stored for a bot
