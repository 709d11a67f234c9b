"""Repairs: shown first, done one by one, recorded for good, and never done to what lives (D8, D9)."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from config.core.errors import Conflict, InvalidRequest, RequestRefused, ServiceUnavailable
from config.core.redis import get_redis
from copilot.chat import stop
from copilot.models import Message, Turn, WorkerHeartbeat
from copilot.providers.scripted import ScriptedText
from copilot.realtime import redis_keys
from copilot.worker import heartbeat, recovery
from diagnostics import audit as diagnostics_audit
from diagnostics import turn_filters
from diagnostics.audit import RepairActor
from diagnostics.models import RepairAudit, RepairPreview
from diagnostics.repairs import actions, requests, runner
from diagnostics.repairs.runner import REPAIR_ACTIONS
from tests.support import factories
from tests.support.repairs import WHY, H, grace, list_skip_reasons, make_old_turn, perform_repair
from tests.support.turn_engine import (
    cue,
    ended,
    endings,
    notices,
    queue,
    quiet,
    said,
    start,
    status,
    together,
    until,
    waiting,
)
from tests.support.usage import record_usage

pytestmark = pytest.mark.django_db(transaction=True)
CLOSED_SET = {
    "not_found", "not_stuck", "not_orphaned", "still_live", "already_ended", "recently_requeued", "stop_pending",
    "limit_refused", "changed_meanwhile", "wrong_status", "error",
}  # fmt: skip


def heidi():
    user = factories.user("heidi", is_staff=True)
    return RepairActor(name=user.username, admin_id=user.pk)


def dead():
    return make_old_turn(worker="gone")


def live():
    turn = make_old_turn(worker="alive")
    beating = [*Turn.objects.filter(worker="alive", status="running").values_list("pk", "fence")]
    heartbeat.write_redis_heartbeat("alive", [(str(one), fence) for one, fence in beating], life_seconds=60)
    return turn


def preview(action, **fields):
    return perform_repair(action, dry_run=True, confirm=False, **fields)


def states(*turns):
    return [Turn.objects.get(pk=turn.pk).status for turn in turns]


def stranded():
    """A session in which nothing runs, although a message waits there."""
    message = factories.pending(factories.session(), "Forgotten", run_id=str(uuid.uuid4()))
    Message.objects.filter(pk=message.pk).update(created_at=timezone.now() - timedelta(seconds=20))
    return message.session


VALID = {
    "stop": lambda: make_old_turn("queued"),
    "requeue": lambda: make_old_turn("queued"),
    "cleanup_orphaned": dead,
    "stop_all_long_running": lambda: None,
    "requeue_all_stuck": lambda: make_old_turn("queued"),
    "cleanup_all_orphaned": dead,
    "cleanup_all_stuck_queued": lambda: make_old_turn("queued"),
    "start_stranded": stranded,
}
BY_IDS = ("stop", "requeue", "cleanup_orphaned", "start_stranded")


@pytest.fixture
def sent(monkeypatch):
    """What is sent again is counted, not run."""
    found: list[uuid.UUID] = []
    monkeypatch.setattr("copilot.tasks.enqueue_turn", found.append)
    return found


@pytest.fixture(autouse=True)
def _no_broker(request):
    if "rig" not in request.fixturenames:
        request.getfixturevalue("sent")


# --- the framework -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", BY_IDS)
def test_requested_is_always_changed_and_skipped_together(action):
    """A-D8.1: empty, all valid, all invalid, mixed"""
    make_valid = VALID[action]
    valid, invalid = (
        [make_valid(), make_valid()],
        [make_old_turn("succeeded"), make_old_turn("failed"), uuid.uuid4()],
    )
    for ids, changed in ((invalid, 0), ([valid[0]], 1), ([valid[1], *invalid], 1), ([*valid], 0)):
        result = perform_repair(action, ids)
        assert (result.requested, result.changed) == (len(ids), changed)
        assert result.requested == result.changed + len(result.skipped)
        assert {skip.reason.partition(":")[0] for skip in result.skipped} <= CLOSED_SET
    with pytest.raises(InvalidRequest):
        perform_repair(action)


@pytest.mark.parametrize("action", sorted(set(VALID) - set(BY_IDS)))
def test_a_repair_of_all_shows_then_does_what_it_showed(action, monkeypatch):
    """A-D8.1: by preview; nothing to do is requested 0, changed 0"""
    nothing = preview(action)
    assert (nothing.requested, nothing.changed, nothing.dry_run) == (0, 0, True)
    assert perform_repair(action, preview_id=nothing.preview_id).requested == 0
    if action == "stop_all_long_running":
        monkeypatch.setitem(
            turn_filters.TURN_FILTERS, "long_running", lambda moment: turn_filters.filter_queued(moment)
        )  # ends at once, without a worker
        found = [make_old_turn("queued"), make_old_turn("queued")]
    else:
        found = [VALID[action](), VALID[action]()]
    late = make_old_turn("succeeded")
    shown = preview(action)
    assert (shown.requested, shown.changed, shown.remaining) == (2, 2, 0)
    assert set(RepairPreview.objects.get(pk=shown.preview_id).ids) == {turn.pk for turn in found}
    before = states(*found)
    assert before == states(*found)
    done = perform_repair(action, preview_id=shown.preview_id)
    assert (done.requested, done.changed, done.skipped) == (2, 2, [])
    assert states(late) == ["succeeded"]


def test_a_preview_is_bounded_and_repeated(settings):
    """A-D8.1: at most so many, oldest first; `remaining` tells how many more match"""
    settings.DIAG_ALL_MAX = settings.DIAG_BULK_MAX = 2
    turns = [make_old_turn("queued", age=(5 - place) * H) for place in range(3)]
    shown = preview("cleanup_all_stuck_queued")
    assert (shown.requested, shown.remaining) == (2, 1)
    assert RepairPreview.objects.get(pk=shown.preview_id).ids == [turns[0].pk, turns[1].pk]
    done = perform_repair("cleanup_all_stuck_queued", preview_id=shown.preview_id)
    assert (done.changed, done.remaining) == (2, 1)


def test_two_administrators_change_each_id_once():
    """A-D8.2"""
    for action, make_valid in (
        ("cleanup_orphaned", dead),
        ("requeue", lambda: make_old_turn("queued")),
        ("stop", lambda: make_old_turn("queued")),
        ("start_stranded", stranded),
    ):
        turns = [make_valid() for _ in range(8)]
        grace(), heidi()
        first, second = together(
            lambda: perform_repair(action, turns, actor=grace()),
            lambda: perform_repair(action, turns, actor=heidi()),
        )
        assert first.changed + second.changed == len(turns), action
        changed = [
            change["id"] for audit in RepairAudit.objects.filter(action=action) for change in audit.changes
        ]
        assert len(changed) == len(set(changed)), action
        if action != "requeue":
            assert set(changed) == {str(turn.pk) for turn in turns}


def test_a_turn_that_ends_after_the_preview_keeps_its_result():
    """A-D8.3"""
    turn = dead()
    shown = preview("cleanup_all_orphaned")
    Turn.objects.filter(pk=turn.pk).update(status="succeeded", ended_at=timezone.now())
    done = perform_repair("cleanup_all_orphaned", preview_id=shown.preview_id)
    assert list_skip_reasons(done) == {str(turn.pk): "already_ended"}
    assert states(turn) == ["succeeded"]


def test_finished_turns_are_never_cleaned_up():
    """A-D8.4"""
    turns = [make_old_turn("succeeded") for _ in range(3)]
    result = perform_repair("cleanup_orphaned", turns)
    assert set(list_skip_reasons(result).values()) == {"wrong_status:succeeded"}
    assert states(*turns) == ["succeeded"] * 3
    assert {turn.failure_code for turn in Turn.objects.all()} == {""}


def test_a_preview_is_spent_once():
    """A-D8.5: applied twice in parallel, one result; and it is nobody else's, of no other repair, and not for long"""
    dead()
    shown = preview("cleanup_all_orphaned")

    def apply():
        try:
            return perform_repair("cleanup_all_orphaned", preview_id=shown.preview_id).changed
        except RequestRefused as refusal:
            return refusal.status

    assert sorted(together(apply, apply)) == [1, 410]
    dead()
    again = preview("cleanup_all_orphaned")
    for action, actor in (("cleanup_all_orphaned", heidi()), ("cleanup_all_stuck_queued", grace())):
        with pytest.raises(requests.PreviewRefused):
            perform_repair(action, preview_id=again.preview_id, actor=actor)
    RepairPreview.objects.filter(pk=again.preview_id).update(created_at=timezone.now() - 6 * H / 60)
    with pytest.raises(requests.PreviewRefused):
        perform_repair("cleanup_all_orphaned", preview_id=again.preview_id)


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": ["1; DROP TABLE copilot_turn"]},
        {"ids": [str(uuid.uuid4()) for _ in range(10_000)]},
        {"ids": "all"},
        {"ids": []} | {"reason": "ab"},
        {"ids": [str(uuid.uuid4())], "reason": "x" * 501},
        {"ids": [str(uuid.uuid4())], "reason": None},
        {"ids": [str(uuid.uuid4())], "force": True},
        {"preview_id": str(uuid.uuid4()), "ids": [str(uuid.uuid4())]},
        None,
    ],
)
def test_what_makes_no_sense_is_refused_and_recorded(fields):
    """A-D8.6"""
    asked = None if fields is None else {"reason": WHY, "confirm": True, **fields}
    with pytest.raises(InvalidRequest):
        runner.perform_repair(grace(), "stop", asked)
    audit = RepairAudit.objects.get()
    assert (audit.outcome, audit.ids, audit.changes) == ("refused", [], [])
    assert "DROP TABLE" not in str(audit.result)


def test_nothing_happens_without_confirmation():
    """A-D8.1: 409, and the refusal is recorded"""
    turn = dead()
    with pytest.raises(Conflict) as refused:
        perform_repair("cleanup_orphaned", [turn], confirm=False)
    assert refused.value.code == "confirmation_required"
    assert states(turn) == ["running"]
    assert RepairAudit.objects.get().outcome == "refused"


def test_a_dry_run_changes_nothing_and_tells_the_same():
    """A-D8.1: of ids too"""
    turns = [dead(), live(), make_old_turn("succeeded")]
    dry = perform_repair("cleanup_orphaned", turns, dry_run=True, confirm=False)
    assert states(*turns) == ["running", "running", "succeeded"]
    real = perform_repair("cleanup_orphaned", turns)
    assert (dry.changed, list_skip_reasons(dry)) == (real.changed, list_skip_reasons(real)) == (
        1, {str(turns[1].pk): "still_live", str(turns[2].pk): "wrong_status:succeeded"},
    )  # fmt: skip
    assert [audit.outcome for audit in RepairAudit.objects.order_by("at")] == ["dry_run", "done"]


def test_the_same_key_returns_the_first_result():
    """A-D8.2: a request sent again changes nothing more, in parallel or later"""
    turns = [dead(), dead()]
    factories.grace()
    first, second = together(
        lambda: perform_repair("cleanup_orphaned", turns, key="k-1"),
        lambda: perform_repair("cleanup_orphaned", turns, key="k-1"),
    )
    assert first == second
    assert first.changed == 2
    assert perform_repair("cleanup_orphaned", turns, key="k-1") == first
    others = [dead(), dead()]
    for action, ids, fields in (
        ("stop", turns, {}),
        ("cleanup_orphaned", others, {}),
        ("cleanup_orphaned", [*turns, *others], {}),
        ("cleanup_orphaned", turns[:1], {}),
        ("cleanup_orphaned", turns, {"dry_run": True}),
    ):
        with pytest.raises(Conflict):
            perform_repair(action, ids, key="k-1", **fields)
    assert states(*others) == ["running", "running"]


def test_one_that_fails_stops_no_other(monkeypatch):
    """A-D8.1: error:<code>, and what could not be tried in time is error:timeout"""
    first, second, third = dead(), dead(), dead()
    whole = recovery.fail_turn_as_staff

    def give_up(turn_id, *rest):
        if turn_id == second.pk:
            raise ValueError("odd")
        return whole(turn_id, *rest)

    monkeypatch.setattr(recovery, "fail_turn_as_staff", give_up)
    assert list_skip_reasons(perform_repair("cleanup_orphaned", [first, second, third])) == {
        str(second.pk): "error:internal"
    }
    monkeypatch.setattr(runner, "CALL_TIMEOUT_SECONDS", -1.0)
    assert list_skip_reasons(perform_repair("cleanup_orphaned", [second])) == {
        str(second.pk): "error:timeout"
    }


def test_a_row_that_somebody_holds_keeps_nobody_waiting():
    """A-D8.1: with Postgres blocked for one id, the others are repaired"""
    held, free = dead(), dead()
    with transaction.atomic():
        Turn.objects.select_for_update().get(pk=held.pk)
        [result] = together(lambda: perform_repair("cleanup_orphaned", [held, free]))
    assert (result.changed, list_skip_reasons(result)) == (1, {str(held.pk): "error:database"})
    assert states(held, free) == ["running", "failed"]


def test_the_record_is_never_changed_and_kept_long():
    """A-D8.2: a trigger refuses every update, and any delete younger than the retention"""
    perform_repair("cleanup_orphaned", [dead()])
    audit = RepairAudit.objects.get()
    assert (audit.actor, audit.address, audit.reason, audit.action) == (
        "grace",
        "10.0.0.1",
        WHY,
        "cleanup_orphaned",
    )
    assert (audit.keep_until - audit.at).days == 400
    [change] = audit.changes
    assert change["before"] == {"status": "running", "fence": change["after"]["fence"] - 1}
    assert change["after"]["status"] == "failed"
    for spoil in (
        lambda: RepairAudit.objects.update(reason="another"),
        lambda: RepairAudit.objects.all().delete(),
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            spoil()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE diagnostics_repairaudit DISABLE TRIGGER USER")
        cursor.execute("UPDATE diagnostics_repairaudit SET keep_until = now() - interval '1 second'")
        cursor.execute("ALTER TABLE diagnostics_repairaudit ENABLE TRIGGER USER")
    kept = RepairAudit.objects.count()
    assert diagnostics_audit.purge_expired_events() >= kept == 1
    assert not RepairAudit.objects.exists()


# --- what each does ----------------------------------------------------------------------------------


def child_of(parent, state="queued"):
    child = make_old_turn(state)
    Turn.objects.filter(pk=child.pk).update(parent=parent)
    return child


def test_children_end_with_their_parent():
    """A-D9.1: three cancelled, one audit row that names all"""
    parent = make_old_turn("queued")
    children = [child_of(parent), child_of(parent)]
    result = perform_repair("stop", [parent])
    assert (result.requested, result.changed) == (1, 1)
    assert states(parent, *children) == ["cancelled"] * 3
    audit = RepairAudit.objects.get()
    assert {change["id"] for change in audit.changes} == {str(turn.pk) for turn in (parent, *children)}
    assert set(audit.ids) == {parent.pk, *(child.pk for child in children)}


def test_a_running_turn_is_stopped_by_its_worker(rig, model):
    """A-D9.1: the ordinary stop; what is queued stays"""
    session = factories.session()
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "And then?")
    result = perform_repair("stop", [turn_id])
    assert (result.changed, ended(turn_id).status) == (1, "cancelled")
    assert endings(session.pk, turn_id) == ["turn.cancelled"]
    assert Message.objects.filter(session=session, sequence=None, dropped_at=None).count() == 1


def test_a_worker_that_ignores_the_stop_is_overridden(rig, model, monkeypatch):
    """A-D9.2: cancelled, and what the worker writes later is refused"""
    monkeypatch.setattr(actions, "OVERRIDE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr("copilot.worker.recovery.STOP_OVERRIDE_SECONDS", 0)
    session = factories.session()
    model.will(ScriptedText("Deaf"), cue(1), ScriptedText(" and blind"))
    turn_id = start(session)
    model.reaches(1)
    rig.worker.freeze()
    result = perform_repair("stop", [turn_id])
    assert (result.changed, status(turn_id)) == (1, "cancelled")
    model.give(1)
    rig.worker.wake()
    until(lambda: not rig.worker.running())
    assert endings(session.pk, turn_id) == ["turn.cancelled"]
    assert "blind" not in "".join(Message.objects.filter(session=session).values_list("content", flat=True))


def test_a_stop_that_cannot_be_carried_out_is_no_success(settings):
    """A-D9.2: with Postgres blocked"""
    settings.DIAG_STOP_WAIT_SECONDS = 0.2
    turn = dead()
    with transaction.atomic():
        Turn.objects.select_for_update().get(pk=turn.pk)
        [result] = together(lambda: perform_repair("stop", [turn]))
    assert list_skip_reasons(result) == {str(turn.pk): "stop_pending"}
    [deaf] = [dead()]
    assert list_skip_reasons(perform_repair("stop", [deaf])) == {str(deaf.pk): "stop_pending"}
    assert RepairAudit.objects.exclude(changes=[]).count() == 0


def test_two_copies_of_a_task_make_one_run(rig, model, sent):
    """A-D9.3: one run, one model call"""
    rig.hold_tasks()
    session = factories.session()
    turn_id = start(session)
    for _ in range(2):
        Turn.objects.filter(pk=turn_id).update(dispatched_at=timezone.now() - 2 * H)
        assert perform_repair("requeue", [turn_id]).changed == 1
    assert list_skip_reasons(perform_repair("requeue", [turn_id])) == {str(turn_id): "recently_requeued"}
    assert sent[-2:] == [turn_id, turn_id]
    assert Turn.objects.get(pk=turn_id).dispatch_count == 3
    worker = rig.start_worker()
    worker.take(turn_id)
    worker.take(turn_id)
    assert ended(turn_id).status == "succeeded"
    quiet(session)
    assert len(model.requests) == 1


def test_what_is_not_queued_or_is_stopped_is_not_sent_again():
    """A-D8.1: closed reasons of requeue"""
    running, stopped = live(), make_old_turn("queued", stop_requested_at=timezone.now())
    fresh = make_old_turn("queued", dispatched_at=timezone.now())
    assert list_skip_reasons(perform_repair("requeue", [running, stopped, fresh])) == {
        str(running.pk): "wrong_status:running",
        str(stopped.pk): "stop_pending",
        str(fresh.pk): "recently_requeued",
    }


def test_a_turn_that_lives_again_is_left_alone(monkeypatch):
    """A-D9.4: `still_live`, or the conditional update loses; never both an ending and a worker that writes"""
    back = dead()
    heartbeat.write_redis_heartbeat("gone", [(str(back.pk), back.fence)], life_seconds=60)
    assert list_skip_reasons(perform_repair("cleanup_orphaned", [back])) == {str(back.pk): "still_live"}
    get_redis().delete(redis_keys.heartbeat_key("gone"))
    taken = dead()
    judged = turn_filters.judge_running_turns

    def judged_then_taken(now, *, one=None):
        moment = judged(now, one=one)
        if one is not None:  # between the judgement and the update the reaper gives it to another worker
            Turn.objects.filter(pk=one).update(status="queued", fence=taken.fence + 1)
        return moment

    monkeypatch.setattr(turn_filters, "judge_running_turns", judged_then_taken)
    assert list_skip_reasons(perform_repair("cleanup_orphaned", [taken])) == {str(taken.pk): "not_orphaned"}
    assert states(taken) == ["queued"]


def test_a_worker_that_wakes_after_the_repair_writes_nothing_more(rig, model):
    """A-D9.4: it was frozen, its beats were gone, and its turn was cleaned up"""
    session = factories.session()
    model.will(ScriptedText("Half"), cue(1), ScriptedText(" and more"))
    turn_id = start(session)
    model.reaches(1)
    rig.worker.freeze()
    get_redis().delete(redis_keys.heartbeat_key(rig.worker.name))
    long_ago = timezone.now() - H
    Turn.objects.filter(pk=turn_id).update(started_at=long_ago, attempt_started_at=long_ago)
    WorkerHeartbeat.objects.update(last_beat_at=long_ago)
    assert perform_repair("cleanup_orphaned", [turn_id]).changed == 1
    model.give(1)
    rig.worker.wake()
    until(lambda: not rig.worker.running())
    assert endings(session.pk, turn_id) == ["turn.failed"]
    assert "and more" not in "".join(
        Message.objects.filter(session=session).values_list("content", flat=True)
    )


def test_on_a_database_that_takes_no_writes_nothing_is_half_done():
    """A-D8.1: the service is unavailable, the executions as they were"""
    turn = dead()
    grace()
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        try:
            with pytest.raises(ServiceUnavailable):
                perform_repair("cleanup_orphaned", [turn])
        finally:
            cursor.execute("SET default_transaction_read_only = off")
    assert states(turn) == ["running"]


def test_live_turns_are_never_touched_by_a_repair_of_dead_ones():
    """A-D9.4: in one request, and by preview"""
    living, gone = [live() for _ in range(5)], [dead() for _ in range(5)]
    result = perform_repair("cleanup_orphaned", [*living, *gone])
    assert result.changed == 5
    assert {list_skip_reasons(result)[str(turn.pk)] for turn in living} == {"still_live"}
    shown = preview("cleanup_all_orphaned")
    assert shown.requested == 0
    assert {(turn.status, turn.fence) for turn in Turn.objects.filter(worker="alive")} == {("running", 1)}


def test_messages_queued_behind_an_orphan_start_or_stay(rig, model):
    """A-D9.5: a message with a run_id gets its own turn and ending, plain ones stay as chips, none is lost"""
    session = factories.session()
    model.will(ScriptedText("Half"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "plain one")
    queue(session, "with an id", run_id="r-1")
    queue(session, "plain two")
    rig.worker.kill()
    get_redis().delete(redis_keys.heartbeat_key(rig.worker.name))
    Turn.objects.filter(pk=turn_id).update(started_at=timezone.now() - H)
    result = perform_repair("cleanup_orphaned", [turn_id])
    assert (result.changed, ended(turn_id).failure_code) == (1, "worker_lost")
    assert endings(session.pk, turn_id) == ["turn.failed"]
    assert notices(session) == ["worker_lost"]
    left = Message.objects.filter(session=session, sequence=None, dropped_at=None)
    assert sorted(left.values_list("content", flat=True)) == ["plain one", "plain two"]
    follower = Turn.objects.get(session=session, run_ids=["r-1"])
    rig.start_worker().take(follower.pk)
    assert ended(follower.pk).status == "succeeded"
    quiet(session)
    assert {"plain one", "with an id", "plain two"} <= {*said(session), *waiting(session)}


def test_what_never_started_fails_with_that_code():
    """A-D9.5: orphaned in the queue; nothing was charged"""
    turn = make_old_turn("queued", age=25 * H)
    assert perform_repair("cleanup_orphaned", [turn]).changed == 1
    turn.refresh_from_db()
    assert (turn.status, turn.failure_code) == ("failed", "never_started")
    assert stop.stop_turn_as_staff(turn.pk) is None


def test_every_action_of_the_table_is_there():
    """A-D5.2: and none for rows that contradict themselves"""
    assert set(REPAIR_ACTIONS) == set(VALID) | {"cleanup_orphaned_schedules"}


def test_messages_that_wait_for_nothing_are_answered_by_hand(rig):
    """A-D9.5, D3: once, with an audit row that names the session; where a turn runs, or a limit keeps them, nothing happens"""
    free, busy = stranded(), make_old_turn("queued").session
    assert list_skip_reasons(perform_repair("start_stranded", [free, busy], dry_run=True)) == {
        str(busy.pk): "not_stuck"
    }
    done = perform_repair("start_stranded", [free, busy])
    assert (done.changed, list_skip_reasons(done)) == (1, {str(busy.pk): "not_stuck"})
    quiet(free)
    assert (free.turns.count(), free.turns.get().status) == (1, "succeeded")
    [change] = RepairAudit.objects.get(pk=done.audit_id).changes
    assert (change["id"], change["before"]["status"], change["after"]["status"]) == (
        str(free.pk), "stranded", "started",
    )  # fmt: skip
    assert perform_repair("start_stranded", [free]).changed == 0


def test_messages_that_a_limit_keeps_are_not_started():
    """D3, B7.3: they wait, but nothing is wrong with them"""
    kept = stranded()
    record_usage(kept.owner, 1_000_000)
    assert list_skip_reasons(perform_repair("start_stranded", [kept])) == {str(kept.pk): "limit_refused"}
    assert not kept.turns.exists()
