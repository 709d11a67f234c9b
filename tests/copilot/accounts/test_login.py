"""Accounts: the way in, and back in (W1.1)."""

from __future__ import annotations

import re

import pytest

from tests.support import factories

pytestmark = pytest.mark.django_db


def log_in(client, password: str = factories.PASSWORD):
    return client.post("/accounts/login/", {"login": "ada@example.com", "password": password})


def test_a_forgotten_password_is_replaced_by_a_link_from_a_mail(client, mailoutbox):
    """W1.1"""
    factories.ada()
    client.post("/accounts/password/reset/", {"email": "ada@example.com"})
    [path] = re.findall(r"https?://[^/]+(/accounts/password/reset/key/\S+)", mailoutbox[0].body)
    form = client.get(path, follow=True)
    new = {"password1": "another-long-phrase", "password2": "another-long-phrase"}
    assert client.post(form.redirect_chain[-1][0], new).status_code == 302
    client.logout()
    assert log_in(client).status_code == 200
    assert log_in(client, "another-long-phrase").url == "/chat/"


def test_a_password_reset_reveals_nothing_about_accounts(client, mailoutbox):
    """W1.1"""
    answer = client.post("/accounts/password/reset/", {"email": "nobody@example.com"})
    assert answer.url == "/accounts/password/reset/done/"
