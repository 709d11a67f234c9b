"""Actions of staff on the page of accounts."""

from __future__ import annotations

from django.urls import reverse

ACCOUNTS = "admin:billing_account_changelist"


def run_account_action(client, account, action, **given):
    asked = {"action": action, "_selected_action": [account.pk]}
    assert b"reason" in client.post(reverse(ACCOUNTS), asked).content  # first the form
    return client.post(reverse(ACCOUNTS), {**asked, "apply": "1", **given})
