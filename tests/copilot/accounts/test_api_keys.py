"""Keys for programs (A20.6, L10): only a hash is kept, every refusal looks the same."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.forms.models import model_to_dict
from django.utils import timezone

from config.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from copilot.accounts import api_keys
from copilot.models import ApiKey
from tests.support import factories

pytestmark = pytest.mark.django_db


def test_a_key_is_verified_and_names_its_user():
    made = api_keys.create_api_key(factories.ada(), name="laptop")
    found = api_keys.verify_api_key(made.token)
    assert found is not None
    assert (found.user, found.scopes) == (factories.ada(), ["read", "chat"])


def test_a_key_has_the_shape_of_a20_6():
    made = api_keys.create_api_key(factories.ada())
    head, kind, prefix, secret = made.token.split("_", 3)
    assert (head, kind, len(prefix), len(secret)) == ("ph", "user", 10, 43)
    assert made.row.prefix == prefix


def test_what_is_stored_is_no_usable_key():
    """A-L10.1"""
    made = api_keys.create_api_key(factories.ada())
    secret = made.token.split("_", 3)[3]
    stored = repr(model_to_dict(made.row)) + made.row.secret_hash
    assert secret not in stored
    assert api_keys.verify_api_key(f"ph_user_{made.row.prefix}_{made.row.secret_hash[:43]}") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token + "x",
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token.replace("ph_user_", "ph_bot_"),
        lambda token: token.replace("_", "\u005f", 1) + "\n",
        lambda token: "ph_user_" + "é" * 10 + "_" + "a" * 43,
        lambda token: "ph_user_aaaaaaaaaa_" + "a" * 43,
    ],
)
def test_a_wrong_key_opens_nothing(change):
    assert api_keys.verify_api_key(change(api_keys.create_api_key(factories.ada()).token)) is None


def test_revoked_and_expired_keys_open_nothing():
    revoked, expired = api_keys.create_api_key(factories.ada()), api_keys.create_api_key(factories.ada())
    api_keys.revoke_api_key(factories.ada().pk, revoked.row.id)
    ApiKey.objects.filter(pk=expired.row.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert api_keys.verify_api_key(revoked.token) is None
    assert api_keys.verify_api_key(expired.token) is None


def test_another_user_cannot_revoke_a_key_and_sees_it_as_missing():
    made = api_keys.create_api_key(factories.ada())
    with pytest.raises(NotFound):
        api_keys.revoke_api_key(factories.bob().pk, made.row.id)
    assert api_keys.verify_api_key(made.token) is not None


def test_the_last_use_is_written_at_most_once_a_minute(django_assert_num_queries):
    made = api_keys.create_api_key(factories.ada())
    with django_assert_num_queries(2):
        api_keys.verify_api_key(made.token)
    with django_assert_num_queries(1):
        api_keys.verify_api_key(made.token)
    used = ApiKey.objects.get(pk=made.row.pk).last_used_at
    assert used is not None
    ApiKey.objects.filter(pk=made.row.pk).update(last_used_at=used - timedelta(minutes=2))
    api_keys.verify_api_key(made.token)
    again = ApiKey.objects.get(pk=made.row.pk).last_used_at
    assert again is not None
    assert again >= used


def test_keys_outlive_the_rotation_of_the_secret_key(settings):
    made = api_keys.create_api_key(factories.ada())
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another-secret-key-of-some-length"
    assert api_keys.verify_api_key(made.token) is not None
    settings.SECRET_KEY_FALLBACKS = []
    assert api_keys.verify_api_key(made.token) is not None


@pytest.mark.parametrize("scopes", [(), ("read", "root"), ("READ",)])
def test_only_known_scopes_are_given(scopes):
    with pytest.raises(InvalidRequest):
        api_keys.create_api_key(factories.ada(), scopes=scopes)


def test_only_staff_get_the_staff_scope():
    with pytest.raises(Forbidden):
        api_keys.create_api_key(factories.ada(), scopes=("read", "staff"))
    assert api_keys.create_api_key(factories.grace(), scopes=("staff", "read")).row.scopes == [
        "read",
        "staff",
    ]


def test_a_person_keeps_a_readable_number_of_keys():
    for _ in range(api_keys.MAX_KEYS_PER_USER):
        api_keys.create_api_key(factories.ada())
    with pytest.raises(Conflict):
        api_keys.create_api_key(factories.ada())


def test_the_command_prints_a_key_that_works():
    factories.ada()
    out = StringIO()
    call_command("create_api_key", "ada", name="ci", scopes=["read"], days=1, stdout=out)
    found = api_keys.verify_api_key(out.getvalue().strip())
    assert found is not None
    assert (found.name, found.scopes) == ("ci", ["read"])
    assert found.expires_at is not None


def test_the_command_gives_read_and_chat_unless_told_otherwise():
    factories.ada()
    out = StringIO()
    call_command("create_api_key", "ada@example.com", stdout=out)
    found = api_keys.verify_api_key(out.getvalue().strip())
    assert found is not None
    assert found.scopes == ["read", "chat"]


def test_the_command_refuses_unknown_people_and_staff_scopes():
    factories.ada()
    with pytest.raises(CommandError, match="no user"):
        call_command("create_api_key", "nobody")
    with pytest.raises(CommandError, match="staff"):
        call_command("create_api_key", "ada", scopes=["staff"])
