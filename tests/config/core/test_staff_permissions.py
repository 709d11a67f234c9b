"""Every staff page and call needs the same permissions on every entry point, and staff without them reach none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.test import AsyncClient, Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from billing.models import UsageReset
from config.core.staff_permissions import STAFF_PERMISSIONS
from diagnostics.models import AuditEvent
from tests.support import factories
from tests.support.rest_clients import code_of, person, program

pytestmark = [pytest.mark.django_db, pytest.mark.attack]

JSON = "application/json"
NO_ONES = str(uuid.UUID(int=7))
RIGHTS = ("view", "repair", "reset_usage", "see_email", "see_audit")  # of diagnostics, all there are

# The permissions of each staff endpoint, repeated here: one that is added or opened by mistake fails the test.
VIEW, REPAIR, RESET, AUDIT = {"view"}, {"view", "repair"}, {"view", "reset_usage"}, {"view", "see_audit"}
DIAGNOSTICS, BILLING = "api/v1/admin/diagnostics/", "api/v1/billing/admin/"
CALLS = {
    ("get", f"{BILLING}limits"): VIEW,
    ("post", f"{BILLING}limits/reset"): RESET,
    **{
        ("get", f"{DIAGNOSTICS}{path}"): VIEW
        for path in (
            "executions/summary",
            "executions",
            "executions.csv",
            "executions/<uuid:execution_id>",
            "workers",
            "leases",
            "streams",
            "buffers",
            "findings",
            "probes",
            "samples",
            "audit",
            "schedules/summary",
            "schedules",
        )
    },
    **{
        ("post", f"{DIAGNOSTICS}{path}"): REPAIR
        for path in (
            "executions/stop",
            "executions/requeue",
            "executions/cleanup-orphaned",
            "executions/stop-all-long-running",
            "executions/requeue-all-stuck",
            "executions/cleanup-all-orphaned",
            "executions/cleanup-all-stuck-queued",
            "sessions/start-stranded",
            "schedules/cleanup-orphaned",
        )
    },
}
PAGES = {
    ("get", "admin/diagnostics/"): VIEW,
    ("get", "admin/diagnostics/<slug:slug>/"): VIEW,
    ("get", "admin/diagnostics/execution/<uuid:execution_id>/"): VIEW,
    ("get", "admin/diagnostics/audit.csv"): AUDIT,
    ("post", "admin/diagnostics/confirm/"): REPAIR,
    ("post", "admin/diagnostics/apply/"): REPAIR,
    ("post", "admin/diagnostics/limits/confirm/"): RESET,
    ("post", "admin/diagnostics/limits/apply/"): RESET,
}


def staff(name: str, *rights: str, app: str = "diagnostics") -> User:
    user = factories.user(name)
    user.is_staff = True
    user.save()
    user.user_permissions.set(Permission.objects.filter(content_type__app_label=app, codename__in=rights))
    return user


def routes(under: str) -> Iterator[str]:
    """Every path below this prefix, as its pattern says it."""

    def walk(patterns: list[URLPattern | URLResolver], before: str) -> Iterator[str]:
        for one in patterns:
            path = before + str(one.pattern).lstrip("^")
            if isinstance(one, URLResolver):
                yield from walk(one.url_patterns, path)
            elif path.startswith(under):
                yield path

    yield from walk(get_resolver().url_patterns, "")


def filled(path: str) -> str:
    """Return a path of a user who does not exist: staff who are let in get 404."""
    for name, value in (("<uuid:execution_id>", NO_ONES), ("<slug:slug>", "running")):
        path = path.replace(name, value)
    return f"/{path}"


def answered(client: Client, method: str, path: str) -> int:
    where = filled(path)
    if method == "get":
        return client.get(where, {"user": factories.ada().pk} if "limits" in path else {}).status_code
    if path.startswith("api/"):
        body = (
            {"user": factories.ada().pk, "reason": "to try it"} if "limits" in path else {"nothing": "known"}
        )
        return client.post(where, body, content_type=JSON).status_code
    return client.post(where, {"user": factories.ada().pk, "reason": "to try it"}).status_code


# --- the table ---------------------------------------------------------------------------------------


def test_every_staff_call_and_page_is_in_the_table():
    calls = {*routes(DIAGNOSTICS), *routes(BILLING)}
    assert calls == {path for _, path in CALLS}
    assert set(routes("admin/diagnostics/")) == {path for _, path in PAGES}


def test_the_product_has_one_table_and_it_knows_these_rights_alone():
    named = {right for rights in STAFF_PERMISSIONS.values() for right in rights}
    assert named <= {f"diagnostics.{right}" for right in RIGHTS}
    known = Permission.objects.filter(content_type__app_label="diagnostics", codename__in=RIGHTS)
    assert known.count() == len(RIGHTS)


@dataclass(frozen=True)
class Caller:
    name: str
    rights: frozenset[str]
    superuser: bool = False

    def client(self) -> Client:
        if self.superuser:
            return person(factories.grace())
        return person(staff(self.name, *self.rights))


CALLERS = [
    Caller("none", frozenset()),
    *(Caller(f"only-{right}", frozenset({right})) for right in RIGHTS),
    *(Caller(f"view-and-{right}", frozenset({"view", right})) for right in RIGHTS[1:]),
    Caller("superuser", frozenset(RIGHTS), superuser=True),
]


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_each_staff_endpoint_needs_its_permissions(caller, monkeypatch):
    """Staff who lack one of the permissions get 403; those who have them all are let in, by REST and by page."""
    from diagnostics.api.views import DiagnosticsAPIView

    monkeypatch.setattr(DiagnosticsAPIView, "reads_per_minute", 10_000)
    monkeypatch.setattr(DiagnosticsAPIView, "writes_per_minute", 10_000)
    client = caller.client()
    wrong = {}
    for (method, path), needed in (CALLS | PAGES).items():
        code = answered(client, method, path)
        if (code == 403) is not (not needed <= caller.rights):
            wrong[method, path] = code
    assert wrong == {}


@pytest.mark.parametrize("path", [path for _, path in CALLS | PAGES])
def test_people_with_and_without_accounts_reach_no_staff_endpoint(path):
    method = next(how for how, where in CALLS | PAGES if where == path)
    for client, codes in ((person(factories.bob()), {403}), (Client(), {401, 302, 403})):
        assert answered(client, method, path) in codes


# --- limits, which were once open to all staff -------------------------------------------------------


def test_staff_without_rights_neither_see_nor_reset_limits():
    ada, client = factories.ada(), person(staff("ivan"))
    seen = client.get(f"/{BILLING}limits", {"user": ada.pk})
    assert (seen.status_code, code_of(seen)) == (403, "forbidden")
    body = {"user": ada.pk, "reason": "because I can"}
    reset = client.post(f"/{BILLING}limits/reset", body, content_type=JSON)
    assert reset.status_code == 403
    assert not UsageReset.objects.exists()
    keyed = program(staff("ivan"), "read", "staff")
    assert keyed.get(f"/{BILLING}limits", {"user": ada.pk}).status_code == 403


def test_an_email_address_is_shown_only_with_the_permission():
    ada = factories.ada()
    for rights, email in ((("view",), "a***@example.com"), (("view", "see_email"), ada.email)):
        client = person(staff("-".join(rights), *rights))
        assert client.get(f"/{BILLING}limits", {"user": ada.pk}).json()["email"] == email


def test_a_reset_needs_a_login_of_today_and_leaves_a_trail():
    ada, user = factories.ada(), staff("judy", "view", "reset_usage")
    body = {"user": ada.pk, "reason": "an outage"}
    long_ago = (timezone.now() - timedelta(days=2)).timestamp()
    late = person(user, at=long_ago).post(f"/{BILLING}limits/reset", body, content_type=JSON)
    assert late.status_code == 403
    assert not UsageReset.objects.exists()
    assert person(user).post(f"/{BILLING}limits/reset", body, content_type=JSON).status_code == 200
    assert UsageReset.objects.get().actor == user
    [event] = AuditEvent.objects.filter(action="usage.reset")
    assert (event.actor, event.target_id, event.reason) == ("judy", str(ada.pk), "an outage")


@pytest.mark.django_db(transaction=True)
async def test_details_of_readiness_need_the_right_to_see_diagnostics(async_client: AsyncClient, settings):
    nobody, viewer = await sync_to_async(staff)("ivan"), await sync_to_async(staff)("judy", "view")
    await async_client.aforce_login(nobody)
    assert "checks" not in (await async_client.get("/readyz")).json()
    await async_client.aforce_login(viewer)
    assert "checks" in (await async_client.get("/readyz")).json()
    settings.STAFF_MFA = "required"  # as on every other staff page
    assert "checks" not in (await async_client.get("/readyz")).json()


# --- Django's admin ----------------------------------------------------------------------------------

FOR_ALL_STAFF = {  # they show what the asker may see, and nothing else
    "admin/",
    "admin/login/",
    "admin/logout/",
    "admin/password_change/",
    "admin/password_change/done/",
    "admin/jsi18n/",
    "admin/autocomplete/",
}


def admin_paths() -> list[str]:
    """Lists, forms for new rows, and every page that an app added; what is for one row is closed like its list."""
    of_one_row = ("<path:object_id>", "<id>", "(?P<", "<int:content_type_id>", "<path:")
    return sorted(
        path
        for path in set(routes("admin/")) - FOR_ALL_STAFF
        if not path.startswith("admin/diagnostics/") and not any(part in path for part in of_one_row)
    )


def test_staff_without_rights_open_no_page_of_the_admin():
    client = person(staff("ivan"))
    opened = {path: code for path in admin_paths() if (code := client.get(f"/{path}").status_code) == 200}
    assert len(admin_paths()) > 50
    assert opened == {}


def test_each_list_of_the_admin_opens_to_its_own_right_alone():
    """One person gets the right of one model after the other: that list opens, and the one before is closed again."""
    user, before, wrong = staff("ivan"), "", []
    client = person(user)
    for model in sorted(admin.site._registry, key=lambda one: one._meta.label):
        right = Permission.objects.filter(
            content_type__app_label=model._meta.app_label, codename=f"view_{model._meta.model_name}"
        )
        if not right.exists():
            continue  # superusers alone
        user.user_permissions.set(right)
        where = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        found = (client.get(where).status_code, client.get(before).status_code if before else 403)
        if found != (200, 403):
            wrong.append((where, found))
        before = where
    assert wrong == []


def test_who_may_only_look_at_periodic_tasks_and_addresses_cannot_act_on_them():
    """Third-party pages offered their actions to every viewer."""
    viewer = staff("ivan", "view_periodictask", app="django_celery_beat")
    task = PeriodicTask.objects.create(
        name="nightly",
        task="x",
        enabled=True,
        interval=IntervalSchedule.objects.create(every=1, period="days"),
    )
    acted = {"action": "disable_tasks", "_selected_action": str(task.pk)}
    person(viewer).post(reverse("admin:django_celery_beat_periodictask_changelist"), acted)
    task.refresh_from_db()
    assert task.enabled


# --- from one right to all of them -------------------------------------------------------------------

ACCOUNT_RIGHTS = [
    f"{verb}_{model}"
    for verb in ("add", "change", "delete", "view")
    for model in ("user", "group", "emailaddress", "socialaccount", "authenticator")
]


@pytest.fixture
def support() -> Client:
    """Staff with every right over accounts, groups and ways to sign in, and no other."""
    user = factories.user("ivan")
    user.is_staff = True
    user.save()
    user.user_permissions.set(Permission.objects.filter(codename__in=ACCOUNT_RIGHTS))
    return person(user)


ADAS_FORM = {
    "username": "ada",
    "email": "ada@example.com",
    "is_active": "on",
    "date_joined_0": "2026-01-02",
    "date_joined_1": "03:04:05",
}


def test_staff_who_may_change_accounts_give_no_rights(support):
    ada, crew = factories.ada(), Group.objects.create(name="crew")
    right = Permission.objects.get(codename="see_audit")
    roles = {"is_staff": "on", "is_superuser": "on", "groups": [crew.pk], "user_permissions": [right.pk]}
    where = f"/admin/auth/user/{ada.pk}/change/"
    changed = support.post(where, ADAS_FORM | roles | {"first_name": "Augusta"})
    assert changed.status_code == 302  # what is not theirs to change is not read
    ada.refresh_from_db()
    assert (ada.first_name, ada.is_staff, ada.is_superuser) == ("Augusta", False, False)
    assert not ada.groups.exists()
    assert not ada.user_permissions.exists()
    for where in ("/admin/auth/group/add/", f"/admin/auth/group/{crew.pk}/change/"):
        assert support.post(where, {"name": "crew", "permissions": [right.pk]}).status_code == 403


@pytest.mark.parametrize("roles", [{"is_staff": True}, {"is_superuser": True}], ids=["staff", "superuser"])
def test_staff_who_may_change_accounts_take_over_no_other_staff(support, roles):
    """By a new password, another address, a verified mark, a lost factor, or an account at a provider."""
    other = factories.user("judy")
    for name, value in roles.items():
        setattr(other, name, value)
    other.save()
    email = EmailAddress.objects.create(user=other, email="new@example.com")
    factor = Authenticator.objects.create(user=other, type="totp", data={})
    elsewhere = SocialAccount.objects.create(user=other, provider="github", uid="1")
    password = {"password1": "a new passphrase", "password2": "a new passphrase", "usable_password": "true"}
    for where, body in {
        f"/admin/auth/user/{other.pk}/change/": {"username": "judy", "email": "ivan@example.com"},
        f"/admin/auth/user/{other.pk}/password/": password,
        f"/admin/auth/user/{other.pk}/delete/": {"post": "yes"},
        f"/admin/account/emailaddress/{email.pk}/change/": {"email": "ivan@example.com", "verified": "on"},
        f"/admin/account/emailaddress/{email.pk}/delete/": {"post": "yes"},
        f"/admin/mfa/authenticator/{factor.pk}/delete/": {"post": "yes"},
        f"/admin/socialaccount/socialaccount/{elsewhere.pk}/delete/": {"post": "yes"},
        "/admin/account/emailaddress/add/": {"user": other.pk, "email": "ivan@x.com", "verified": "on"},
        "/admin/socialaccount/socialaccount/add/": {"user": other.pk, "provider": "github", "uid": "666"},
    }.items():
        assert support.post(where, body).status_code == 403, where
    for where, row in {
        "/admin/account/emailaddress/": email,
        "/admin/mfa/authenticator/": factor,
        "/admin/auth/user/": other,
    }.items():
        support.post(where, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
        assert type(row).objects.filter(pk=row.pk).exists(), where
    support.post("/admin/account/emailaddress/", {"action": "make_verified", "_selected_action": [email.pk]})
    email.refresh_from_db()
    assert not email.verified


def test_no_address_or_account_elsewhere_is_moved_to_another_account(support):
    ada, grace = factories.ada(), factories.grace()
    email = EmailAddress.objects.create(user=ada, email="mine@example.com", verified=True)
    elsewhere = SocialAccount.objects.create(user=ada, provider="github", uid="1")
    moved = {
        "user": grace.pk,
        "email": "mine@example.com",
        "verified": "on",
        "provider": "github",
        "uid": "1",
    }
    support.post(f"/admin/account/emailaddress/{email.pk}/change/", moved)
    for client in (support, person(grace)):
        client.post(f"/admin/socialaccount/socialaccount/{elsewhere.pk}/change/", moved)
    email.refresh_from_db()
    elsewhere.refresh_from_db()
    assert (email.user, elsewhere.user) == (ada, ada)


def test_staff_who_may_change_accounts_help_ordinary_people(support):
    ada = factories.ada()
    email = EmailAddress.objects.create(user=ada, email="mine@example.com")
    factor = Authenticator.objects.create(user=ada, type="totp", data={})
    support.post("/admin/account/emailaddress/", {"action": "make_verified", "_selected_action": [email.pk]})
    email.refresh_from_db()
    assert email.verified
    assert support.post(f"/admin/mfa/authenticator/{factor.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Authenticator.objects.filter(pk=factor.pk).exists()
    password = {"password1": "a new passphrase", "password2": "a new passphrase", "usable_password": "true"}
    where = f"/admin/auth/user/{ada.pk}/password/"
    assert support.post(where, password | {"set-password": "1"}).status_code == 302
    ada.refresh_from_db()
    assert ada.check_password("a new passphrase")


def test_superusers_give_and_take_rights():
    ada, boss = factories.ada(), person(factories.grace())
    where = f"/admin/auth/user/{ada.pk}/change/"
    assert boss.post(where, ADAS_FORM | {"is_staff": "on"}).status_code == 302
    ada.refresh_from_db()
    assert ada.is_staff
    assert boss.post("/admin/auth/group/add/", {"name": "crew"}).status_code == 302


def test_every_action_of_the_admin_names_the_right_it_needs():
    """An action without one would run for everyone who may see the list."""
    open_to_viewers = [
        (model._meta.label, name)
        for model, model_admin in admin.site._registry.items()
        for name in model_admin.actions or ()
        if not getattr(getattr(model_admin, str(name), name), "allowed_permissions", None)
    ]
    assert open_to_viewers == []
