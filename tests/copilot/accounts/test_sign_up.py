"""Who may create an account, by which way, and what it becomes."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from io import StringIO

import pytest
from allauth.account.models import EmailAddress
from axes.models import AccessAttempt, AccessFailureLog, AccessLog
from django import forms
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from config.core.errors import Conflict
from copilot import checks
from copilot.accounts import invitations, purge, sign_up
from copilot.models import Invitation, SignUpRequest
from copilot.tasks import purge_accounts
from tests.support import factories
from tests.support.identity_provider import finish_social_login
from tests.support.paths import ROOT
from tests.support.programs import run_manage_command

pytestmark = pytest.mark.django_db
PHRASE = "a-long-enough-phrase"


def submit(client: Client, email: str = "new@example.com", **more: str):
    return client.post("/accounts/signup/", {"email": email, "password1": PHRASE, **more})


def path_of(url: str) -> str:
    return re.sub(r"^https?://[^/]+", "", url)


class YesField(forms.CharField):
    """A captcha that is solved by typing yes."""

    def clean(self, value: object) -> str:
        if value != "yes":
            raise forms.ValidationError("Prove that you're human.")
        return "yes"


# --- the policies ------------------------------------------------------------------------------------


def test_everybody_may_sign_up_where_it_is_open(client):
    assert submit(client).url == "/chat/"
    assert User.objects.get().is_active


@pytest.mark.attack
@pytest.mark.parametrize("policy", ["closed", "invite"])
def test_nobody_signs_up_uninvited_where_it_is_closed(client, settings, policy):
    settings.SIGNUP = policy
    page = client.get("/accounts/signup/")
    assert "password1" not in page.content.decode()
    submit(client)
    assert not User.objects.exists()
    assert "Create" not in client.get("/accounts/login/").content.decode()
    assert "Create an account" not in client.get("/").content.decode()


@pytest.mark.attack
@pytest.mark.parametrize("policy", ["closed", "invite"])
def test_an_account_elsewhere_is_no_way_around_the_policy(client, settings, sso, policy):
    settings.SIGNUP = policy
    finish_social_login(client)
    assert not User.objects.exists()


@pytest.mark.attack
@pytest.mark.parametrize("email", ["eve@evil.com", "eve@sub.example.org", "eve@example.org.evil.com"])
def test_only_addresses_of_the_named_domains_sign_up(client, settings, email):
    settings.SIGNUP, settings.SIGNUP_DOMAINS = "domains", ["example.org"]
    refused = submit(client, email)
    assert "@example.org" in refused.content.decode()
    assert not User.objects.exists()
    assert submit(client, "Ann@Example.org").status_code == 302
    assert User.objects.get().email == "ann@example.org"


@pytest.mark.attack
def test_an_account_elsewhere_needs_a_verified_address_of_the_domain(client, settings, sso):
    settings.SIGNUP, settings.SIGNUP_DOMAINS = "domains", ["example.org"]
    finish_social_login(client)
    assert not User.objects.exists()
    settings.SIGNUP_DOMAINS = ["example.com"]
    finish_social_login(client)
    assert User.objects.get().email == "grace@example.com"


def test_an_account_waits_until_staff_approve_it(client, settings, mailoutbox):
    settings.SIGNUP, settings.ALERT_EMAILS = "approval", ["crew@example.com"]
    assert submit(client).url == "/accounts/inactive/"
    assert "Waiting for approval" in client.get("/accounts/inactive/").content.decode()
    made = User.objects.get()
    assert not made.is_active
    assert "_auth_user_id" not in client.session
    client.post("/accounts/login/", {"login": "new@example.com", "password": PHRASE})
    assert "_auth_user_id" not in client.session
    boss = Client()
    boss.force_login(factories.grace(), backend="django.contrib.auth.backends.ModelBackend")
    act = {"action": "approve", "_selected_action": [str(SignUpRequest.objects.get().pk)]}
    boss.post("/admin/copilot/signuprequest/", act)
    assert User.objects.get(email="new@example.com").is_active
    assert mailoutbox[-1].subject == "Your Pilothouse account is ready"
    client.post("/accounts/login/", {"login": "new@example.com", "password": PHRASE})
    assert client.session["_auth_user_id"] == str(made.pk)


def test_a_rejected_account_is_gone_and_its_address_free(settings, client):
    settings.SIGNUP = "approval"
    submit(client)
    waiting = SignUpRequest.objects.get()
    assert sign_up.reject_sign_up(waiting, rejected_by=factories.grace())
    assert not User.objects.filter(email="new@example.com").exists()
    assert not sign_up.approve_sign_up(waiting, approved_by=factories.grace())


@pytest.mark.attack
def test_a_known_address_gets_the_same_answer_where_accounts_wait(settings, client):
    settings.SIGNUP, settings.ACCOUNT_EMAIL_VERIFICATION = "approval", "mandatory"
    ada = factories.ada()
    EmailAddress.objects.create(user=ada, email=ada.email, verified=True, primary=True)
    new, known = submit(client), submit(Client(), ada.email)
    assert (new.status_code, new.url) == (known.status_code, known.url)


@pytest.mark.attack
def test_staff_are_not_flooded_by_a_flood_of_sign_ups(
    settings, client, mailoutbox, django_capture_on_commit_callbacks
):
    settings.SIGNUP, settings.ALERT_EMAILS = "approval", ["crew@example.com"]
    with django_capture_on_commit_callbacks(execute=True):
        for number in range(8):
            submit(Client(), f"new{number}@example.com")
    assert len(mailoutbox) == sign_up.MAX_STAFF_EMAILS_PER_HOUR


def test_requests_that_nobody_decided_are_forgotten(settings, client):
    settings.SIGNUP = "approval"
    submit(client)
    submit(Client(), "other@example.com")
    old = SignUpRequest.objects.filter(user__email="new@example.com")
    old.update(created_at=timezone.now() - timedelta(days=31))
    sign_up.purge_undecided_sign_ups()
    assert [user.email for user in User.objects.all()] == ["other@example.com"]


def test_records_of_old_sign_ins_are_forgotten():
    for model, fields in (
        (AccessLog, {}),
        (AccessAttempt, {"failures_since_start": 1}),
        (AccessFailureLog, {}),
    ):
        for days in (29, 31):
            row = model.objects.create(username="ada", user_agent=str(days), ip_address="9.9.9.9", **fields)
            model.objects.filter(pk=row.pk).update(attempt_time=timezone.now() - timedelta(days=days))
    purge_accounts()
    for model in (AccessLog, AccessAttempt, AccessFailureLog):
        assert [row.user_agent for row in model.objects.all()] == ["29"]


def test_a_verified_address_is_asked_for_where_mail_works(settings, client, mailoutbox):
    settings.ACCOUNT_EMAIL_VERIFICATION = "mandatory"
    assert submit(client).url == "/accounts/confirm-email/"
    assert mailoutbox[0].subject == "Confirm your email for Pilothouse"
    assert client.get("/chat/").status_code == 302
    [path] = re.findall(r"https?://[^/]+(/accounts/confirm-email/\S+)", mailoutbox[0].body)
    client.post(path)
    client.post("/accounts/login/", {"login": "new@example.com", "password": PHRASE})
    assert client.get("/chat/").status_code == 200


# --- invitations -------------------------------------------------------------------------------------


@pytest.fixture
def invited(settings) -> invitations.NewInvitation:
    settings.SIGNUP = "invite"
    return invitations.create_invitation(email="Ann@example.com", invited_by=factories.grace())


def test_an_invitation_makes_one_account_with_a_verified_address(client, invited):
    assert client.get(path_of(invited.url)).url == "/accounts/signup/"
    assert "ann@example.com" in client.get("/accounts/signup/").content.decode()
    assert submit(client, "ann@example.com").status_code == 302
    row = Invitation.objects.get()
    assert row.used_by == User.objects.get(email="ann@example.com")
    assert EmailAddress.objects.get(user=row.used_by).verified
    assert Client().get(path_of(invited.url)).status_code == 404


@pytest.mark.attack
def test_an_invitation_is_good_for_its_address_alone(client, invited):
    client.get(path_of(invited.url))
    assert "ann@example.com" in submit(client, "eve@example.com").content.decode()
    assert not User.objects.filter(email="eve@example.com").exists()
    assert Invitation.objects.get().used_at is None


@pytest.mark.attack
@pytest.mark.parametrize("end", ["expired", "revoked"])
def test_an_invitation_that_ended_after_the_link_was_opened_makes_nobody(client, invited, end):
    client.get(path_of(invited.url))
    if end == "revoked":
        assert invitations.revoke_invitation(invited.row)
    else:
        Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    submit(client, "ann@example.com")
    assert not User.objects.filter(email="ann@example.com").exists()
    assert client.get(path_of(invited.url)).status_code == 404


def test_what_is_stored_of_an_invitation_opens_nothing(client, invited):
    assert invited.url.split("/")[-2] not in invited.row.token_hash
    assert client.get(f"/invitation/{invited.row.token_hash}/").status_code == 404
    assert client.get(f"/invitation/{'x' * 5000}/").status_code == 404


@pytest.mark.attack
@pytest.mark.django_db(transaction=True)
def test_two_who_use_one_invitation_at_once_make_one_account(settings):
    settings.SIGNUP = "invite"
    made = invitations.create_invitation()
    clients = [Client(), Client(), Client()]
    for one in clients:
        one.get(path_of(made.url))
    together = threading.Barrier(len(clients))

    def take(number: int) -> None:
        together.wait()
        submit(clients[number], f"new{number}@example.com")
        connection.close()

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert User.objects.count() == 1
    assert EmailAddress.objects.count() == 1


def test_staff_invite_on_a_page_and_the_link_is_shown_once(settings, client, mailoutbox):
    settings.SIGNUP = "invite"
    client.force_login(factories.grace(), backend="django.contrib.auth.backends.ModelBackend")
    page = client.post("/admin/copilot/invitation/add/", {"email": "ann@example.com", "days": 3}, follow=True)
    [url] = re.findall(r"https?://[^/]+/invitation/[\w-]+/", page.content.decode())
    assert mailoutbox[0].to == ["ann@example.com"]
    assert url in mailoutbox[0].body
    assert Client().get(path_of(url)).url == "/accounts/signup/"
    assert "/invitation/" not in client.get("/admin/copilot/invitation/").content.decode().replace(
        "/admin/copilot/invitation/", ""
    )


def test_the_command_mails_an_invitation_and_prints_its_link(settings, mailoutbox):
    settings.SIGNUP = "invite"
    out = StringIO()
    call_command("invite", "ann@example.com", days=2, stdout=out, stderr=StringIO())
    assert out.getvalue().strip() in mailoutbox[0].body
    for wrong in ({"email": "no address"}, {"days": 0}):
        with pytest.raises(CommandError):
            call_command("invite", **wrong)
    settings.SIGNUP = "closed"
    with pytest.raises(CommandError, match="SIGNUP=invite"):
        call_command("invite", "ann@example.com")


def test_an_erased_account_leaves_no_trace_of_how_it_came_in(client, invited):
    client.get(path_of(invited.url))
    submit(client, "ann@example.com")
    ann = User.objects.get(email="ann@example.com")
    others = invitations.create_invitation(invited_by=ann)
    SignUpRequest.objects.create(user=factories.bob(), approved_by=ann)
    purge.remove_personal_data(ann.pk)
    purge.remove_logins(ann.pk)
    assert purge.count_leftovers(ann.pk) == {}
    assert Invitation.objects.get() == others.row


def test_old_invitations_are_forgotten(invited):
    Invitation.objects.update(expires_at=timezone.now() - timedelta(days=31))
    assert invitations.purge_invitations() == 1


# --- the first administrator -------------------------------------------------------------------------


def test_the_setup_link_makes_the_first_account_administrator(client, settings):
    settings.SIGNUP, settings.ACCOUNT_EMAIL_VERIFICATION = "closed", "mandatory"
    out = StringIO()
    call_command("setup_link", stdout=out)
    client.get(path_of(out.getvalue().split()[-1]))
    assert "administrator" in client.get("/accounts/signup/").content.decode()
    assert submit(client).status_code == 302
    first = User.objects.get()
    assert first.is_superuser
    assert client.session["_auth_user_id"] == str(first.pk)
    with pytest.raises(CommandError, match="already an administrator"):
        call_command("setup_link")


@pytest.mark.attack
def test_a_setup_link_is_worth_nothing_once_there_is_an_administrator(client, settings):
    settings.SIGNUP = "closed"
    made = invitations.create_setup_link()
    client.get(path_of(made.url))
    factories.grace()
    submit(client)
    assert User.objects.count() == 1
    with pytest.raises(Conflict):
        invitations.create_setup_link()


def test_a_new_setup_link_ends_the_one_before(client):
    before = invitations.create_setup_link()
    invitations.create_setup_link()
    assert client.get(path_of(before.url)).status_code == 404


# --- captcha and settings ----------------------------------------------------------------------------


@pytest.mark.attack
def test_the_captcha_of_the_installation_is_asked(client, settings):
    settings.SIGNUP_CAPTCHA = "tests.copilot.accounts.test_sign_up.YesField"
    assert "Prove that you&#x27;re human." in submit(client, captcha="no").content.decode()
    assert not User.objects.exists()
    assert submit(client, captcha="yes").status_code == 302


@pytest.mark.parametrize(
    "name", ["nowhere.at.all", "tests.copilot.accounts.test_sign_up.path_of", "builtins.dict"]
)
def test_a_captcha_that_cannot_be_used_is_found_at_the_start(settings, name):
    settings.SIGNUP_CAPTCHA = name
    [found] = checks.check_captcha(None)
    assert found.id == "copilot.E023"


def test_production_is_closed_until_somebody_chooses():
    code = "from django.conf import settings as s; print(s.SIGNUP, s.ACCOUNT_EMAIL_VERIFICATION)"
    given = {"SECRET_KEY": "x" * 60, "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend"}
    assert run_manage_command("shell", "-v", "0", "-c", code, **given).stdout.split() == [
        "closed",
        "mandatory",
    ]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"SIGNUP": "everybody"}, "SIGNUP must be one of"),
        ({"SIGNUP": "domains"}, "SIGNUP_DOMAINS"),
        ({"SIGNUP": "domains", "SIGNUP_DOMAINS": "a.org"}, "ACCOUNT_EMAIL_VERIFICATION"),
    ],
)
def test_a_policy_that_cannot_hold_stops_the_start(given, named):
    done = run_manage_command("check", SECRET_KEY="x" * 60, **given)
    assert done.returncode != 0
    assert named in done.stderr


def test_the_first_start_in_production_prints_the_setup_link():
    source = (ROOT / "config" / "bootstrap.py").read_text()
    assert 'call_command("setup_link")' in source
