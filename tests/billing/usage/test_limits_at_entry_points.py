"""B7: a user who has used up a limit is refused at every entry point, and nothing of the refused request is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from billing import policies, redis_counters
from billing.models import LimitPolicy
from config.core.db import run_in_thread
from config.core.errors import TooManyRequests
from copilot.chat import approval_decisions, queue_commands
from copilot.chat.commands import DecideApproval
from copilot.chat.permissions import UNRESTRICTED
from copilot.models import Approval, Message, Schedule, ScheduleRun, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.schedules import runner
from copilot.schedules import services as schedules
from tests.support import factories
from tests.support.bots import caller, channel, link_ada, link_guild
from tests.support.platform_chats import ScriptedChat, chatting, handled
from tests.support.rest_clients import JSON, V1, code_of, person, program
from tests.support.turn_engine import (
    Errand,
    add_tools,
    cue,
    ended,
    lease_of,
    queue,
    say,
    start,
    told,
    until,
    waiting,
)
from tests.support.usage import record_usage
from tests.support.websocket_client import connected

WEEK = 5_000_000  # of a FREE user; the week is what he is told of


@pytest.fixture(autouse=True)
def _policy_of_this_test_alone() -> Iterator[None]:
    policies.clear_policy_cache()
    yield
    policies.clear_policy_cache()


@pytest.fixture
def session(rig) -> Session:
    return factories.session()


@pytest.fixture
def spent(session) -> Session:
    """A chat whose owner has used up his week."""
    record_usage(session.owner, WEEK)
    return session


def is_whole(error: dict) -> None:
    """B16.4: window, time, reason, price and whether it can be paid for; no amount that was used."""
    assert (error["code"], error["window"], error["reason"]) == ("limit_reached", "weekly", "used")
    assert error["resets_at"].endswith("Z")
    assert (error["reset_cost_cents"], error["can_reset"]) == (500, False)
    assert str(WEEK) not in str(error)


def nothing_stayed() -> None:
    assert (Turn.objects.count(), Message.objects.count()) == (0, 0)


def sayings(session: Session) -> dict[str, Callable[[], object]]:
    """List the REST endpoints that start work."""
    path = f"{V1}/sessions/{session.pk}"
    ada, key = person(session.owner), program(session.owner)
    return {
        "a browser": lambda: ada.post(f"{path}/messages", {"text": "Hello"}, content_type=JSON),
        "a key": lambda: key.post(f"{path}/messages", {"text": "Hello"}, content_type=JSON),
        "a question aside": lambda: ada.post(f"{path}/side", {"question": "Hello?"}, content_type=JSON),
        "a summary": lambda: ada.post(f"{path}/compact", {}, content_type=JSON),
    }


def test_rest_refuses_with_all_there_is_to_know(spent):
    """B7.1, B16.4: a message, a side question, a summary; by cookie and by key"""
    for door, knock in sayings(spent).items():
        answer = knock()
        assert answer.status_code == 429, door
        is_whole(answer.json()["error"])
        assert int(answer.headers["Retry-After"]) >= 1
    nothing_stayed()
    assert lease_of(spent) == {}


def test_the_page_keeps_the_draft(spent):
    """B7.1: without a script too; a first message, and one after /new, leave no empty chat behind"""
    ada = person(spent.owner)
    before = Session.objects.filter(deleted_at=None).count()
    for path in (f"/chat/{spent.pk}/send/", "/chat/start/"):
        page = ada.post(path, {"text": "A long thought"})
        assert page.status_code == 429
        assert "You&#x27;ve reached your weekly limit." in page.content.decode()
        assert "A long thought" in page.content.decode()
    assert ada.post(f"/chat/{spent.pk}/send/", {"text": "/new A thought"}).status_code == 429
    nothing_stayed()
    assert Session.objects.filter(deleted_at=None).count() == before


def test_a_retry_is_refused(session, model):
    """B7, T3.2: nothing is taken from the transcript"""
    model.will(ScriptedText("Aye."))
    turn_id = start(session)
    ended(turn_id)
    until(lambda: lease_of(session) == {})
    said = Message.objects.get(session=session, kind="user")
    record_usage(session.owner, WEEK)
    again = {"act": "retry", "message_id": str(said.pk)}
    refused = person(session.owner).post(f"{V1}/sessions/{session.pk}/branches", again, content_type=JSON)
    assert refused.status_code == 429
    is_whole(refused.json()["error"])
    assert Turn.objects.filter(session=session).count() == 1


@pytest.mark.django_db(transaction=True)
async def test_the_socket_refuses_with_all_there_is_to_know():
    """B7.1, B16.4"""
    session = await run_in_thread(factories.session)
    owner = await run_in_thread(lambda: User.objects.get(pk=session.owner_id))
    await run_in_thread(record_usage, owner, WEEK)
    async with connected(owner) as socket:
        refused = await socket.ask("message.send", session_id=str(session.pk), text="Hello")
    assert refused["kind"] == "error"
    is_whole(refused)
    assert refused["retry_after_seconds"] >= 1
    await run_in_thread(nothing_stayed)


def test_bots_and_chat_platforms_refuse(spent, settings, monkeypatch):
    """B7.1, B4.6: by REST for bots and by a platform's own webhook; in a server the owner's limit counts"""
    link_ada()
    link_guild()
    bot = caller()
    for said in (bot.say("k1"), bot.post("turns", channel(), **{"Idempotency-Key": "k2"})):
        assert (said.status_code, code_of(said)) == (429, "limit_reached")
    link_ada("scripted", "42", bot_account="scripted-bot")
    with chatting(settings, monkeypatch):
        chat = ScriptedChat()
        assert chat.say("Hello").status_code == 200
        until(lambda: chat.texts() and handled())
        assert str(WEEK) not in chat.last()
    nothing_stayed()


def test_a_schedule_is_refused_and_waits_for_its_next_hour(spent):
    """B7.1: written down as refused; it is not the task's fault, so it stays on"""
    asked = schedules.ScheduleRequest(prompt="Look", cron="0 8 * * *", timezone="UTC", session_id=spent.pk)
    task = schedules.create_schedule(spent.owner_id, asked, UNRESTRICTED)
    Schedule.objects.filter(pk=task.pk).update(next_run=datetime.now(UTC) - timedelta(minutes=1))
    runner.run_due_schedules()
    nothing_stayed()
    [run] = ScheduleRun.objects.filter(schedule=task)
    assert (run.outcome, run.reason) == ("refused", "limit_reached")
    task.refresh_from_db()
    assert task.next_run > datetime.now(UTC)


def test_a_child_is_refused_and_its_parent_continues(session, model):
    """B7: the tool's answer names the window and its reset; nothing stays of the child"""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"limit_binds_running_turns": False})
    policies.clear_policy_cache()
    model.will(ScriptedText("First."), cue(1), ScriptedCall("run_sub_session", {"prompt": "Look into it"}))
    turn_id = start(session)
    model.reaches(1)
    record_usage(session.owner, WEEK)
    model.give(1)
    assert ended(turn_id).status == "succeeded"
    answer = Message.objects.get(turn=turn_id, kind="tool_result").content
    assert "limit_reached" in answer
    assert "weekly limit. It resets on" in answer
    assert not Session.objects.filter(parent=session, deleted_at=None).exists()


@pytest.mark.parametrize(
    ("opens", "door", "body"),
    [
        ("copilot.chat.branches._open_version_turn", "branches", {"act": "retry"}),
        ("copilot.chat.turns.open_compaction_turn", "compact", {}),
    ],
    ids=["retry", "compaction"],
)
def test_what_could_not_be_written_holds_nothing(session, model, monkeypatch, opens, door, body):
    """B6.7, B7.1: nothing is held for a turn that never opened, and the session is free"""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 600_000})
    policies.clear_policy_cache()
    model.will(ScriptedText("Aye."))
    ended(start(session))
    until(lambda: lease_of(session) == {} and redis_counters.read_open_holds(session.owner_id) == [])
    if door == "branches":
        body = body | {"message_id": str(Message.objects.get(session=session, kind="user").pk)}

    def away(*args, **kwargs):
        raise OperationalError

    monkeypatch.setattr(opens, away)
    refused = person(session.owner).post(f"{V1}/sessions/{session.pk}/{door}", body, content_type=JSON)
    assert refused.status_code == 503
    assert (redis_counters.read_open_holds(session.owner_id), lease_of(session)) == ([], {})


def test_a_decision_that_would_resume_is_refused(session, model, monkeypatch):
    """B7, A11.4: it is not taken, and the turn stays waiting"""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    model.will(ScriptedCall("pay"))
    start(session)
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    record_usage(session.owner, WEEK)
    [asked] = Approval.objects.all()
    with pytest.raises(TooManyRequests) as refused:
        approval_decisions.decide_approvals(
            session.owner_id, [DecideApproval(approval_id=asked.pk, decision="approve")]
        )
    is_whole({"code": refused.value.code, **refused.value.details})
    asked.refresh_from_db()
    assert (asked.state, Turn.objects.get().status) == ("requested", "waiting")


def test_a_message_instead_of_a_decision_is_admitted_too(session, model, monkeypatch):
    """B7.1, B6.7: where turns hold money, the turn that takes a paused one's place holds its own, or is refused whole"""
    LimitPolicy.objects.update_or_create(pk=1, defaults={"turn_hold_microdollars": 600_000})
    policies.clear_policy_cache()
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    model.will(ScriptedCall("pay"))
    paused = start(session)
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    redis_counters.renew_hold(session.owner_id, "elsewhere", 1_000_000)
    with pytest.raises(TooManyRequests) as refused:
        say(session, "Forget it")
    assert refused.value.code == "limit_held"
    assert (Turn.objects.get(pk=paused).status, waiting(session), lease_of(session)) == ("waiting", [], {})
    assert not Message.objects.filter(session=session, content="Forget it").exists()
    redis_counters.release_hold(session.owner_id, "elsewhere")
    model.will(ScriptedText("Very well."), cue(1))
    turn_id = start(session, "Forget it")
    model.reaches(1)
    assert [one.hold_id for one in redis_counters.read_open_holds(session.owner_id)] == [str(turn_id)]
    model.give(1)
    ended(turn_id)
    until(lambda: redis_counters.read_open_holds(session.owner_id) == [])


def test_what_is_queued_is_not_sent_now(session, model):
    """B7.3: the user's "Send now" is checked again, and the message keeps its place"""
    model.will(ScriptedText("Talking"), cue(1))
    turn_id = start(session)
    model.reaches(1)
    queue(session, "First")
    [queued] = Message.objects.filter(session=session, sequence=None)
    record_usage(session.owner, WEEK)
    with pytest.raises(TooManyRequests):
        queue_commands.send_queued_message_now(session.owner_id, session.pk, queued.pk)
    with pytest.raises(TooManyRequests):
        queue(session, "Second")
    assert waiting(session) == ["First"]
    model.give(1)
    ended(turn_id)
    until(lambda: told(session.pk, "limit.reached"))
    assert waiting(session) == ["First"]
