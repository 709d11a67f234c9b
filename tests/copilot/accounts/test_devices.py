"""Sessions and devices: listed, ended, and a mail about a new one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from allauth.account.models import EmailAddress
from allauth.usersessions.models import UserSession
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from kombu.exceptions import OperationalError

from copilot import tasks
from copilot.accounts import devices, purge
from copilot.models import KnownDevice
from diagnostics.models import AuditEvent
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)
WINDOWS = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1 (KHTML, like Gecko) Version/17.5 Safari/604.1"


@pytest.fixture(autouse=True)
def _mails_are_sent_here(monkeypatch):
    """As a worker would, at once."""
    monkeypatch.setattr(
        tasks.send_new_device_email, "apply_async", lambda args, retry: tasks.send_new_device_email(*args)
    )


def sign_in(client: Client | None = None, name: str = "ada") -> Client:
    client = client or Client(HTTP_USER_AGENT=WINDOWS)
    done = client.post("/accounts/login/", {"login": f"{name}@example.com", "password": factories.PASSWORD})
    assert done.status_code == 302, done.content
    return client


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (WINDOWS, "Chrome on Windows"),
        (PHONE, "Safari on iPhone"),
        ("Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0", "Firefox on Linux"),
        (WINDOWS + " Edg/126.0", "Edge on Windows"),
        ("curl/8", "Unknown device"),
        ("", "Unknown device"),
        ("x" * 100_000, "Unknown device"),
    ],
)
def test_a_device_has_the_name_that_people_give_it(agent, name):
    assert devices.describe_device(agent) == name


def test_a_sign_in_from_a_new_device_is_mailed_once(mailoutbox):
    factories.ada()
    User.objects.update(date_joined=timezone.now() - 2 * devices.NEW_ACCOUNT_AGE)
    client = sign_in()
    [mail] = mailoutbox
    assert (mail.subject, mail.to) == ("New sign-in to your Pilothouse account", ["ada@example.com"])
    assert "Chrome on Windows" in mail.body
    assert "127.0.0.1" in mail.body
    assert "/accounts/password/change/" in mail.body
    client.post("/accounts/logout/")
    sign_in(client)
    assert len(mailoutbox) == 1
    sign_in(Client(HTTP_USER_AGENT=PHONE))
    assert "Safari on iPhone" in mailoutbox[1].body
    assert KnownDevice.objects.count() == 2


def test_who_just_signed_up_is_not_told_of_it(client, mailoutbox):
    client.post("/accounts/signup/", {"email": "new@example.com", "password1": "a-long-enough-phrase"})
    assert KnownDevice.objects.count() == 1
    assert [mail for mail in mailoutbox if "New sign-in" in mail.subject] == []


def test_people_who_share_a_browser_keep_their_own_devices(mailoutbox):
    factories.ada()
    factories.bob()
    User.objects.update(date_joined=timezone.now() - 2 * devices.NEW_ACCOUNT_AGE)
    client = Client(HTTP_USER_AGENT=WINDOWS)
    for _ in range(2):
        for name in ("ada", "bob"):
            sign_in(client, name)
            client.post("/accounts/logout/")
    assert [mail.to for mail in mailoutbox] == [["ada@example.com"], ["bob@example.com"]]


@pytest.mark.attack
def test_a_cookie_of_another_account_or_a_made_up_one_is_no_known_device(mailoutbox):
    ada, bob = factories.ada(), factories.bob()
    User.objects.update(date_joined=timezone.now() - 2 * devices.NEW_ACCOUNT_AGE)
    token = sign_in().cookies[devices.get_cookie_name(ada.pk)].value
    for value in (token, "x" * 43, "'; drop", "é" * 43, "x" * 4000):
        client = Client()
        client.cookies[devices.get_cookie_name(bob.pk)] = value
        sign_in(client, "bob")
    assert len([mail for mail in mailoutbox if mail.to == ["bob@example.com"]]) == 5
    assert KnownDevice.objects.filter(user=bob, token_hash=devices._hash_token(token)).count() == 0


def test_the_cookie_is_hidden_from_scripts_and_only_its_hash_is_kept():
    ada = factories.ada()
    cookie = sign_in().cookies[devices.get_cookie_name(ada.pk)]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    assert KnownDevice.objects.get().token_hash != cookie.value


@pytest.mark.attack
def test_the_list_of_devices_is_bounded(monkeypatch):
    monkeypatch.setattr(devices, "MAX_DEVICES_PER_USER", 3)
    factories.ada()
    for _ in range(5):
        sign_in(Client())
    assert KnownDevice.objects.count() == 3


def test_sessions_are_listed_and_ended_one_by_one_and_all():
    factories.ada()
    here, phone, old = sign_in(), sign_in(Client(HTTP_USER_AGENT=PHONE)), sign_in(Client())
    page = here.get("/accounts/sessions/").content.decode()
    assert page.count("Sign out</button>") == 2
    assert "Safari on iPhone" in page
    on_phone = UserSession.objects.get(user_agent=PHONE)
    here.post(f"/settings/sessions/{on_phone.pk}/end/")
    assert phone.get("/chat/").status_code == 302
    assert old.get("/chat/").status_code == 200
    here.post("/settings/sessions/end/")
    assert old.get("/chat/").status_code == 302
    assert here.get("/chat/").status_code == 200
    assert AuditEvent.objects.filter(action="session.ended").count() == 2


@pytest.mark.attack
def test_nobody_ends_the_sessions_or_forgets_the_devices_of_others():
    factories.ada()
    factories.bob()
    mine, other = sign_in(), sign_in(name="bob")
    row, device = UserSession.objects.get(user=factories.ada()), KnownDevice.objects.get(user=factories.ada())
    other.post(f"/settings/sessions/{row.pk}/end/")
    other.post(f"/settings/devices/{device.pk}/forget/")
    assert mine.get("/chat/").status_code == 200
    assert KnownDevice.objects.filter(pk=device.pk).exists()
    assert "Safari" not in other.get("/accounts/sessions/").content.decode()


def test_a_session_from_before_sessions_were_listed_is_listed_too(client):
    client.force_login(factories.ada(), backend="django.contrib.auth.backends.ModelBackend")
    assert "This session" in client.get("/accounts/sessions/").content.decode()


def test_when_a_session_was_seen_is_written_now_and_then():
    factories.ada()
    client = sign_in()
    client.get("/settings/")
    UserSession.objects.update(last_seen_at=timezone.now() - timedelta(days=1))
    client.get("/settings/")
    assert (timezone.now() - UserSession.objects.get().last_seen_at).days == 1
    session = client.session
    session[devices._SEEN_KEY] = 1
    session.save()
    client.get("/settings/")
    assert (timezone.now() - UserSession.objects.get().last_seen_at).days == 0


def test_a_forgotten_device_is_new_again(mailoutbox):
    factories.ada()
    User.objects.update(date_joined=timezone.now() - 2 * devices.NEW_ACCOUNT_AGE)
    client = sign_in()
    client.post(f"/settings/devices/{KnownDevice.objects.get().pk}/forget/")
    client.post("/accounts/logout/")
    sign_in(client)
    assert len(mailoutbox) == 2


def test_a_mail_that_no_worker_can_take_is_sent_at_once(mailoutbox, monkeypatch):
    def away(**kwargs: object) -> None:
        raise OperationalError

    monkeypatch.setattr(tasks.send_new_device_email, "apply_async", away)
    factories.ada()
    User.objects.update(date_joined=timezone.now() - 2 * devices.NEW_ACCOUNT_AGE)
    sign_in()
    assert len(mailoutbox) == 1


def test_an_erased_account_leaves_no_devices():
    ada = factories.ada()
    EmailAddress.objects.create(user=ada, email=ada.email, verified=True, primary=True)
    sign_in()
    purge.remove_personal_data(ada.pk)
    purge.remove_logins(ada.pk)
    assert purge.count_leftovers(ada.pk) == {}
