"""Run staff actions on the accounts page."""

from __future__ import annotations

from django.urls import reverse

ACCOUNTS = "admin:billing_account_changelist"


def run_account_action(client, account, action, **given):
    asked = {"action": action, "_selected_action": [account.pk]}
    assert b"reason" in client.post(reverse(ACCOUNTS), asked).content  # the form first
    return client.post(reverse(ACCOUNTS), {**asked, "apply": "1", **given})
