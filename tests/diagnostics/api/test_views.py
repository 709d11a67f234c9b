"""Diagnostics over REST: who may, how often, and what a list answers (D5, D14)."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from copilot.models import Turn
from diagnostics import inventory, snapshot
from diagnostics.api.urls import REPAIR_PATHS
from diagnostics.api.views import DiagnosticsAPIView
from diagnostics.models import MetricSample, RepairAudit
from tests.support import factories
from tests.support.rest_clients import V1, code_of, person, program

pytestmark = pytest.mark.django_db
HERE = f"{V1}/admin/diagnostics"
READS = (
    "executions/summary", "executions", "executions.csv", "workers", "leases", "streams", "buffers", "findings", "probes",
    "samples?metric=queued", "audit", "schedules/summary", "schedules",
)  # fmt: skip
CHANGES = tuple(where for where, _, _ in REPAIR_PATHS)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch):
    monkeypatch.setattr(inventory, "INSPECT_TIMEOUT_SECONDS", 0.01)  # nobody would answer
    snapshot.clear_caches()
    yield
    snapshot.clear_caches()


def staff(*rights, name="heidi"):
    user = factories.user(name)
    user.is_staff = True
    user.save()
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="diagnostics", codename__in=rights)
    )
    return user


def answered(client, where):
    if where in CHANGES:
        body = {"ids": [str(uuid.uuid4())], "reason": "to try it", "confirm": True}
        if "all" in where:
            body = {"reason": "to try it", "dry_run": True}
        return client.post(f"{HERE}/{where}", body, content_type="application/json").status_code
    return client.get(f"{HERE}/{where}").status_code


def test_each_route_for_each_kind_of_caller(client):
    """A-D14.1"""
    turn = factories.turn(factories.session(), "running")
    routes = (*READS, f"executions/{turn.pk}", *CHANGES)
    callers = {
        "anonymous": client,
        "user": person(factories.bob()),
        "staff without right": person(staff(name="ivan")),
        "viewer": person(staff("view", name="judy")),
        "repairer": person(staff("view", "repair", name="mallory")),
    }
    expected = {"anonymous": (401, 401), "user": (403, 403), "staff without right": (403, 403)}
    expected |= {"viewer": (200, 403), "repairer": (200, 200)}
    found = {(name, where): answered(caller, where) for name, caller in callers.items() for where in routes}
    wrong = {key: code for key, code in found.items() if code != expected[key[0]][key[1] in CHANGES]}
    assert wrong == {}


def test_a_change_needs_the_csrf_token_and_a_cookie():
    """A-D14.2: without one 403, and no audit of a change"""
    user = staff("view", "repair")
    asked = {"ids": [str(uuid.uuid4())], "reason": "to try it", "confirm": True}
    forged = person(user, csrf=True).post(f"{HERE}/executions/stop", asked, content_type="application/json")
    assert (forged.status_code, code_of(forged)) == (403, "csrf_failed")
    keyed = program(user, "read", "staff")
    assert keyed.get(f"{HERE}/executions").status_code == 200
    assert program(user, "read").get(f"{HERE}/executions").status_code == 403
    refused = keyed.post(f"{HERE}/executions/stop", asked, content_type="application/json")
    assert (refused.status_code, code_of(refused)) == (403, "session_required")
    assert not RepairAudit.objects.exists()


def test_a_viewer_changes_nothing():
    """A-D14.3"""
    turn = factories.turn(factories.session(), "queued")
    client = person(staff("view"))
    asked = {"ids": [str(turn.pk)], "reason": "to try it", "confirm": True}
    assert client.post(f"{HERE}/executions/stop", asked, content_type="application/json").status_code == 403
    turn.refresh_from_db()
    assert turn.status == "queued"


def test_an_old_login_changes_nothing():
    """A-D14.1: actions need a login of the last twelve hours"""
    user = staff("view", "repair")
    client = person(user, at=time.time() - 13 * 3600)
    asked = {"ids": [str(uuid.uuid4())], "reason": "to try it", "confirm": True}
    refused = client.post(f"{HERE}/executions/stop", asked, content_type="application/json")
    assert (refused.status_code, code_of(refused)) == (403, "login_too_old")
    assert client.get(f"{HERE}/executions").status_code == 200


def test_answers_are_not_kept_and_not_without_bound(monkeypatch: pytest.MonkeyPatch):
    """A-D14.1: no-store; 120 reads and 20 changes a minute for one administrator"""
    assert (DiagnosticsAPIView.reads_per_minute, DiagnosticsAPIView.writes_per_minute) == (120, 20)
    monkeypatch.setattr(
        DiagnosticsAPIView, "reads_per_minute", 8
    )  # fewer are asked for within the minute, however busy it is
    monkeypatch.setattr(DiagnosticsAPIView, "writes_per_minute", 4)
    client = person(staff("view", "repair", name="oscar"))
    assert client.get(f"{HERE}/audit")["Cache-Control"] == "no-store"
    codes = [client.get(f"{HERE}/audit").status_code for _ in range(9)]
    assert codes.count(200) == 7
    assert codes[-1] == 429
    asked = {"ids": [str(uuid.uuid4())], "reason": "to try it", "confirm": True}
    codes = [
        client.post(f"{HERE}/executions/requeue", asked, content_type="application/json").status_code
        for _ in range(5)
    ]
    assert (codes.count(200), codes[-1]) == (4, 429)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "offset=-1", "offset=10001", "hours=100000", "hours=0", "order=password", "q=zz", "what=1",
     "condition=odd", "limit=1&limit=2", "session=1", "created_from=yesterday", "user=%00"],
)  # fmt: skip
def test_out_of_range_names_the_parameter(query):
    """A-D5.1"""
    answer = person(staff("view")).get(f"{HERE}/executions?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["error"]["message"]


@pytest.mark.parametrize("where", ["cleanup-invalid", "stop-invalid", "requeue-invalid", "stop-all-invalid"])
def test_rows_that_contradict_themselves_are_only_read(where):
    """A-D5.2"""
    client = person(staff("view", "repair"))
    assert client.post(f"{HERE}/executions/{where}", {}, content_type="application/json").status_code == 404


def test_rows_that_arrive_between_pages_do_no_harm():
    """A-D5.3: page two comes, and no id twice within one page"""
    client = person(staff("view"))
    for _ in range(5):
        factories.turn(factories.session(), "queued")
    first = client.get(f"{HERE}/executions?condition=queued&limit=3").json()
    factories.turn(factories.session(), "queued")
    second = client.get(f"{HERE}/executions?condition=queued&limit=3&offset=3").json()
    assert (len(first["results"]), first["total"], second["total"]) == (3, 5, 6)
    assert len({row["id"] for row in second["results"]}) == 3


def test_a_row_tells_everything_but_what_was_said():
    """A-D5.1: the fields of D5, e-mail masked without the right to see it"""
    session = factories.session(title="secret title")
    turn = factories.turn(session, "failed", failure_code="worker_lost")
    factories.message(session, content="secret words", turn=turn)
    client = person(staff("view"))
    answer = client.get(f"{HERE}/executions?condition=failed&q={str(turn.pk)[:8]}")
    [row] = answer.json()["results"]
    assert (row["id"], row["user_email"], row["failure_code"]) == (
        str(turn.pk),
        "a***@example.com",
        "worker_lost",
    )
    assert row["error_message"].startswith("The answer was interrupted")
    assert b"secret" not in answer.content
    seeing = person(staff("view", "see_email", name="peggy"))
    assert (
        seeing.get(f"{HERE}/executions?user=ADA@example.com").json()["results"][0]["user_email"]
        == "ada@example.com"
    )
    assert seeing.get(f"{HERE}/executions?user=bob@example.com").json()["total"] == 0


def test_the_list_as_a_file_runs_no_formula():
    """A-D5.3: cells that spreadsheets would run are prefixed"""
    turn = factories.turn(factories.session(), "running", worker="=cmd()")
    text = person(staff("view")).get(f"{HERE}/executions.csv?condition=running").content.decode()
    assert text.splitlines()[0].startswith("id,kind,session_id")
    assert str(turn.pk) in text
    assert "'=cmd()" in text


def test_one_execution_has_its_story():
    """A-D14.1: status changes, attempts, takeovers and audit"""
    turn = factories.turn(factories.session(), "queued")
    client = person(staff("view", "repair"))
    asked = {"ids": [str(turn.pk)], "reason": "to see it", "confirm": True}
    done = client.post(f"{HERE}/executions/stop", asked, content_type="application/json").json()
    assert (done["changed"], done["requested"]) == (1, 1)
    story = client.get(f"{HERE}/executions/{turn.pk}").json()
    assert {"created", "cancelled", "stop", "stop requested"} <= {step["what"] for step in story["timeline"]}
    assert story["audit"][0]["id"] == done["audit_id"]
    assert client.get(f"{HERE}/executions/{uuid.uuid4()}").status_code == 404
    assert client.get(f"{HERE}/audit?actor=heidi").json()["total"] == 1


def test_samples_are_drawn_from_what_was_measured():
    """A-D14.1: samples?metric&range"""
    now = timezone.now().replace(second=0, microsecond=0)
    for minute in range(3):
        MetricSample.objects.create(taken_at=now - timedelta(minutes=minute), name="queued", value=minute)
    client = person(staff("view"))
    points = client.get(f"{HERE}/samples?metric=queued&range=1h").json()["points"]
    assert [point["value"] for point in points] == [2, 1, 0]
    assert client.get(f"{HERE}/samples?metric=password").status_code == 400


def test_reading_works_on_a_database_that_takes_no_writes(django_db_blocker):
    """A-D14.1, D1: every GET, in a transaction that may not write"""
    from django.db import connection, transaction

    turn = factories.turn(factories.session(), "running")
    client = person(staff("view"))
    for where in (*READS, f"executions/{turn.pk}"):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL transaction_read_only = on")
            assert client.get(f"{HERE}/{where}").status_code == 200, where
            transaction.set_rollback(True)
    assert Turn.objects.get().status == "running"
