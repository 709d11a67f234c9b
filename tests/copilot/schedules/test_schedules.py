"""Scheduled tasks: created with a person's consent, and started once each when due (A26)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest
from django.db import connection
from pydantic import ValidationError

from config.celery import app
from config.core import json_values
from config.core.errors import Conflict, InvalidRequest, NotFound
from copilot import tasks
from copilot.agent.toolbox import TurnToolbox
from copilot.agents import services as agents
from copilot.chat import approval_decisions, queue_commands
from copilot.chat.commands import DecideApproval
from copilot.chat.permissions import UNRESTRICTED, Permissions
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext
from copilot.models import AgentVersion, Approval, Schedule, ScheduleRun, Session, Turn
from copilot.providers.base import ToolCall
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText
from copilot.schedules import runner
from copilot.schedules import services as schedules
from copilot.schedules.services import ScheduleRequest
from copilot.tools.builtin import schedule_task
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, V1, code_of, person, program
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import (
    Rig,
    answer,
    cue,
    ended,
    notices,
    quiet,
    said,
    start,
    status,
    told,
    until,
)

EVERY_DAY = ScheduleRequest(prompt="Water the plants", cron="0 8 * * *", timezone="UTC", name="Plants")


@pytest.fixture(name="session")
def session_fixture(rig: Rig) -> Session:
    return factories.session()


def daily(session: Session | None = None, *, due: bool = True, **changes: object) -> Schedule:
    """Ada's, due an hour ago."""
    asked = replace(EVERY_DAY, session_id=session.pk if session else None)
    made = schedules.create_schedule(factories.ada().pk, asked, UNRESTRICTED)
    if due:
        changes["next_run"] = datetime.now(UTC) - timedelta(hours=1)
    Schedule.objects.filter(pk=made.pk).update(**changes)
    made.refresh_from_db()
    return made


def outcomes(schedule: Schedule) -> list[tuple[str, str]]:
    rows = ScheduleRun.objects.filter(schedule=schedule).order_by("pk")
    return list(rows.values_list("outcome", "reason"))


# --- making ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_task_is_made_and_shows_its_next_runs():
    """A26.1"""
    made = schedules.create_schedule(
        factories.ada().pk, replace(EVERY_DAY, timezone="Asia/Tokyo", cron=" 0  8 * * * "), UNRESTRICTED
    )
    runs = schedules.list_next_runs(made)
    assert len(runs) == 3
    assert all(run.endswith("T08:00+09:00") for run in runs)
    assert made.next_run == datetime.fromisoformat(runs[0])
    assert (made.name, made.cron) == ("Plants", "0 8 * * *")


@pytest.mark.django_db
def test_what_cannot_be_is_refused():
    """A26.1: line, zone, prompt, a foreign session"""
    ada = factories.ada().pk
    for change in ({"cron": "* * * * *"}, {"timezone": "Mars"}, {"prompt": "  "}):
        with pytest.raises(InvalidRequest):
            schedules.create_schedule(ada, replace(EVERY_DAY, **change), UNRESTRICTED)
    with pytest.raises(NotFound):
        schedules.create_schedule(
            ada, replace(EVERY_DAY, session_id=factories.session(factories.bob()).pk), UNRESTRICTED
        )
    assert not Schedule.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_last_free_place_is_taken_once():
    """A26.1: twenty at most, however many ask at once"""
    ada = factories.ada().pk
    for _ in range(schedules.MAX_ACTIVE_SCHEDULES - 1):
        schedules.create_schedule(ada, EVERY_DAY, UNRESTRICTED)
    barrier, refused = threading.Barrier(3), []

    def make_one() -> None:
        barrier.wait(PATIENCE_SECONDS)
        try:
            schedules.create_schedule(ada, EVERY_DAY, UNRESTRICTED)
        except Conflict as conflict:
            refused.append(conflict.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=make_one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert refused == ["too_many_schedules"] * 2
    schedules.cancel_schedule(ada, schedules.list_schedules(ada)[0].pk)
    schedules.create_schedule(ada, EVERY_DAY, UNRESTRICTED)


def gardener(**fields: object) -> AgentVersion:
    schema = {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]}
    draft = agents.AgentDraft(
        name="Gardener", description="", instructions="Water.", inputs_schema=schema, **fields
    )
    return agents.create_agent(factories.ada().pk, draft)


def test_a_scheduled_agent_runs_in_its_own_conversation(rig, model):
    """A26.1, A27.5: bound to the version of the moment, its inputs checked when the task is made"""
    agent = gardener(tools=["current_time"])
    asked = ScheduleRequest(
        agent_id=agent.agent_id, inputs={"where": "balcony"}, cron="0 8 * * *", timezone="UTC"
    )
    unfit = (
        replace(asked, inputs={}),
        replace(asked, inputs={"where": "\x00"}),
        replace(asked, prompt="Both"),
        replace(asked, session_id=factories.session().pk),
    )
    for wrong in unfit:
        with pytest.raises(InvalidRequest):
            schedules.create_schedule(factories.ada().pk, wrong, UNRESTRICTED)
    with pytest.raises(NotFound):
        schedules.create_schedule(factories.bob().pk, asked, UNRESTRICTED)
    task = schedules.create_schedule(factories.ada().pk, asked, UNRESTRICTED)
    assert task.name == "Gardener"
    Schedule.objects.update(next_run=datetime.now(UTC) - timedelta(minutes=1))
    assert runner.run_due_schedules() == 1
    turn = ended(ScheduleRun.objects.get().turn_id)
    assert turn.session.agent_version_id == agent.pk
    assert "balcony" in model.said_to()
    assert {tool.name for tool in model.requests[0].tools} == {"current_time", "read_tool_result"}
    agents.delete_agent(factories.ada().pk, agent.agent_id)
    Schedule.objects.update(next_run=datetime.now(UTC) - timedelta(minutes=1))
    assert runner.run_due_schedules() == 0
    assert outcomes(task)[-1] == ("refused", "not_found")


# --- the clock ---------------------------------------------------------------------------------------


def test_what_is_due_runs_as_an_ordinary_turn_without_anybody_there(rig, model, session):
    """A26.3, A31.2: in its session, in a turn of its own, by the schedule's origin and permissions"""
    narrow = replace(UNRESTRICTED, network=False)
    task = daily(session, permissions=narrow.to_json())
    assert runner.run_due_schedules() == 1
    turn = ended(Turn.objects.get(session=session).pk)
    assert (turn.origin, turn.status, answer(turn.pk)) == ("schedule", "succeeded", "Aye.")
    assert Permissions.from_json(turn.permissions) == narrow
    assert said(session) == ["Water the plants"]
    offered = {tool.name for tool in model.requests[0].tools}
    assert not {"ask_user", "web_fetch"} & offered
    task.refresh_from_db()
    assert task.next_run > datetime.now(UTC)
    assert runner.run_due_schedules() == 0
    assert outcomes(task) == [("succeeded", "")]
    assert ScheduleRun.objects.get().turn == turn


def test_a_run_may_have_a_conversation_of_its_own(rig):
    """A26.1: named after the task"""
    daily()
    runner.run_due_schedules()
    session = Session.objects.get()
    ended(session.turns.get().pk)
    assert (session.title, session.title_origin, session.owner) == ("Plants", "manual", factories.ada())


def test_what_was_missed_runs_once(rig, session):
    """A26.c1: a worker down for three occurrences"""
    task = daily(session, next_run=datetime.now(UTC) - timedelta(days=3), due=False)
    assert runner.run_due_schedules() == 1
    assert runner.run_due_schedules() == 0
    quiet(session)
    assert Turn.objects.filter(session=session).count() == 1
    task.refresh_from_db()
    assert task.next_run > datetime.now(UTC)


def test_two_clocks_start_a_moment_once(rig, session):
    """A26.3: both have read it as due"""
    task = daily(session)
    now = datetime.now(UTC)
    first, second = schedules.list_due_schedules(now), schedules.list_due_schedules(now)
    assert schedules.claim_run(first[0], now) is not None
    assert schedules.claim_run(second[0], now) is None
    assert len(outcomes(task)) == 1


def test_a_run_that_would_overlap_is_skipped_and_recorded(rig, model, session):
    """A26.3"""
    task = daily(session)
    model.will(cue(1), ScriptedText("Done."))
    runner.run_due_schedules()
    model.reaches(1)
    Schedule.objects.update(next_run=datetime.now(UTC) - timedelta(minutes=1))
    assert runner.run_due_schedules() == 0
    model.give(1)
    quiet(session)
    runner.run_due_schedules()
    assert outcomes(task) == [("succeeded", ""), ("skipped", runner.STILL_RUNNING_REASON)]


def test_a_task_waits_behind_the_person_in_its_session(rig, model, session):
    """A26.3: ordinary admission; its turn is its own, and is found when it is over"""
    task = daily(session)
    model.will(cue(1), ScriptedText("Hello."))
    mine = start(session, "Hello")
    model.reaches(1)
    assert runner.run_due_schedules() == 1
    assert outcomes(task) == [("started", "")]
    model.give(1)
    ended(mine)
    until(lambda: said(session) == ["Hello", "Water the plants"])
    quiet(session)
    runner.run_due_schedules()
    assert outcomes(task) == [("succeeded", "")]
    assert ScheduleRun.objects.get().turn_id != mine


def test_a_task_taken_out_of_the_queue_is_no_failure(rig, model, session):
    task = daily(session)
    model.will(cue(1), ScriptedText("Hello."))
    mine = start(session, "Hello")
    model.reaches(1)
    runner.run_due_schedules()
    waiting = session.messages.get(run_id__startswith="schedule-")
    queue_commands.remove_queued_message(session.owner_id, session.pk, waiting.pk)
    runner.run_due_schedules()
    assert outcomes(task) == [("cancelled", runner.WITHDRAWN_REASON)]
    model.give(1)
    ended(mine)


def test_five_failures_in_a_row_switch_a_task_off_and_say_so(rig, model, session):
    """A26.3: a success in between resets the count; it can be switched on again"""
    task = daily(session)
    replies = ["fail", "ok", *["fail"] * 5]
    for number, reply in enumerate(replies):
        model.will(ScriptedFailure("auth_failed") if reply == "fail" else ScriptedText("Aye."))
        Schedule.objects.update(next_run=datetime.now(UTC) - timedelta(minutes=1))
        assert runner.run_due_schedules() == 1
        until(lambda seen=number: Turn.objects.filter(session=session).count() == seen + 1)
        quiet(session)
        runner.run_due_schedules()
        task.refresh_from_db()
        assert task.failures == (1, 0, 1, 2, 3, 4, 5)[number]
        assert (task.next_run is None) == (number == len(replies) - 1)
    assert "auth_failed" in task.disabled_reason
    assert notices(session).count("schedule_disabled") == 1
    assert [event.code for event in told(session.pk, "notice.posted")][-1] == "schedule_disabled"
    runner.run_due_schedules()
    assert Turn.objects.filter(session=session).count() == len(replies)
    assert schedules.enable_schedule(session.owner_id, task.pk).next_run > datetime.now(UTC)


def test_a_suspended_account_is_refused_and_recorded(rig, session):
    """A26.c1: and five of those switch it off as well"""
    task = daily()
    factories.ada().__class__.objects.filter(pk=factories.ada().pk).update(is_active=False)
    for _ in range(schedules.MAX_CONSECUTIVE_FAILURES):
        Schedule.objects.filter(cancelled_at=None, next_run__isnull=False).update(
            next_run=datetime.now(UTC) - timedelta(minutes=1)
        )
        assert runner.run_due_schedules() == 0
    assert outcomes(task) == [("refused", "account_inactive")] * 5
    assert not Turn.objects.exists()
    task.refresh_from_db()
    assert task.next_run is None
    assert Session.objects.filter(deleted_at=None).exclude(pk=session.pk).count() == 1  # which says why


def test_a_limit_is_recorded_and_is_not_the_tasks_fault(rig, session, monkeypatch):
    """A26.3: the ordinary admission checks"""
    from billing import errors
    from billing.usage import limit_checks

    def reached(user_id: int, hold) -> None:
        raise errors.LimitReached(window="daily", resets_at=datetime.now(UTC) + timedelta(hours=1))

    monkeypatch.setattr(limit_checks, "check_limits_and_hold", reached)
    task = daily(session)
    runner.run_due_schedules()
    task.refresh_from_db()
    assert outcomes(task)[0][0] == "refused"
    assert task.failures == 0


def test_a_task_that_cannot_be_read_any_more_is_switched_off_and_holds_up_no_other(rig, session):
    """A26.3: a zone may be renamed, a smallest interval may grow"""
    broken = daily(timezone="Mars/Olympus", next_run=datetime.now(UTC) - timedelta(hours=2))
    Schedule.objects.filter(pk=broken.pk).update(next_run=datetime.now(UTC) - timedelta(hours=2))
    sound = daily(session)
    assert runner.run_due_schedules() == 1
    broken.refresh_from_db()
    assert (broken.next_run, "time zone" in broken.disabled_reason) == (None, True)
    assert outcomes(sound)[0][0] == "started"


def test_a_task_that_breaks_costs_no_other_its_run(rig, session):
    """A26.3"""
    broken = daily(inbound_context={"reply": 7})
    Schedule.objects.filter(pk=broken.pk).update(next_run=datetime.now(UTC) - timedelta(hours=2))
    sound = daily(session)
    with pytest.raises(msgspec.ValidationError):
        runner.run_due_schedules()
    assert runner.run_due_schedules() == 1
    assert outcomes(sound)[0][0] == "started"


@pytest.mark.django_db
def test_runs_that_wait_for_a_person_are_not_looked_at_every_minute():
    """A26.3: a thousand of them would hide those that have ended"""
    waits, ends, unsaid = daily(), daily(), daily()
    runs = [
        ScheduleRun.objects.create(schedule=one, due_at=datetime.now(UTC), outcome="started")
        for one in (waits, ends, unsaid)
    ]
    schedules.attach_turn(runs[0], factories.turn(factories.session(), Turn.Status.WAITING).pk)
    schedules.attach_turn(runs[1], factories.turn(factories.session(), Turn.Status.SUCCEEDED).pk)
    assert schedules.list_runs_to_finish() == runs[1:]


def test_a_cancelled_task_does_not_run(rig, session):
    task = daily(session)
    schedules.cancel_schedule(session.owner_id, task.pk)
    assert runner.run_due_schedules() == 0
    with pytest.raises(NotFound):
        schedules.cancel_schedule(session.owner_id, task.pk)


def test_the_clock_is_one_job_a_minute(rig, session, settings):
    """A26.3"""
    job = settings.CELERY_BEAT_SCHEDULE["run due schedules"]
    assert job["task"] == tasks.run_due_schedules.name
    assert job["schedule"].minute == set(range(60))
    daily(session)
    assert app.conf.task_always_eager
    tasks.run_due_schedules.delay()
    quiet(session)
    assert said(session) == ["Water the plants"]


# --- the tools ---------------------------------------------------------------------------------------

TASK = {"prompt": "Water the plants", "cron": "0 8 * * *", "timezone": "Europe/Berlin", "name": "Plants"}


def test_nothing_is_scheduled_without_a_persons_approval(rig, model, session):
    """A26.2, A26.c1: auto-approval without any cap changes nothing"""
    Session.objects.filter(pk=session.pk).update(auto_approve=True, auto_approve_cap=10**12)
    model.will(ScriptedCall("schedule_task", TASK))
    turn = start(session, "Every morning, please")
    until(lambda: status(turn) == "waiting")
    assert not Schedule.objects.exists()
    asked = Approval.objects.get(turn=turn)
    assert (asked.state, asked.automatic) == ("requested", False)
    approval_decisions.decide_approvals(
        session.owner_id, [DecideApproval(approval_id=asked.pk, decision="approve")]
    )
    assert ended(turn).status == "succeeded"
    assert Schedule.objects.get().name == "Plants"


def approved(session: Session, call_id: str) -> Turn:
    """A running turn whose call a person has approved."""
    turn = factories.turn(session, "running")
    Approval.objects.create(
        turn=turn, session=session, call_id=call_id, tool="schedule_task", arguments=TASK, state="running"
    )
    return turn


def run_tool(turn: Turn, name: str, arguments: dict[str, json_values.JSON]) -> str:
    context = TurnContext(
        user_id=turn.session.owner_id,
        session_id=str(turn.session_id),
        turn_id=str(turn.pk),
        fence=turn.fence,
        origin="web",
        permissions=replace(UNRESTRICTED, network=False),
        channel=CHANNELS_BY_ORIGIN["web"],
    )
    call = ToolCall(call_id="c1", tool=name, arguments=arguments)

    async def run() -> str:
        toolbox = TurnToolbox(context)
        [outcome] = [one async for one in toolbox.run_calls([call], lambda event: None)]
        return outcome.content

    return asyncio.run(run())


@pytest.mark.django_db(transaction=True)
def test_an_approved_call_makes_the_task_with_the_turns_permissions():
    """A26.1, A26.2: it shows the next three runs and where results appear"""
    turn = approved(factories.session(), "c1")
    made = run_tool(turn, "schedule_task", {**TASK, "session": "this"})
    assert made.count("T08:00+0") == 3
    assert "This conversation." in made
    task = Schedule.objects.get()
    assert task.session_id == turn.session_id
    assert Permissions.from_json(task.permissions).network is False
    listed = run_tool(turn, "list_scheduled_tasks", {})
    assert "Water the plants" in listed
    assert str(task.pk) in listed
    assert "Cancelled" in run_tool(turn, "cancel_scheduled_task", {"id": str(task.pk)})
    assert "not_found" in run_tool(turn, "cancel_scheduled_task", {"id": str(uuid4())})
    assert '"tasks":[]' in run_tool(turn, "list_scheduled_tasks", {}).replace(" ", "")


@pytest.mark.django_db(transaction=True)
def test_a_line_that_cannot_be_is_refused_before_anybody_is_asked():
    """A26.1"""
    with pytest.raises(ValidationError, match="either a prompt"):
        schedule_task.TOOL.bind({**TASK, "agent_id": NOBODYS})
    with pytest.raises(ValidationError, match="15 minutes"):
        schedule_task.TOOL.bind({**TASK, "cron": "* * * * *"})
    turn = factories.turn(factories.session(), "running")
    assert "time zone" in run_tool(turn, "schedule_task", {**TASK, "timezone": "Mars"})
    assert "approve" in run_tool(turn, "schedule_task", TASK)


def test_a_turn_without_the_permission_is_offered_none_of_it(rig, model, session):
    """A20.1"""
    ended(start(session, permissions=replace(UNRESTRICTED, schedules=False)))
    assert not [tool.name for tool in model.requests[0].tools if "schedule" in tool.name]


# --- endpoints ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_tasks_over_rest():
    """A26, A20.6"""
    ada, key = person(factories.ada()), program(factories.ada())
    body = {"prompt": "Water the plants", "cron": "0 8 * * 1-5", "timezone": "Europe/Berlin"}
    made = ada.post(f"{V1}/schedules", body, content_type=JSON)
    assert made.status_code == 201
    shown = made.json()
    assert (shown["name"], len(shown["next_runs"]), shown["last_run"]) == ("Water the plants", 3, None)
    assert code_of(key.post(f"{V1}/schedules", body, content_type=JSON)) == "insufficient_scope"
    assert key.get(f"{V1}/schedules").json()["items"] == [shown]
    for change, code in (
        ({"cron": "* * * * *"}, "interval_too_small"),
        ({"session_id": NOBODYS}, "not_found"),
    ):
        assert code_of(ada.post(f"{V1}/schedules", body | change, content_type=JSON)) == code
    path = f"{V1}/schedules/{shown['id']}"
    assert ada.get(path).json() == shown
    Schedule.objects.update(next_run=None, failures=5, disabled_reason="It failed.")
    assert ada.get(path).json()["next_runs"] == []
    assert ada.post(f"{path}/switch_on").json()["failures"] == 0
    bob = person(factories.bob())
    for answered in (bob.get(path), bob.delete(path), bob.post(f"{path}/switch_on")):
        assert (answered.status_code, code_of(answered)) == (404, "not_found")
    assert ada.delete(path).status_code == 204
    assert ada.get(f"{V1}/schedules").json()["items"] == []


@pytest.mark.django_db
def test_a_list_costs_the_same_statements_however_long(django_assert_num_queries):
    """P12"""
    ada = person(factories.ada())
    for _ in range(3):
        task = schedules.create_schedule(factories.ada().pk, EVERY_DAY, UNRESTRICTED)
        ScheduleRun.objects.create(schedule=task, due_at=datetime.now(UTC), outcome="skipped")
    ada.get(f"{V1}/schedules")
    with django_assert_num_queries(4):
        assert len(ada.get(f"{V1}/schedules").json()["items"]) == 3


@pytest.mark.django_db
def test_the_page_makes_shows_and_cancels():
    """A26"""
    ada = person(factories.ada())
    form = {"name": "Plants", "prompt": "Water <b>them</b>", "cron": "0 8 * * *", "timezone": "UTC"}
    assert ada.post("/settings/schedules/", form).status_code == 302
    page = ada.get("/settings/schedules/").content.decode()
    assert "Every day at 8:00 AM" in page
    refused = ada.post("/settings/schedules/", form | {"cron": "* * * * *"})
    assert refused.status_code == 400
    assert "15 minutes" in refused.content.decode()
    assert "Water &lt;b&gt;them&lt;/b&gt;" in refused.content.decode()
    task = Schedule.objects.get()
    assert person(factories.bob()).post(f"/settings/schedules/{task.pk}/cancel/").status_code == 404
    Schedule.objects.update(next_run=None, disabled_reason="It failed 5 times.")
    assert "It failed 5 times." in ada.get("/settings/schedules/").content.decode()
    assert ada.post(f"/settings/schedules/{task.pk}/on/").status_code == 302
    assert ada.post(f"/settings/schedules/{task.pk}/cancel/").status_code == 302
    assert "No tasks yet" in ada.get("/settings/schedules/").content.decode()


@pytest.mark.django_db
def test_the_list_of_tasks_is_paged() -> None:
    """W3: those that failed too often stay in it, however many"""
    form = {"name": "Tea", "prompt": "Make tea.", "cron": "0 8 * * *", "timezone": "UTC"}
    ada = person(factories.ada())
    for number in range(26):
        ada.post("/settings/schedules/", form | {"name": f"Tea {number};"})
        Schedule.objects.update(next_run=None, disabled_reason="It failed 5 times.")
    first, second = (ada.get(f"/settings/schedules/{more}").content.decode() for more in ("", "?offset=25"))
    assert (first.count("Tea "), second.count("Tea ")) == (25, 1)
    assert "?offset=25" in first
    assert "?offset=0" in second
