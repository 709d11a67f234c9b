"""Admission: start, queue, or refuse, and nothing half-written (T3)."""

from __future__ import annotations

import pytest
import redis
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from billing import accounts
from config.core import rate_limits
from config.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    ServiceUnavailable,
    TooManyRequests,
)
from config.core.redis import get_redis
from copilot import models
from copilot.chat import admission, admission_outcomes, messages, next_turn, queue_commands, sessions, turns
from copilot.models import Message, Turn
from copilot.providers.scripted import ScriptedHang, ScriptedText
from copilot.realtime import lease, redis_keys
from tests.support import factories
from tests.support.redis_outages import redis_away
from tests.support.turn_engine import (
    command,
    cue,
    ended,
    endings,
    lease_of,
    queue,
    quiet,
    said,
    say,
    start,
    told,
    until,
    waiting,
)


@pytest.fixture
def session(rig):
    return factories.session()


def test_a_message_to_an_idle_session_starts_a_turn(session, rig):
    """T3.4, T3.5: row, lease and events stand when the caller is answered"""
    rig.hold_tasks()
    outcome = say(session, "Hello there", run_id="r")
    turn = Turn.objects.get(pk=outcome.turn_id)
    assert (turn.status, turn.run_ids, turn.attempts) == ("queued", ["r"], 0)
    assert lease_of(session)["turn"] == str(turn.pk)
    message = Message.objects.get(pk=outcome.message_id)
    assert (message.turn_id, message.content, message.sequence is None) == (turn.pk, "Hello there", False)
    assert [event.kind for event in told(session.pk)] == ["message.added", "turn.queued", "session.changed"]
    session.refresh_from_db()
    assert session.title == "Hello there"


def test_a_long_first_message_gives_a_short_title():
    assert admission.make_default_title("word " * 40).endswith("…")
    assert len(admission.make_default_title("word " * 40)) <= 60


@pytest.mark.parametrize("case", ["foreign", "missing", "deleted"])
def test_what_is_not_yours_does_not_exist(session, case):
    """T3.8: 404, one and the same"""
    if case == "deleted":
        sessions.delete_session(session.owner_id, session.pk)
    user = factories.bob().pk if case == "foreign" else session.owner_id
    message = command(session, "Hello", user_id=user)
    if case == "missing":
        message = command(models.Session(pk=factories.uuid.uuid4(), owner_id=user), "Hello")
    with pytest.raises(NotFound) as refused:
        admission.submit_message(message)
    assert refused.value.to_body() == {"code": "not_found", "message": "Not found."}
    assert not Message.objects.exists()


def test_an_inactive_account_is_refused(session):
    """T3.1: 403 account_inactive"""
    factories.User.objects.filter(pk=session.owner_id).update(is_active=False)
    with pytest.raises(Forbidden) as refused:
        say(session, "Hello")
    assert refused.value.code == "account_inactive"


def test_an_unknown_tier_is_refused_before_anything_is_written(session):
    """T3.1"""
    with pytest.raises(InvalidRequest):
        say(session, "Hello", tier="golden")
    assert not Message.objects.exists()


def test_files_that_are_not_the_users_are_ignored_and_named(session):
    """T3.1: and a message of such files alone is empty (T3.8)"""
    nobodys = str(factories.uuid.uuid4())
    assert say(session, "Look", attachments=(nobodys,)).ignored_attachments == [nobodys]
    with pytest.raises(InvalidRequest) as refused:
        say(factories.session(), "", attachments=(nobodys,))
    assert refused.value.code == "empty_message"


def test_a_cost_limit_stops_queued_messages_too(session, model):
    """T3.2: checked for every accepted message"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    start(session)
    account = accounts.get_or_create_account(session.owner_id)
    accounts.set_limit_overrides(account.pk, daily_limit_microdollars=1, weekly_limit_microdollars=1)
    spend(session.owner_id, 10)
    with pytest.raises(TooManyRequests) as refused:
        say(session, "More")
    assert "limit" in refused.value.code
    assert waiting(session) == []


def spend(user_id, microdollars):
    from datetime import UTC, datetime

    from billing import pricing
    from billing.usage import usage_records

    usage_records.record_usage(
        usage_records.UsageCall(
            call_id=factories.uuid.uuid4(),
            user_id=user_id,
            occurred_at=datetime.now(UTC),
            provider="openai_chat",
            model="m",
            tokens=pricing.TokenCounts(input=1, output=1),
            reported=str(microdollars / 1_000_000),
            session_ref="s",
            turn_ref="t",
            estimated=False,
            aborted=False,
        )
    )


# --- run_id (T3.6) -----------------------------------------------------------------------------------


def test_the_same_run_id_again_is_the_same_message(session):
    """T3.6"""
    first = say(session, "Once", run_id="r")
    ended(first.turn_id)
    again = say(session, "Once", run_id="r")
    assert (again.message_id, again.turn_id) == (first.message_id, first.turn_id)
    assert said(session) == ["Once"]


def test_the_same_run_id_with_another_text_is_a_conflict(session):
    """T3.6: 409 idempotency_conflict"""
    say(session, "Once", run_id="r")
    with pytest.raises(Conflict) as refused:
        say(session, "Twice", run_id="r")
    assert refused.value.code == "idempotency_conflict"


def test_a_queued_run_id_again_is_still_queued(session, model):
    """T3.6"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    start(session)
    first = say(session, "Next", run_id="r")
    again = say(session, "Next", run_id="r")
    assert (first.message_id, first.position) == (again.message_id, again.position)


def test_a_run_id_that_a_limit_holds_in_the_queue_is_still_queued(session, model):
    """T3.6, B7.3: nothing runs, and the limit is reached for everything new"""
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    first = say(session, "Next", run_id="r")
    account = accounts.get_or_create_account(session.owner_id)
    accounts.set_limit_overrides(account.pk, daily_limit_microdollars=1, weekly_limit_microdollars=1)
    spend(session.owner_id, 10)
    model.give(1)
    ended(turn_id)
    until(lambda: told(session.pk, "limit.reached"))
    until(lambda: not lease_of(session))
    again = say(session, "Next", run_id="r")
    assert (again.message_id, again.position, again.turn_id) == (first.message_id, 1, turn_id)
    with pytest.raises(TooManyRequests):
        say(session, "Another", run_id="another")


def test_a_dropped_run_id_answers_with_its_cancelled_turn(session, model):
    """T3.6: one ending, also when it was dropped from the queue"""
    model.will(ScriptedText("Talking"), ScriptedHang())
    start(session)
    message_id = queue(session, "Next", run_id="r")
    queue_commands.remove_queued_message(session.owner_id, session.pk, message_id)
    again = say(session, "Next", run_id="r")
    assert Turn.objects.get(pk=again.turn_id).status == "cancelled"


def test_run_ids_are_unique_per_session_not_over_all(session):
    """T3.6"""
    other = factories.session()
    assert say(session, "One", run_id="r").message_id != say(other, "Two", run_id="r").message_id


# --- when servers are away (T9.3) --------------------------------------------------------------------


@pytest.fixture
def no_redis():
    with redis_away():
        yield


def test_without_redis_a_message_is_refused_and_nothing_is_written(transactional_db, no_redis):
    """T9.3: 503 unavailable, nothing half-written"""
    session = factories.session()
    with pytest.raises(ServiceUnavailable) as refused:
        say(session, "Hello")
    assert (refused.value.status, refused.value.code) == (503, "unavailable")
    assert not Message.objects.exists()


def test_rate_counters_fail_open(no_redis):
    """T3.7"""
    assert rate_limits.count_request("queue", "1", limit=0, seconds=60) is None


def test_a_database_that_refuses_the_turn_gives_the_lease_back(session):
    """T3.5: the row is taken back too, so that sending again does not make two"""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE 'the disk is full'; END $$ LANGUAGE plpgsql"
        )
        cursor.execute("CREATE TRIGGER no_turns BEFORE INSERT ON copilot_turn EXECUTE FUNCTION refuse()")
    try:
        with pytest.raises(ServiceUnavailable):
            say(session, "Hello")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert lease_of(session) == {}
    assert not Message.objects.exists()
    assert ended(start(session, "Hello")).status == "succeeded"
    assert said(session) == ["Hello"]


def test_a_message_that_a_turn_took_while_redis_went_away_is_accepted(session, model, monkeypatch):
    """T3.5, T9.3: a refusal would have the caller say it twice"""
    model.will(ScriptedText("Running"), cue(1))
    start(session)
    model.reaches(1)

    honest = lease.claim_or_queue

    def too_late(*args, **options):
        honest(*args, **options)
        model.give(1)
        until(lambda: said(session) == ["Hello", "Behind"])
        raise redis.ConnectionError

    monkeypatch.setattr(lease, "claim_or_queue", too_late)
    outcome = say(session, "Behind")
    assert Message.objects.get(pk=outcome.message_id).turn_id == outcome.turn_id
    quiet(session)
    assert said(session) == ["Hello", "Behind"]


def test_a_turn_whose_opening_was_never_confirmed_is_started_all_the_same(session, rig, monkeypatch):
    """T3.5: the connection broke between the commit and its answer"""
    rig.hold_tasks()
    unheard(monkeypatch, turns, "open_turn")
    outcome = say(session, "Hello")
    assert (outcome.state, Turn.objects.get().pk) == ("started", outcome.turn_id)
    assert said(session) == ["Hello"]


def test_a_row_whose_commit_was_never_confirmed_is_taken_back(session, monkeypatch):
    """T9.3: nothing half-written"""
    unheard(monkeypatch, messages, "insert_message")
    with pytest.raises(ServiceUnavailable) as refused:
        say(session, "Hello")
    assert refused.value.code == "unavailable"
    assert not Message.objects.exists()


def test_a_submission_that_cannot_be_taken_back_has_an_unknown_outcome(session, monkeypatch):
    """T9.3: the database is away when the row is to be taken back"""
    unheard(monkeypatch, messages, "insert_message")
    unheard(monkeypatch, messages, "discard_pending_message", asked=False)
    with pytest.raises(OutcomeUnknown) as refused:
        say(session, "Hello")
    assert (refused.value.status, refused.value.code) == (504, "outcome_unknown")


def unheard(patch, module, name, *, asked=True):
    """Postgres may execute the statement, and the connection breaks before the response."""
    honest = getattr(module, name)

    def broken(*args, **options):
        if asked:
            honest(*args, **options)
        raise OperationalError("the connection is lost")

    patch.setattr(module, name, broken)


# --- what Redis forgot -------------------------------------------------------------------------------


def test_a_lease_that_redis_forgot_is_put_back_for_the_turn_that_runs(session, model):
    """T2.5"""
    model.will(ScriptedText("Running"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    get_redis().delete(redis_keys.lease_key(str(session.pk)))
    assert isinstance(say(session, "Behind"), admission_outcomes.SubmissionQueued)
    assert lease_of(session)["turn"] == str(turn_id)
    model.give(1)
    until(lambda: said(session) == ["Hello", "Behind"])
    quiet(session)
    assert len(endings(session.pk)) == Turn.objects.filter(session=session).count()


def test_a_submission_takes_a_few_statements(session, rig):
    """P12: starting and queueing"""
    rig.hold_tasks()
    start(factories.session())
    with CaptureQueriesContext(connection) as starting:
        start(session)
    with CaptureQueriesContext(connection) as queueing:
        queue(session, "Behind")
    assert len(starting) <= 4
    assert len(queueing) <= 7


def test_stranded_messages_start_in_their_order(session, model):
    """D10, T6.2"""
    for text in ("One", "Two"):
        factories.pending(session, text)
    assert next_turn.start_stranded_messages(session.pk) is True
    until(lambda: said(session) == ["One", "Two"])
    quiet(session)
    assert next_turn.start_stranded_messages(session.pk) is True
    assert lease_of(session) == {}


def test_a_session_that_is_held_is_not_started_again(session, rig):
    rig.hold_tasks()
    start(session)
    assert next_turn.start_stranded_messages(session.pk) is False
    assert lease.is_session_held(str(session.pk))
