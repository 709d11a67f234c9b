"""Run staff actions on the accounts page."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse

from billing.models import Account

ACCOUNTS = "admin:billing_account_changelist"


def run_account_action(client: Client, account: Account, action: str, **given: object) -> Any:
    asked = {"action": action, "_selected_action": [account.pk]}
    assert b"reason" in client.post(reverse(ACCOUNTS), asked).content  # the form first
    return client.post(reverse(ACCOUNTS), {**asked, "apply": "1", **given})
