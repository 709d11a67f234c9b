"""A stolen session is not enough: keys, e-mail, exports and deletion ask for a recent login."""

from __future__ import annotations

import re
import time

import pytest
from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.test import Client

from copilot.accounts import api_keys
from copilot.models import AccountDeletion, ApiKey, ExportJob
from tests.support import factories

pytestmark = pytest.mark.django_db
CONFIRM = "/accounts/reauthenticate/"


@pytest.fixture
def old() -> Client:
    """Ada signed in yesterday."""
    return factories.sign_in(Client(), factories.ada(), at=time.time() - 86_400)


@pytest.fixture
def fresh() -> Client:
    return factories.sign_in(Client(), factories.ada())


def confirm(client: Client, sent):
    assert sent.status_code == 302
    assert sent.url.startswith(CONFIRM)
    return client.post(sent.url, {"password": factories.PASSWORD})


@pytest.mark.attack
def test_an_old_session_makes_no_key_until_it_is_confirmed(old):
    asked = old.post("/settings/keys/", {"name": "laptop", "scopes": ["read"]})
    assert not ApiKey.objects.exists()
    done = confirm(old, asked)
    assert re.search(r"ph_user_\w{10}_[\w-]{43}", done.content.decode())
    assert ApiKey.objects.get().name == "laptop"


@pytest.mark.attack
def test_a_wrong_password_confirms_nothing(old):
    asked = old.post("/settings/keys/", {"name": "laptop", "scopes": ["read"]})
    old.post(asked.url, {"password": "wrong"})
    old.post("/settings/keys/", {"name": "laptop", "scopes": ["read"]})
    assert not ApiKey.objects.exists()


def test_looking_at_keys_and_revoking_them_needs_no_confirmation(old):
    made = api_keys.create_api_key(factories.ada())
    assert old.get("/settings/keys/").status_code == 200
    old.post(f"/settings/keys/{made.row.pk}/revoke/")
    assert api_keys.list_api_keys(factories.ada().pk) == []


@pytest.mark.attack
def test_an_old_session_exports_nothing_until_it_is_confirmed(old):
    asked = old.post("/settings/account/export/")
    assert not ExportJob.objects.exists()
    assert confirm(old, asked).status_code == 302
    assert ExportJob.objects.count() == 1


@pytest.mark.attack
def test_an_archive_of_everything_is_not_handed_to_an_old_session(old, fresh):
    job = ExportJob.objects.create(owner=factories.ada(), format="json", options={})
    path = f"/api/v1/exports/{job.pk}/download"
    assert old.get(path, headers={"accept": "text/html"}).url == f"{CONFIRM}?next={path}"
    refused = old.get(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "recent_login_required")
    assert fresh.get(path).status_code == 404  # it is not made yet


@pytest.mark.attack
@pytest.mark.parametrize(("path", "body"), [("/api/v1/api-keys", {"name": "x"}), ("/api/v1/exports", {})])
def test_calls_by_an_old_cookie_are_refused_with_a_code(old, fresh, path, body):
    refused = old.post(path, body, content_type="application/json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "recent_login_required")
    assert fresh.post(path, body, content_type="application/json").status_code in (201, 202)


@pytest.mark.attack
def test_a_key_makes_no_keys_and_exports_by_its_scope_alone():
    reader, manager = (
        api_keys.create_api_key(factories.ada(), scopes=scopes) for scopes in (("read",), ("read", "manage"))
    )

    def call(path: str, key: api_keys.NewApiKey):
        return Client().post(
            path, {}, content_type="application/json", headers={"authorization": f"Bearer {key.token}"}
        )

    assert call("/api/v1/api-keys", manager).json()["error"]["code"] == "session_required"
    assert call("/api/v1/exports", reader).json()["error"]["code"] == "insufficient_scope"
    assert call("/api/v1/exports", manager).status_code == 202


@pytest.mark.attack
def test_an_old_session_changes_no_address_until_it_is_confirmed(old):
    asked = old.post("/accounts/email/", {"action_add": "", "email": "eve@evil.com"})
    assert not EmailAddress.objects.filter(email="eve@evil.com").exists()
    confirm(old, asked)
    assert EmailAddress.objects.filter(email="eve@evil.com").exists()


@pytest.mark.attack
def test_an_account_without_a_password_is_deleted_by_a_recent_login_alone():
    """The account's last login says nothing about this session"""
    ada = factories.ada()
    ada.set_unusable_password()
    ada.save()
    old = factories.sign_in(Client(), ada, at=time.time() - 86_400)
    old.post("/settings/account/delete/", {"phrase": ada.email})
    assert not AccountDeletion.objects.exists()
    factories.sign_in(Client(), ada).post("/settings/account/delete/", {"phrase": ada.email})
    assert AccountDeletion.objects.exists()


def test_who_can_only_sign_in_elsewhere_signs_in_again():
    ada = factories.ada()
    ada.set_unusable_password()
    ada.save()
    old = factories.sign_in(Client(), ada, at=time.time() - 86_400)
    assert old.post("/settings/account/export/").url == "/accounts/login/?next=/settings/account/export/"
    assert "_auth_user_id" not in old.session
    assert not ExportJob.objects.exists()


# --- keys at a change of the password ----------------------------------------------------------------


def change(client: Client, **more: str):
    new = {
        "oldpassword": factories.PASSWORD,
        "password1": "another-long-phrase",
        "password2": "another-long-phrase",
    }
    return client.post("/accounts/password/change/", {**new, **more})


def test_a_change_of_the_password_lists_the_keys_and_revokes_them_with_one_click(fresh):
    made = [api_keys.create_api_key(factories.ada(), name=name) for name in ("laptop", "server")]
    page = fresh.get("/accounts/password/change/").content.decode()
    assert "Also revoke all my 2 API keys" in page
    assert all(one.row.prefix in page for one in made)
    assert change(fresh, revoke_api_keys="on").status_code == 302
    assert [api_keys.verify_api_key(one.token) for one in made] == [None, None]
    assert fresh.get("/settings/").status_code == 200


def test_keys_stay_unless_they_are_revoked(fresh):
    made = api_keys.create_api_key(factories.ada())
    change(fresh)
    assert api_keys.verify_api_key(made.token) is not None


def test_nothing_is_revoked_when_the_password_was_not_changed(fresh):
    made = api_keys.create_api_key(factories.ada())
    assert change(fresh, oldpassword="wrong", revoke_api_keys="on").status_code == 200
    assert api_keys.verify_api_key(made.token) is not None


def test_a_page_without_keys_says_nothing_about_them(fresh):
    assert "API keys</h2>" not in fresh.get("/accounts/password/change/").content.decode()


@pytest.mark.attack
def test_a_reset_by_mail_revokes_keys_too(client, mailoutbox):
    made = api_keys.create_api_key(factories.ada(), name="left by a thief")
    client.post("/accounts/password/reset/", {"email": "ada@example.com"})
    [path] = re.findall(r"https?://[^/]+(/accounts/password/reset/key/\S+)", mailoutbox[0].body)
    form = client.get(path, follow=True)
    assert "left by a thief" in form.content.decode()
    new = {"password1": "another-long-phrase", "password2": "another-long-phrase", "revoke_api_keys": "on"}
    client.post(form.redirect_chain[-1][0], new)
    assert api_keys.verify_api_key(made.token) is None
    assert User.objects.get().check_password("another-long-phrase")


def test_all_keys_are_revoked_from_their_page(old):
    made = [api_keys.create_api_key(factories.ada()) for _ in range(3)]
    others = api_keys.create_api_key(factories.bob())
    assert "Revoke all" in old.get("/settings/keys/").content.decode()
    old.post("/settings/keys/revoke-all/")
    assert [api_keys.verify_api_key(one.token) for one in made] == [None] * 3
    assert api_keys.verify_api_key(others.token) is not None
