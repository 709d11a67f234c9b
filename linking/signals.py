"""Signals that linking sends to its own tasks after the commit; `LinkingConfig.ready` connects the receivers."""

from __future__ import annotations

from django.dispatch import Signal

link_confirmed = Signal()  # with `token_id`
deliveries_recorded = Signal()  # new deliveries were stored for a bot
