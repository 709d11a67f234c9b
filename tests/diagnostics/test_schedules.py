"""Schedules for staff: what runs soon, what can no longer run, and switching that off (D11)."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from copilot.agents import services as agents
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Agent, Message, Schedule
from copilot.schedules import selectors as schedules_selectors
from copilot.schedules import services as schedules
from copilot.schedules.services import ScheduleRequest
from diagnostics import schedules as diagnostics_schedules
from diagnostics import snapshot, tasks
from diagnostics.audit import RepairActor
from diagnostics.models import RepairAudit
from diagnostics.repairs import runner
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_remembered():
    snapshot.clear_caches()
    yield
    snapshot.clear_caches()


def made(owner=None, *, cron="*/15 * * * *", timezone="UTC", **fields):
    """A schedule that was in order when it was made."""
    asked = ScheduleRequest(prompt="Water the plants", cron="0 8 * * *", timezone="UTC", name="Plants")
    schedule = schedules.create_schedule((owner or factories.ada()).pk, asked, UNRESTRICTED)
    soon = datetime.now(UTC) + timedelta(minutes=1)
    Schedule.objects.filter(pk=schedule.pk).update(
        **({"cron": cron, "timezone": timezone, "next_run": soon} | fields)
    )
    schedule.refresh_from_db()
    return schedule


def by_agent(**draft):
    version = agents.create_agent(
        factories.ada().pk, agents.AgentDraft(name="Gardener", instructions="Water.", **draft)
    )
    return made(agent=version.agent, prompt=""), version


def orphans():
    """One for each reason, and what is wrong with it."""
    deleted, version = by_agent()
    agents.delete_agent(factories.ada().pk, version.agent_id)
    gone = made(factories.user("carol"))
    gone.owner.is_active = False
    gone.owner.save()
    serverless, _ = by_agent(tools=["mcp_garden_water"])
    broken = made(cron="61 * * * *")
    return {
        deleted: "deleted_agent",
        gone: "no_access",
        serverless: "invalid_credentials",
        broken: "validation_failed",
    }


def clean_up(ids, **fields):
    user = factories.grace()
    asked = {"ids": [str(getattr(one, "pk", one)) for one in ids], "reason": "cannot run", "confirm": True}
    return runner.perform_repair(
        RepairActor(name="grace", admin_id=user.pk), "cleanup_orphaned_schedules", asked | fields
    )


def test_every_quarter_of_an_hour_is_four_runs():
    """A-D11.1: one schedule, four runs in the next hour"""
    made()
    made(next_run=None)
    found = diagnostics_schedules.get_schedule_summary()
    assert (found.schedules_next_hour, found.runs_next_hour) == (1, 4)
    assert (found.schedules_next_24h, found.runs_next_24h) == (1, 96)
    assert (found.user, found.paused, found.total) == (2, 1, 2 + found.system)


def test_what_is_due_and_what_is_overdue():
    """A-D11.1: due now, and overdue after two minutes"""
    now = datetime.now(UTC)
    for minutes in (-1, 1, 3):
        made(next_run=now - timedelta(minutes=minutes))
    found = diagnostics_schedules.get_schedule_summary()
    assert (found.due_now, found.overdue) == (2, 1)


def test_each_orphan_has_its_reason():
    """A-D11.2: the first that holds, in words; those in order have none"""
    expected = orphans()
    healthy = [made(), by_agent()[0]]
    found = {schedule.pk: orphan for schedule, orphan in schedules_selectors.iter_orphans()}
    assert {one.pk: reason for one, reason in expected.items()} == {
        pk: orphan.reason for pk, orphan in found.items()
    }
    assert all(0 < len(orphan.detail) <= 200 for orphan in found.values())
    summary = diagnostics_schedules.get_schedule_summary()
    assert (summary.orphaned_total, set(summary.orphaned.values())) == (4, {1})
    page = diagnostics_schedules.list_schedules(orphaned=True, limit=50, offset=0)
    assert (page.total, {row.reason for row in page.results}) == (4, set(summary.orphaned))
    everybody = diagnostics_schedules.list_schedules(orphaned=False, limit=50, offset=0)
    assert everybody.total == len(expected) + len(healthy)
    assert {row.reason for row in everybody.results} == {None}


def test_only_orphans_are_switched_off():
    """A-D11.2: healthy, unknown and system ids are skipped and untouched; the owner is told"""
    every = IntervalSchedule.objects.create(every=1, period="hours")
    system = PeriodicTask.objects.create(name="ours", task="t", interval=every)
    expected, healthy, unknown = list(orphans()), made(), uuid.uuid4()
    result = clean_up([*expected, healthy, unknown])
    assert (result.requested, result.changed) == (6, 4)
    assert {skip.id: skip.reason for skip in result.skipped} == {
        str(healthy.pk): "not_orphaned",
        str(unknown): "not_found",
    }
    healthy.refresh_from_db()
    system.refresh_from_db()
    assert (healthy.next_run is not None, healthy.disabled_reason, system.enabled) == (True, "", True)
    off = Schedule.objects.get(pk=expected[0].pk)
    assert (off.next_run, off.cancelled_at) == (None, None)
    assert off.disabled_reason.startswith("Switched off: The agent Gardener was deleted")
    assert Message.objects.filter(kind="notice", session__owner=off.owner).exists()
    assert clean_up(expected).changed == 0
    assert (
        RepairAudit.objects.filter(outcome="done").exclude(changes=[]).get().changes[0]["after"]["status"]
        == "off"
    )


def test_all_orphans_are_shown_before_they_are_switched_off():
    """A-D11.2: by preview"""
    orphans()
    actor = RepairActor(name="grace", admin_id=factories.grace().pk)
    look = runner.perform_repair(actor, "cleanup_orphaned_schedules", {"reason": "to look", "dry_run": True})
    assert (look.requested, look.changed, Schedule.objects.filter(next_run=None).count()) == (4, 4, 0)
    done = runner.perform_repair(
        actor, "cleanup_orphaned_schedules",
        {"reason": "to act", "confirm": True, "preview_id": look.preview_id},
    )  # fmt: skip
    assert (done.changed, done.remaining, Schedule.objects.filter(next_run=None).count()) == (4, 0, 4)


def test_what_stays_off_goes_after_thirty_days():
    """A-D11.2: deleted only after thirty days, and not what somebody has mended"""
    first, second = list(orphans())[:2]
    clean_up([first, second])
    assert tasks.purge_disabled_schedules() == 0
    audit = RepairAudit.objects.filter(outcome="done").get()
    RepairAudit.objects.create(
        action=audit.action, outcome="done", actor="grace", ids=audit.ids, keep_until=audit.keep_until,
        at=audit.at - timedelta(days=31),
    )  # fmt: skip
    Agent.objects.update(deleted_at=None)
    schedules.enable_schedule(first.owner_id, first.pk)
    assert tasks.purge_disabled_schedules() == 1
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.cancelled_at, second.cancelled_at is not None) == (None, True)


@pytest.mark.parametrize(
    ("now", "runs"),
    [
        (
            datetime(2026, 3, 29, 0, 30, tzinfo=UTC),
            4,
        ),  # 02:00 to 03:00 does not exist: the hour is not run twice
        (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), 4),  # 02:00 to 03:00 comes twice
        (datetime(2026, 6, 1, 0, 30, tzinfo=UTC), 4),
    ],
)
def test_a_gap_in_local_time_breaks_nothing(now, runs):
    """A-D11.3: each local occurrence counts once"""
    made(timezone="Europe/Berlin", next_run=now + timedelta(minutes=5))
    found = schedules_selectors.count_upcoming_runs(now, timedelta(hours=1))
    assert (found.schedules, found.runs) == (1, runs)
    day = schedules_selectors.count_upcoming_runs(now - timedelta(hours=12), timedelta(hours=24))
    assert day.runs in (92, 96, 100)


def test_more_schedules_need_no_more_statements(django_assert_num_queries):
    """P23"""
    by_agent()
    with CaptureQueriesContext(connection) as few:
        assert list(schedules_selectors.iter_orphans()) == []
    for number in range(5):
        by_agent(description=f"Number {number}")
    with django_assert_num_queries(len(few)):
        assert list(schedules_selectors.iter_orphans()) == []
