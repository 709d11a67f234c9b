"""SECRET_KEY changes: nothing breaks while the old key is among the fallbacks, nor once everything was re-keyed."""

from __future__ import annotations

from io import StringIO

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from cryptography.fernet import Fernet, InvalidToken
from django.contrib.auth.models import User
from django.core import signing
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils.crypto import salted_hmac

from config.core import encryption
from copilot.accounts import api_keys
from copilot.files import storage
from copilot.models import ApiKey, Credential, McpServer
from diagnostics.management.commands import rotate_secrets
from linking.links import bot_keys
from linking.models import BotKey, DeliveryEndpoint
from linking.platforms import registry
from tests.support import factories
from tests.support.link_factories import bot_key

pytestmark = pytest.mark.django_db
OLD, NEW = "the-old-secret-key-" * 4, "the-new-secret-key-" * 4
HOME = "127.0.0.1"


@pytest.fixture(autouse=True)
def _old_key(settings):
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = OLD, []


def rotate(settings) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = NEW, [OLD]


def finish(settings) -> None:
    settings.SECRET_KEY_FALLBACKS = []


def run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("rotate_secrets", *arguments, stdout=out)
    except SystemExit as left:
        return int(str(left.code)), out.getvalue()
    return 0, out.getvalue()


@pytest.fixture
def ada() -> User:
    return factories.user("ada")


def fill(ada: User) -> None:
    """One of everything that is sealed."""
    Credential.objects.create(name="openai", secret=encryption.encrypt_text("sk-model"))
    McpServer.objects.create(
        owner=ada,
        name="tools",
        transport="http",
        url="https://tools.example.com",
        secrets=encryption.encrypt_text('{"A": "b"}'),
    )
    key = bot_key().row
    DeliveryEndpoint.objects.create(
        platform="discord",
        bot_account="1",
        url="https://bot.example.com",
        secret=encryption.encrypt_text("whsec"),
        old_secret=encryption.encrypt_text("older"),
        created_by_key=key,
    )
    TOTP.activate(ada, "JBSWY3DPEHPK3PXP")
    RecoveryCodes.activate(ada)


def sealed_texts() -> list[str]:
    """Every sealed text in any column of any table: none may be forgotten by the command."""
    found: list[str] = []
    with connection.cursor() as cursor:
        cursor.execute(
            "select table_name, column_name from information_schema.columns where table_schema = 'public' "
            "and data_type in ('text', 'character varying', 'jsonb')"
        )
        for table, column in cursor.fetchall():
            pattern = r"gAAAAA[A-Za-z0-9_=-]{60,}"
            cursor.execute(
                f"select (regexp_matches(\"{column}\"::text, '{pattern}', 'g'))[1] from \"{table}\""
            )
            found += [row[0] for row in cursor.fetchall()]
    return found


def opens(text: str, key: str) -> bool:
    try:
        Fernet(encryption._derive_key(key)).decrypt(text.encode())
    except InvalidToken:
        return False
    return True


def test_sealed_secrets_are_read_throughout_a_rotation(ada, settings):
    fill(ada)
    assert len(sealed_texts()) == 6
    rotate(settings)
    code, said = run()
    assert code == 0, said
    assert "model credentials: 1 re-encrypted, 0 already current, 0 cannot be read." in said
    assert "second factors: 2 re-encrypted" in said
    finish(settings)
    assert [opens(text, NEW) for text in sealed_texts()] == [True] * 6
    assert encryption.decrypt_text(Credential.objects.get().secret) == "sk-model"
    endpoint = DeliveryEndpoint.objects.get()
    assert [encryption.decrypt_text(endpoint.secret), encryption.decrypt_text(endpoint.old_secret)] == [
        "whsec",
        "older",
    ]
    totp = Authenticator.objects.get(type=Authenticator.Type.TOTP)
    assert encryption.decrypt_text(totp.data["secret"]) == "JBSWY3DPEHPK3PXP"
    assert (
        len(Authenticator.objects.get(type=Authenticator.Type.RECOVERY_CODES).wrap().get_unused_codes()) > 0
    )


def test_running_it_again_changes_nothing(ada, settings):
    fill(ada)
    rotate(settings)
    run()
    before = sorted(sealed_texts())
    code, said = run()
    assert (code, sorted(sealed_texts())) == (0, before)
    assert "model credentials: 0 re-encrypted, 1 already current" in said


def test_an_interrupted_run_is_taken_up_where_it_ended(ada, settings, monkeypatch: pytest.MonkeyPatch):
    for number in range(5):
        Credential.objects.create(name=f"model {number}", secret=encryption.encrypt_text(f"sk-{number}"))
    rotate(settings)
    monkeypatch.setattr(rotate_secrets, "BATCH", 2)
    reseal, calls = encryption.reencrypt_text, iter(range(3))

    def die_at_the_fourth(text: str) -> str | None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return reseal(text)

    with monkeypatch.context() as patch:
        patch.setattr(rotate_secrets, "reencrypt_text", die_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert sum(opens(text, NEW) for text in sealed_texts()) == 3
    assert "model credentials: 2 re-encrypted, 3 already current" in run()[1]
    finish(settings)
    assert [encryption.decrypt_text(row.secret) for row in Credential.objects.order_by("pk")] == [
        f"sk-{number}" for number in range(5)
    ]


def test_an_edit_during_the_run_is_kept(settings, monkeypatch: pytest.MonkeyPatch):
    row = Credential.objects.create(name="openai", secret=encryption.encrypt_text("before"))
    rotate(settings)
    reseal = encryption.reencrypt_text

    def edit_first(text: str) -> str | None:
        Credential.objects.filter(pk=row.pk).update(secret=encryption.encrypt_text("edited"))
        return reseal(text)

    monkeypatch.setattr(rotate_secrets, "reencrypt_text", edit_first)
    run()
    row.refresh_from_db()
    assert encryption.decrypt_text(row.secret) == "edited"


def test_a_value_that_no_key_decrypts_is_reported_and_left_alone(settings):
    settings.SECRET_KEY = "a-key-that-nobody-has-any-more-" * 2
    lost = encryption.encrypt_text("lost")
    settings.SECRET_KEY = OLD
    Credential.objects.create(name="lost", secret=lost)
    Credential.objects.create(name="known", secret=encryption.encrypt_text("known"))
    rotate(settings)
    code, said = run()
    assert code == 1
    assert "model credentials: 1 re-encrypted, 0 already current, 1 cannot be read." in said
    assert Credential.objects.get(name="lost").secret == lost


def test_check_says_whether_the_old_key_is_still_needed_and_changes_nothing(ada, settings):
    fill(ada)
    made = api_keys.create_api_key(ada)
    rotate(settings)
    before = sorted(sealed_texts())
    code, said = run("--check")
    assert (code, sorted(sealed_texts())) == (1, before)
    assert "model credentials: 1 need a former key" in said
    run()
    code, said = run("--check")
    assert code == 1
    assert "API keys: 1 not used since SECRET_KEY changed" in said
    BotKey.objects.all().delete()
    assert api_keys.verify_api_key(made.token) is not None
    assert run("--check")[0] == 0


@pytest.mark.attack
def test_an_api_key_used_during_the_rotation_outlives_it_and_one_that_was_not_does_not(ada, settings):
    used, unused = api_keys.create_api_key(ada), api_keys.create_api_key(ada)
    rotate(settings)
    assert api_keys.verify_api_key(used.token) is not None
    assert api_keys.verify_api_key(used.token[:-1] + ("A" if used.token[-1] != "A" else "B")) is None
    finish(settings)
    assert api_keys.verify_api_key(used.token) is not None
    assert api_keys.verify_api_key(unused.token) is None


def test_a_key_hashed_in_the_older_form_is_known_and_renewed(ada):
    made = api_keys.create_api_key(ada)
    secret = made.token.rpartition("_")[2] if made.token.count("_") == 3 else made.token.split("_", 3)[3]
    older = salted_hmac("copilot.api_keys", secret, secret=OLD, algorithm="sha256").hexdigest()
    ApiKey.objects.filter(pk=made.row.pk).update(secret_hash=older)
    assert api_keys.count_old_hashes() == 1
    assert api_keys.verify_api_key(made.token) is not None
    assert api_keys.count_old_hashes() == 0
    assert api_keys.verify_api_key(made.token) is not None


def test_a_bot_key_is_renewed_at_its_use_too(settings):
    made = bot_key()
    rotate(settings)
    assert bot_keys.count_old_hashes() == 1
    assert bot_keys.verify_bot_key(made.key, HOME) is not None
    finish(settings)
    assert bot_keys.count_old_hashes() == 0
    assert bot_keys.verify_bot_key(made.key, HOME) is not None


def test_a_hash_fits_its_column_and_tells_its_pepper_alone():
    made = encryption.hash_secret("salt", "secret", OLD)
    assert len(made) == 64
    assert encryption.is_current_hash("salt", made, OLD)
    assert not encryption.is_current_hash("salt", made, NEW)
    assert encryption.find_pepper("salt", "secret", made, [NEW, OLD]) == OLD
    assert encryption.find_pepper("salt", "other", made, [NEW, OLD]) is None


def test_sessions_and_signed_links_hold_during_the_rotation(ada, settings):
    client = Client()
    client.force_login(ada)
    link = signing.dumps(["share", 1], salt="a link")
    rotate(settings)
    assert client.get("/api/v1/sessions").status_code == 200
    assert signing.loads(link, salt="a link") == ["share", 1]
    finish(settings)
    assert client.get("/api/v1/sessions").status_code == 200  # it was signed again when it was used
    with pytest.raises(signing.BadSignature):
        signing.loads(link, salt="a link")


def test_old_webhook_urls_work_until_the_new_one_is_registered(settings):
    adapter = registry.build_adapter("scripted")
    assert adapter is not None
    old = registry.get_webhook_slug(adapter)
    rotate(settings)
    new = registry.get_webhook_slug(adapter)
    assert new != old
    assert registry.find_adapter_by_slug("scripted", old) is not None
    assert registry.find_adapter_by_slug("scripted", new) is not None
    finish(settings)
    assert registry.find_adapter_by_slug("scripted", old) is None


def test_an_erasure_finds_objects_stored_under_the_old_key(settings):
    old = storage.get_owner_prefix(7)
    rotate(settings)
    assert storage.list_owner_prefixes(7) == [storage.get_owner_prefix(7), old]


def test_fallbacks_come_from_the_environment():
    from tests.support.programs import run_manage_command as manage

    shown = "from django.conf import settings; print(settings.SECRET_KEY_FALLBACKS)"
    done = manage(
        "shell",
        "--no-imports",
        "-c",
        shown,
        PILOTHOUSE_ENVIRONMENT="test",
        SECRET_KEY_FALLBACKS="first-former-key, second-former-key",
    )
    assert done.stdout.strip() == "['first-former-key', 'second-former-key']"
