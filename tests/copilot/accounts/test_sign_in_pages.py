"""The pages to sign in, sign up and confirm who one is speak our words, not those of the library behind them."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from tests.support import factories

pytestmark = pytest.mark.django_db
LIBRARY_WORDS = (
    "Login",
    "Remember Me",
    "and/or",
    "Password Reset",
    "(again)",
    "Email Addresses",
    "Activate Authenticator",
    "Make Primary",
    "Security key",
    "security key:",
    "Sign Out",
    "successfully",
)


def words(response) -> str:
    page = re.sub(r"(?s)<(script|style|head)\b.*?</\1>", "", response.content.decode())
    return " ".join(re.sub(r"<[^>]+>", " ", page).replace("&#x27;", "'").split())


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/accounts/login/", ("Email", "Keep me signed in", "Forgot your password?")),
        ("/accounts/signup/", ("Email", "At least 8 characters, nothing easy to guess.")),
        ("/accounts/password/reset/", ("Reset your password", "Send link")),
        ("/accounts/password/reset/done/", ("Check your email",)),
        ("/accounts/password/reset/key/1-nonsense/", ("This link doesn't work any more",)),
        ("/accounts/password/reset/key/done/", ("Password changed",)),
        ("/accounts/confirm-email/nonsense/", ("This link doesn't work any more",)),
    ],
)
def test_pages_for_visitors_are_in_plain_words(client: Client, path: str, shown: tuple[str, ...]):
    seen = words(client.get(path))
    assert [text for text in shown if text not in seen] == []
    assert [text for text in LIBRARY_WORDS if text in seen] == []
    assert "placeholder" not in client.get(path).content.decode()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/accounts/password/change/", ("Current password", "New password", "Repeat new password")),
        ("/accounts/email/", ("Email addresses", "Make main address")),
        ("/accounts/2fa/", ("Passkeys",)),
        ("/accounts/2fa/webauthn/", ("No passkeys yet.",)),
        ("/accounts/2fa/totp/activate/", ("Set up an authenticator app", "Turn on")),
        ("/accounts/reauthenticate/", ("Confirm it's you", "Enter your password to continue.")),
        ("/accounts/logout/", ("Sign out?",)),
    ],
)
def test_pages_of_an_account_are_in_plain_words(client: Client, path: str, shown: tuple[str, ...]):
    signed_in(client)
    client.post("/accounts/reauthenticate/", {"password": factories.PASSWORD})
    seen = words(client.get(path, follow=True))
    assert [text for text in shown if text not in seen] == []
    assert [text for text in LIBRARY_WORDS if text in seen] == []


def signed_in(client: Client) -> None:
    ada = factories.ada()
    ada.emailaddress_set.get_or_create(email=ada.email, primary=True, verified=True)
    answer = client.post("/accounts/login/", {"login": ada.email, "password": factories.PASSWORD})
    assert answer.status_code == 302


@pytest.mark.parametrize("login", ["ada@example.com", "ada", "nobody@example.com"])
def test_a_wrong_password_and_an_unknown_account_read_the_same(client: Client, login: str):
    factories.ada()
    seen = words(client.post("/accounts/login/", {"login": login, "password": "wrong"}))
    assert "Wrong email or password." in seen


def test_a_new_password_that_is_refused_says_why_at_its_field(client: Client):
    signed_in(client)
    given = {"oldpassword": "wrong", "password1": "12345678", "password2": "12345678"}
    seen = words(client.post("/accounts/password/change/", given))
    assert "That isn't your current password." in seen
    assert "This password is too common." in seen


def test_a_password_that_was_changed_is_confirmed_plainly(client: Client):
    signed_in(client)
    new = "quiet-harbour-lamp"
    given = {"oldpassword": factories.PASSWORD, "password1": new, "password2": new}
    assert "Password changed." in words(client.post("/accounts/password/change/", given, follow=True))


def test_the_mail_to_reset_a_password_says_what_it_is(client: Client, mailoutbox):
    ada = factories.ada()
    client.post("/accounts/password/reset/", {"email": ada.email})
    [mail] = mailoutbox
    assert mail.subject == "Reset your Pilothouse password"
    assert "/accounts/password/reset/key/" in mail.body
    assert "example.com!" not in mail.body
