"""Second factors, and accounts elsewhere that vouch for a person (W1.1)."""

from __future__ import annotations

import json
import time

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from django.contrib.auth.models import User
from django.core.exceptions import ImproperlyConfigured

from config import social_auth, variables
from tests.support import factories
from tests.support.identity_provider import finish_social_login

pytestmark = pytest.mark.django_db


# --- second factors ----------------------------------------------------------------------------------


def code_for(secret: str) -> str:
    return totp.format_hotp_value(totp.hotp_value(secret, int(time.time()) // 30))


def log_in(client, **more):
    return client.post(
        "/accounts/login/", {"login": "ada@example.com", "password": factories.PASSWORD, **more}
    )


@pytest.fixture
def secret(client) -> str:
    """Ada has an authenticator app; she is signed out."""
    factories.ada()
    log_in(client)
    asked = client.get("/accounts/2fa/totp/activate/")  # an open page that somebody finds is not enough
    form = client.post(asked.url, {"password": factories.PASSWORD}, follow=True)
    known = form.context["form"].secret
    assert client.post("/accounts/2fa/totp/activate/", {"code": code_for(known)}).status_code == 302
    client.logout()
    return known


def test_a_password_alone_no_longer_opens_an_account_with_a_second_factor(client, secret):
    """W1.1"""
    assert log_in(client).url == "/accounts/2fa/authenticate/"
    assert client.get("/chat/").status_code == 302
    wrong = client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    assert "_auth_user_id" not in client.session
    assert wrong.status_code == 200
    Authenticator.objects.filter(type="totp").update(last_used_at=None)
    assert client.post("/accounts/2fa/authenticate/", {"code": code_for(secret)}).url == "/chat/"
    assert client.get("/chat/").status_code == 200


def test_staff_sign_in_on_the_same_page(client, secret):
    """The admin asks for the second factor too"""
    User.objects.update(is_staff=True, is_superuser=True)
    answer = client.post("/admin/login/", {"username": "ada", "password": factories.PASSWORD})
    assert answer.url.startswith("/accounts/login/")
    log_in(client)
    assert client.get("/admin/").status_code == 302


def test_secrets_of_second_factors_are_sealed(secret):
    """No usable secret in a copy of the database"""
    kept = json.dumps(list(Authenticator.objects.values_list("data", flat=True)))
    assert secret not in kept
    assert {"secret", "seed"} <= {name for one in Authenticator.objects.all() for name in one.data}


# --- single sign-on ----------------------------------------------------------------------------------


def test_a_person_signs_in_by_an_account_elsewhere(client, sso):
    """W1.1: the first time an account is made, the second time it is the same one"""
    assert "Single sign-on" in client.get("/accounts/login/").content.decode()
    for _ in range(2):
        leaving, answer = finish_social_login(client)
        assert leaving.url.startswith(f"{sso}/authorize?")
        assert answer.url == "/chat/"
        assert client.get("/chat/").status_code == 200
        client.logout()
    assert User.objects.get().email == "grace@example.com"


def test_an_account_elsewhere_does_not_take_over_one_with_the_same_address(client, sso):
    """The owner of the other site could claim any address"""
    User.objects.create_user("grace", "grace@example.com", factories.PASSWORD)
    finish_social_login(client)
    assert "_auth_user_id" not in client.session


def test_nothing_is_offered_that_is_not_configured(client):
    assert "vouchers" not in client.get("/accounts/login/").content.decode()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"GOOGLE_CLIENT_ID": "x"}, "GOOGLE_CLIENT_SECRET"),
        ({"GITHUB_CLIENT_SECRET": "x"}, "GITHUB_CLIENT_ID"),
        ({"OIDC_SERVER_URL": "https://id.example"}, "OIDC_CLIENT_ID"),
        ({"OIDC_CLIENT_ID": "x", "OIDC_CLIENT_SECRET": "y", "OIDC_SERVER_URL": ""}, "OIDC_SERVER_URL"),
    ],
)
def test_half_a_configuration_is_named(monkeypatch, given, named):
    for name, value in given.items():
        monkeypatch.setattr(variables, name, value)
    with pytest.raises(ImproperlyConfigured, match=named):
        social_auth.build_social_providers()


def test_forms_may_redirect_to_identity_providers(monkeypatch):
    """A browser refuses the redirect of a form to an origin that the policy does not name"""
    for name in ("GOOGLE_CLIENT_ID", "GOOGLE_CLIENT_SECRET", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET"):
        monkeypatch.setattr(variables, name, "x")
    monkeypatch.setattr(variables, "OIDC_SERVER_URL", "https://id.example/realms/crew")
    assert social_auth.build_social_providers().origins == [
        "https://accounts.google.com",
        "https://id.example",
    ]
