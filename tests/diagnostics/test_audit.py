"""One append-only log of security-relevant acts: what is in it, who reads it, and that no sink misses an event."""

from __future__ import annotations

import csv
import http.server
import io
import json
import runpy
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.db import InternalError, connection, transaction
from django.db.utils import DatabaseError, IntegrityError
from django.test import Client
from django.utils import timezone

from config import variables
from config.core.audit import record_audit_event
from copilot.accounts import api_keys, deletion
from copilot.exports import services as exports
from diagnostics import audit, audit_delivery
from diagnostics.models import AuditDelivery, AuditEvent, AuditSink, RepairAudit
from tests.support import factories

pytestmark = pytest.mark.django_db
BACKEND = "django.contrib.auth.backends.ModelBackend"


def actions() -> list[str]:
    return list(AuditEvent.objects.order_by("at", "pk").values_list("action", flat=True))


def staff(*rights: str) -> Client:
    """A member of staff with these rights of diagnostics, and no others."""
    hopper = User.objects.create_user("hopper", "hopper@example.com", factories.PASSWORD, is_staff=True)
    hopper.user_permissions.set(
        Permission.objects.filter(content_type__app_label="diagnostics", codename__in=rights)
    )
    client = Client()
    client.force_login(hopper, backend=BACKEND)
    return client


@pytest.fixture
def boss(client) -> Client:
    client.force_login(factories.grace(), backend=BACKEND)
    return client


# --- what is recorded --------------------------------------------------------------------------------


def test_sign_ins_are_recorded_with_who_and_where(client):
    factories.ada()
    client.post("/accounts/login/", {"login": "ada@example.com", "password": "wrong"})
    client.post("/accounts/login/", {"login": "ada@example.com", "password": factories.PASSWORD})
    client.post("/accounts/logout/")
    rows = {row.action: row for row in AuditEvent.objects.all()}
    assert {"sign_in.failed", "sign_in.succeeded", "sign_in.ended"} <= set(rows)
    done = rows["sign_in.succeeded"]
    assert (done.actor, done.address, done.category) == ("ada", "127.0.0.1", "sign_in")
    failed = rows["sign_in.failed"]
    assert (failed.outcome, failed.target_id) == ("refused", str(factories.ada().pk))


@pytest.mark.attack
def test_what_was_typed_into_the_wrong_field_is_not_kept(client):
    """People type their password where the name goes"""
    client.post("/accounts/login/", {"login": factories.PASSWORD, "password": "s3cret-typed-too"})
    client.post("/accounts/login/", {"login": "ada@example.com", "password": "s3cret-typed-too"})
    kept = json.dumps(list(AuditEvent.objects.values()), default=str)
    assert factories.PASSWORD not in kept
    assert "s3cret" not in kept


def test_keys_exports_and_erasures_are_recorded_with_their_rows():
    ada = factories.ada()
    made = api_keys.create_api_key(ada, name="laptop")
    api_keys.revoke_api_key(ada.pk, made.row.pk)
    exports.request_account_export(ada.pk)
    deletion.request_deletion(ada, password=factories.PASSWORD)
    assert [one for one in actions() if one != "role.changed"] == [
        "api_key.created",
        "api_key.revoked",
        "export.requested",
        "account.deletion_requested",
    ]
    assert made.token.split("_")[-1] not in json.dumps(list(AuditEvent.objects.values()), default=str)


def test_an_act_that_is_rolled_back_leaves_no_event():
    with transaction.atomic():
        api_keys.create_api_key(factories.ada())
        transaction.set_rollback(True)
    assert "api_key.created" not in actions()


def test_an_act_whose_event_cannot_be_written_is_not_done(monkeypatch):
    ada = factories.ada()

    def fail(**fields: object) -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(AuditEvent.objects, "create", fail)
    with pytest.raises(DatabaseError):
        api_keys.create_api_key(ada)
    assert api_keys.list_api_keys(ada.pk) == []


def test_roles_and_rights_are_recorded_with_who_gave_them(boss):
    ada, crew = factories.ada(), Group.objects.create(name="crew")
    ada.is_staff = True
    ada.save()
    ada.groups.add(crew)
    crew.permissions.add(Permission.objects.first())
    changed = AuditEvent.objects.filter(action="role.changed", target_type="user", target_id=str(ada.pk))
    assert [row.result for row in changed.order_by("at")] == [
        {"is_staff": True},
        {"change": "add", "of": "group", "named": ["crew"]},
    ]
    assert AuditEvent.objects.filter(action="role.changed", target_type="group").count() == 1
    ada.last_login = timezone.now()
    ada.save(update_fields=["last_login"])
    assert changed.count() == 2


def test_changes_on_staff_pages_are_recorded(boss):
    boss.post("/admin/auth/group/add/", {"name": "crew"})
    row = AuditEvent.objects.get(category="admin")
    assert (row.action, row.actor, row.target_type) == ("admin.added", "grace", "group")


@pytest.mark.parametrize("number", [1, 3])
def test_each_row_deleted_from_a_list_is_recorded_once(boss, number: int):
    """Django logs several deletions at once, and a single one by itself"""
    crews = [Group.objects.create(name=f"crew {one}") for one in range(number)]
    chosen = [crew.pk for crew in crews]
    boss.post("/admin/auth/group/", {"action": "delete_selected", "_selected_action": chosen, "post": "yes"})
    assert not Group.objects.filter(pk__in=chosen).exists()
    rows = AuditEvent.objects.filter(action="admin.deleted", target_type="group", actor="grace")
    assert sorted(rows.values_list("target_id", flat=True)) == sorted(map(str, chosen))


def test_second_factors_are_recorded(client):
    factories.ada()
    client.post("/accounts/login/", {"login": "ada@example.com", "password": factories.PASSWORD})
    asked = client.get("/accounts/2fa/totp/activate/")
    form = client.post(asked.url, {"password": factories.PASSWORD}, follow=True)
    secret = form.context["form"].secret
    code = totp.format_hotp_value(totp.hotp_value(secret, int(time.time()) // 30))
    client.post("/accounts/2fa/totp/activate/", {"code": code})
    Authenticator.objects.filter(type="totp").first().delete()
    assert {"factor.added", "factor.removed"} <= set(actions())
    assert secret not in json.dumps(list(AuditEvent.objects.values()), default=str)


def test_repairs_stand_in_the_same_log():
    audit.record_repair(
        audit.REAPER_ACTOR, audit.RepairRecord(action="restore", outcome=audit.AuditOutcome.DONE)
    )
    record_audit_event("api_key.created")
    assert sorted(AuditEvent.objects.values_list("category", flat=True)) == ["api_key", "repair"]
    assert RepairAudit.objects.count() == 1


@pytest.mark.attack
def test_details_are_bounded_and_hold_no_secrets():
    record_audit_event(
        "api_key.created", note="x" * 5000, password="hunter2", api_token="t", many=list(range(100)), code="1"
    )
    row = AuditEvent.objects.get()
    assert set(row.result) == {"note", "many"}
    assert len(row.result["note"]) == 200
    assert len(row.result["many"]) == 20


# --- nobody changes it -------------------------------------------------------------------------------


@pytest.mark.attack
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE diagnostics_repairaudit SET actor = 'somebody else'",
        "UPDATE diagnostics_repairaudit SET keep_until = now() - interval '1 day'",
        "DELETE FROM diagnostics_repairaudit",
    ],
)
def test_the_database_refuses_to_change_the_log(statement):
    record_audit_event("sign_in.succeeded")
    with pytest.raises((IntegrityError, InternalError)), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert AuditEvent.objects.count() == 1


def test_only_what_was_kept_long_enough_is_purged(settings):
    settings.AUDIT_WEBHOOK_URL = "http://127.0.0.1:1/"
    settings.DIAG_AUDIT_DAYS = -1
    record_audit_event("sign_in.succeeded")
    settings.DIAG_AUDIT_DAYS = 1
    record_audit_event("sign_in.failed")
    assert audit.purge_expired_events() == 1
    assert actions() == ["sign_in.failed"]
    assert AuditDelivery.objects.count() == 1


# --- reading it --------------------------------------------------------------------------------------


def test_the_page_shows_filters_and_saves_the_log(boss):
    api_keys.create_api_key(factories.ada())
    record_audit_event("sign_in.failed", actor="=cmd()", outcome="refused")
    page = boss.get("/admin/diagnostics/audit/?category=api_key").content.decode()
    assert "api_key.created" in page
    assert "sign_in.failed" not in page
    assert "sign_in.failed" in boss.get("/admin/diagnostics/audit/?only=refused").content.decode()
    ada = factories.ada().pk
    assert "api_key.created" in boss.get(f"/admin/diagnostics/audit/?user={ada}").content.decode()
    told = boss.get("/admin/diagnostics/audit.csv?only=refused")
    rows = list(csv.DictReader(io.StringIO(told.content.decode())))
    assert [(row["action"], row["actor"]) for row in rows] == [("sign_in.failed", "'=cmd()")]
    assert AuditEvent.objects.filter(action="audit.exported", actor="grace").count() == 1


@pytest.mark.parametrize("asked", ["user=x", "only=x", "at_from=x", "actor=a%00b", "page=0"])
def test_an_odd_filter_is_refused_by_name(boss, asked):
    assert boss.get(f"/admin/diagnostics/audit/?{asked}").status_code == 400
    if not asked.startswith("page"):
        assert boss.get(f"/admin/diagnostics/audit.csv?{asked}").status_code == 400


@pytest.mark.attack
def test_without_the_right_only_repairs_are_shown():
    client = staff("view")
    api_keys.create_api_key(factories.ada())
    audit.record_repair(
        audit.REAPER_ACTOR, audit.RepairRecord(action="restore", outcome=audit.AuditOutcome.DONE)
    )
    page = client.get("/admin/diagnostics/audit/?category=api_key").content.decode()
    assert "api_key.created" not in page
    assert "restore" in client.get("/admin/diagnostics/audit/").content.decode()
    assert client.get("/admin/diagnostics/audit.csv").status_code == 403
    told = client.get("/api/v1/admin/diagnostics/audit").json()["results"]
    assert [row["action"] for row in told] == ["restore"]


def test_with_the_right_everything_is_shown():
    client = staff("view", "see_audit")
    assert "sign_in.succeeded" in client.get("/admin/diagnostics/audit/").content.decode()
    told = client.get("/api/v1/admin/diagnostics/audit?category=sign_in").json()["results"]
    assert {row["action"] for row in told} == {"sign_in.succeeded"}


# --- reading a conversation --------------------------------------------------------------------------


@pytest.mark.attack
def test_reading_a_conversation_asks_for_a_reason_and_is_recorded(boss):
    mine = factories.session(factories.ada(), title="Private plans")
    said = factories.message(mine, content="the secret of the ship")
    url = f"/admin/copilot/message/{said.pk}/change/"
    asked = boss.get(url).content.decode()
    assert "the secret of the ship" not in asked
    assert "Why do you need to read this?" in asked
    refused = boss.post(url, {"reason": "why"})
    assert refused.status_code == 400
    assert 'id="id_reason_error"><li>Enter a reason of 5 to 500 characters.' in refused.content.decode()
    assert ">\nwhy</textarea>" in refused.content.decode()
    assert boss.post(url, {"reason": "ticket 4711"}).url == url
    assert "the secret of the ship" in boss.get(url).content.decode()
    assert "Private plans" in boss.get(f"/admin/copilot/session/{mine.pk}/change/").content.decode()
    rows = AuditEvent.objects.filter(action="conversation.read", target_id=str(mine.pk))
    assert {(row.actor, row.reason) for row in rows} == {("grace", "ticket 4711")}
    assert rows.count() == 2


@pytest.mark.attack
def test_a_reason_is_good_for_one_conversation_and_for_a_while(boss, monkeypatch):
    first, second = factories.session(factories.ada()), factories.session(factories.bob())
    url = f"/admin/copilot/session/{first.pk}/change/"
    boss.post(url, {"reason": "ticket 4711"})
    assert "Why do you need" not in boss.get(url).content.decode()
    assert "Why do you need" in boss.get(f"/admin/copilot/session/{second.pk}/change/").content.decode()
    later = time.time() + 3600
    monkeypatch.setattr("copilot.admin.conversation_access.time.time", lambda: later)
    assert "Why do you need" in boss.get(url).content.decode()


# --- staff need a second factor ----------------------------------------------------------------------


@pytest.mark.attack
def test_staff_without_a_second_factor_reach_no_staff_page(settings):
    settings.STAFF_MFA = "required"
    client = staff("view")
    assert client.get("/admin/").url == "/accounts/2fa/"
    assert client.get("/admin/diagnostics/").url == "/accounts/2fa/"
    refused = client.get("/api/v1/admin/diagnostics/audit")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "second_factor_required")
    assert client.get("/chat/").status_code == 200
    key = api_keys.create_api_key(User.objects.get(username="hopper"), scopes=("read", "staff")).token
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {key}"}
    assert Client().get("/api/v1/admin/diagnostics/audit", **bearer).status_code == 403


@pytest.mark.attack
def test_a_session_from_before_the_factor_has_to_use_it(settings):
    settings.STAFF_MFA = "required"
    client = staff("view")
    hopper = User.objects.get(username="hopper")
    Authenticator.objects.create(user=hopper, type="totp", data={"secret": totp.encrypt("A" * 32)})
    sent = client.get("/admin/")
    assert sent.url == "/accounts/2fa/reauthenticate/?next=/admin/"
    code = totp.format_hotp_value(totp.hotp_value("A" * 32, int(time.time()) // 30))
    client.post("/accounts/2fa/reauthenticate/", {"code": code})
    assert client.get("/admin/diagnostics/").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_staff_who_add_a_factor_go_on_at_once(settings, client):
    settings.STAFF_MFA = "required"
    factories.grace()
    client.post("/accounts/login/", {"login": "grace@example.com", "password": factories.PASSWORD})
    assert client.get("/admin/").status_code == 302
    asked = client.get("/accounts/2fa/totp/activate/")
    form = client.post(asked.url, {"password": factories.PASSWORD}, follow=True)
    code = totp.format_hotp_value(totp.hotp_value(form.context["form"].secret, int(time.time()) // 30))
    client.post("/accounts/2fa/totp/activate/", {"code": code})
    assert client.get("/admin/").status_code == 200


def test_people_who_are_not_staff_are_not_asked(settings, client):
    settings.STAFF_MFA = "required"
    client.force_login(factories.ada(), backend=BACKEND)
    assert client.get("/settings/").status_code == 200


# --- sinks -------------------------------------------------------------------------------------------


@contextmanager
def webhook(answers: list[int]) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Answers with these statuses, then with 204; keeps what it took."""
    taken: list[dict[str, object]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status = answers.pop(0) if answers else 204
            if status < 300:
                taken.append({**body, "authorization": self.headers["authorization"]})
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", taken
    finally:
        server.shutdown()
        server.server_close()


def test_an_outage_of_the_webhook_delays_events_and_loses_none(settings):
    with webhook([503, 500]) as (url, taken):
        settings.AUDIT_WEBHOOK_URL, settings.AUDIT_WEBHOOK_TOKEN = url, "bearer-of-ours"
        for number in range(3):
            record_audit_event("api_key.created", number=number)
        for failures in (1, 2):
            assert audit_delivery.deliver_pending_events() == 0
            sink = AuditSink.objects.get()
            assert (sink.failures, AuditDelivery.objects.count()) == (failures, 3)
            assert audit_delivery.deliver_pending_events() == 0  # it pauses: nobody is asked again at once
            assert AuditSink.objects.get().failures == failures
            AuditSink.objects.update(next_try_at=timezone.now() - timedelta(seconds=1))
        assert audit_delivery.deliver_pending_events() == 3
        assert audit_delivery.deliver_pending_events() == 0
    [body] = taken
    assert [event["details"]["number"] for event in body["events"]] == [0, 1, 2]
    assert body["authorization"] == "Bearer bearer-of-ours"
    assert AuditSink.objects.get().failures == 0


@pytest.mark.attack
def test_pauses_of_a_dead_sink_grow_and_are_bounded(settings):
    settings.AUDIT_WEBHOOK_URL = "http://127.0.0.1:1/"
    record_audit_event("api_key.created")
    pauses = []
    for _ in range(12):
        audit_delivery.deliver_pending_events()
        sink = AuditSink.objects.get()
        pauses.append(round((sink.next_try_at - timezone.now()).total_seconds()))
        AuditSink.objects.update(next_try_at=None)
    assert pauses[:3] == [5, 10, 20]
    assert max(pauses) == audit_delivery.LONGEST_PAUSE_SECONDS


def test_the_page_says_that_a_sink_does_not_answer(settings, boss):
    settings.AUDIT_WEBHOOK_URL = "http://127.0.0.1:1/"
    record_audit_event("api_key.created")
    audit_delivery.deliver_pending_events()
    assert "not reaching webhook" in boss.get("/admin/diagnostics/audit/").content.decode()


def test_syslog_gets_framed_lines_by_tcp_and_datagrams_by_udp(settings):
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        settings.AUDIT_SYSLOG_ADDRESS = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        record_audit_event("api_key.created", note="one\ntwo")
        assert audit_delivery.deliver_pending_events() == 1
        plug, _ = server.accept()
        with plug:
            length, _, line = plug.makefile("rb").read().partition(b" ")
        assert int(length) == len(line)
        head, _, message = line.partition(b"{")
        assert head.startswith(b"<85>1 ")
        assert json.loads(b"{" + message)["details"] == {"note": "one\ntwo"}
        datagrams.bind(("127.0.0.1", 0))
        settings.AUDIT_SYSLOG_ADDRESS = f"udp://127.0.0.1:{datagrams.getsockname()[1]}"
        record_audit_event("api_key.revoked")
        assert audit_delivery.deliver_pending_events() == 1
        assert b"api_key.revoked" in datagrams.recv(9000)


@pytest.mark.parametrize("value", ["ftp://host", "tcp://", "tcp://host:99999", "nonsense"])
def test_an_address_that_cannot_be_is_refused_without_repeating_it(monkeypatch, value):
    monkeypatch.setenv("AUDIT_SYSLOG_ADDRESS", value)
    with pytest.raises(ImproperlyConfigured, match="AUDIT_SYSLOG_ADDRESS must be") as refused:
        runpy.run_path(variables.__file__)
    assert value not in str(refused.value)
