"""Stop, approve and answer through a bot: who may, once, and what the others are told (L14)."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest

from config.core import errors as core_errors
from copilot.chat import questions, turn_context
from copilot.models import Approval, Message, Question, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from linking.caps import admission
from linking.conversations import services as conversations
from linking.conversations.services import ConversationPlace
from linking.errors import NotLinked
from linking.inbound import commands, controls, messages
from linking.inbound.commands import NewConversationResult, StatusResult, StopResult
from linking.models import Button, PlatformUserLink
from tests.support import factories
from tests.support.bots import Caller, caller, channel, dm, link_ada, link_guild
from tests.support.rest_clients import NOT_FOUND, code_of
from tests.support.turn_engine import (
    Errand,
    add_tools,
    cue,
    ended,
    endings,
    lease_of,
    quiet,
    together,
    told,
    until,
)

ADA, BOB = {"platform_user_id": "ada-1"}, {"platform_user_id": "bob-1"}


@pytest.fixture
def bot(rig, monkeypatch) -> Caller:
    """Ada's direct messages and her server, where guests may request a tool call."""
    add_tools(monkeypatch, Errand("pay", approval="ask"))
    monkeypatch.setattr(admission, "GUEST_TOOLS", admission.GUEST_TOOLS | {"pay"})
    link_ada()
    link_guild()
    return caller()


def say(bot: Caller, key: str, body: dict[str, object]) -> dict[str, str]:
    answer = bot.post("turns", body, **{"Idempotency-Key": key})
    assert answer.status_code in (201, 202), answer.content
    return answer.json()


def asks(bot: Caller, model, body: dict[str, object], key: str = "k1") -> tuple[dict[str, str], Approval]:
    """A turn that waits for a decision, and has let go of everything."""
    model.will(ScriptedText("Let me."), ScriptedCall("pay"))
    answer = say(bot, key, body)
    session = Session.objects.get(pk=answer["session_id"])
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    return answer, Approval.objects.get(turn=answer["turn_id"])


def decide(bot: Caller, approval: Approval, who: dict[str, str], decision: str):
    return bot.post(f"approvals/{approval.pk}/decide", {**who, "decision": decision})


# --- approvals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [4, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_of_two_decisions_at_once_one_counts_and_both_learn_it(bot, model, rounds):
    """A-L14.1: Approve on the phone and Reject on the desktop together, again and again"""
    for number in range(rounds):
        answer, approval = asks(bot, model, dm(container_id=f"dm-{number}"), key=f"k{number}")
        model.will(ScriptedText("Done."))
        answers = together(
            lambda approval=approval: decide(bot, approval, ADA, "approve"),
            lambda approval=approval: decide(bot, approval, ADA, "reject"),
        )
        assert sorted(one.status_code for one in answers) == [200, 409]
        won, lost = sorted(answers, key=lambda one: one.status_code)
        approval.refresh_from_db()
        assert won.json()["state"] in ("approved", "rejected")
        assert lost.json()["error"]["state"] in (won.json()["state"], "running", "done")
        ended(UUID(answer["turn_id"]))


def test_a_member_neither_decides_nor_replays_a_captured_button(bot, model):
    """A-L14.2: 403, and the approval stays open; the owner's press counts, the second is told the state"""
    answer, approval = asks(bot, model, channel())
    codes = conversations.create_buttons(
        UUID(answer["conversation_id"]), "approval", approval.pk, ["approve", "reject"]
    )
    assert {len(code) for code in codes.values()} == {22}
    assert not any(
        word in code for code in codes.values() for word in ("approve", "reject", str(approval.pk))
    )
    refused = decide(bot, approval, BOB, "approve")
    assert (refused.status_code, code_of(refused)) == (403, "not_the_payer")
    with pytest.raises(core_errors.Forbidden):
        controls.press_button(bot.bot, codes["approve"], user_id="bob-1")
    with pytest.raises(core_errors.NotFound):
        controls.press_button(caller("discord").bot, codes["approve"], user_id="ada-1")
    approval.refresh_from_db()
    assert approval.state == "requested"
    pressed = controls.press_button(bot.bot, codes["reject"], user_id="ada-1")
    assert isinstance(pressed, controls.Decided)
    assert (pressed.state, pressed.resumed) == ("rejected", True)
    ended(UUID(answer["turn_id"]))
    with pytest.raises(core_errors.NotFound):
        controls.press_button(bot.bot, codes["approve"], user_id="ada-1")
    assert not Button.objects.exists()


def test_a_member_waits_behind_an_open_approval_and_the_owner_continues_instead(bot, model):
    """A-L14.4: Bob's message is queued and the approval stays open; Ada's own abandons it (A11.8)"""
    answer, approval = asks(bot, model, channel())
    queued = bot.post("turns", channel(text="And now?"), **{"Idempotency-Key": "k2"})
    assert (queued.status_code, queued.json()["turn_id"]) == (202, answer["turn_id"])
    approval.refresh_from_db()
    assert approval.state == "requested"
    say(bot, "k3", channel(platform_user_id="ada-1", text="Leave it."))
    approval.refresh_from_db()
    assert approval.state == "abandoned"
    quiet(Session.objects.get(pk=answer["session_id"]))


def test_a_decision_after_the_stop_gets_the_current_state(bot, model):
    """A-L14.1: 409 with the actual state, after a stop as after another decision"""
    answer, approval = asks(bot, model, dm())
    assert bot.post(f"turns/{answer['turn_id']}/stop", ADA).json()["status"] == "cancelled"
    late = decide(bot, approval, ADA, "approve")
    assert (late.status_code, code_of(late), late.json()["error"]["state"]) == (
        409,
        "approval_closed",
        "cancelled",
    )


# --- stopping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_a_stop_is_as_good_twice_and_after_the_end(bot, model, rounds):
    """A-L14.3: always 200, and one ending"""
    for number in range(rounds):
        model.will(ScriptedText("One"), cue(number))
        answer = say(bot, f"k{number}", dm(container_id=f"dm-{number}"))
        model.reaches(number)
        stop = partial(bot.post, f"turns/{answer['turn_id']}/stop", ADA)
        assert {one.status_code for one in together(stop, stop)} == {200}
        ended(UUID(answer["turn_id"]))
        over = {"turn_id": answer["turn_id"], "state": "ended", "status": "cancelled"}
        assert stop().json() == over
        assert len(endings(UUID(answer["session_id"]))) == 1


def test_only_the_author_and_the_payer_stop(bot, model):
    """A-L14.3: another member gets 403; a queued message is stopped by its run_id, and the running turn continues"""
    model.will(ScriptedText("One"), cue(1))
    answer = say(bot, "k1", channel())
    model.reaches(1)
    queued = say(bot, "k2", channel(platform_user_id="carol-1", text="Two"))
    path = f"turns/{answer['turn_id']}/stop"
    refused = bot.post(path, {"platform_user_id": "carol-1"})
    assert (refused.status_code, code_of(refused)) == (403, "not_yours")
    assert bot.post(path, {**BOB, "run_id": queued["run_id"]}).status_code == 403
    dropped = bot.post(path, {"platform_user_id": "carol-1", "run_id": queued["run_id"]})
    assert dropped.json()["state"] == "dropped"
    assert Turn.objects.get(pk=answer["turn_id"]).status == "running"
    assert bot.post(path, ADA).status_code == 200
    ended(UUID(answer["turn_id"]))


def test_stop_in_a_server_is_for_ones_own_messages(bot, model):
    """L14: `/stop` drops what waits too, of the speaker alone; the payer's stops what runs, and others' messages stay"""
    where = ConversationPlace(
        platform="telegram", bot_account="bot-1", scope="server", container_id="general", server_id="guild"
    )
    model.will(ScriptedText("One"), cue(1))
    answer = say(bot, "k1", channel())
    model.reaches(1)
    say(bot, "k2", channel(platform_user_id="carol-1", text="Two"))
    bobs = say(bot, "k3", channel(text="Three"))
    say(bot, "k4", channel(platform_user_id="ada-1", text="Four"))
    carol = commands.run_command("stop", commands.CommandRequest(where=where, user_id="carol-1"))
    assert carol == StopResult(stopped=1)
    status = commands.run_command("status", commands.CommandRequest(where=where, user_id="carol-1"))
    assert status == StatusResult(linked=True, state="running", waiting=2)
    assert commands.run_command("stop", commands.CommandRequest(where=where, user_id="ada-1")) == StopResult(
        stopped=2
    )
    ended(UUID(answer["turn_id"]))
    session = Session.objects.get(pk=answer["session_id"])
    quiet(session)
    succeeded = session.turns.filter(status="succeeded").values_list("run_ids", flat=True)
    assert (list(succeeded), session.turns.count()) == ([[bobs["run_id"]]], 4)


# --- questions ---------------------------------------------------------------------------------------


def ask(bot: Caller, model, body: dict[str, object]) -> tuple[dict[str, str], Question]:
    model.will(ScriptedCall("ask_user", {"question": "Red or blue?", "choices": ["red", "blue"]}))
    model.will(ScriptedText("So be it."))
    answer = say(bot, "k1", body)
    until(lambda: Question.objects.filter(turn=answer["turn_id"]).exists())
    return answer, Question.objects.get(turn=answer["turn_id"])


def test_only_the_person_who_was_asked_can_answer(bot, model):
    """A-L14.2: in a server the member whose message started the turn, or the owner; a late answer is 409"""
    answer, question = ask(bot, model, channel())
    path = f"questions/{question.pk}/answer"
    refused = bot.post(path, {"platform_user_id": "carol-1", "choice": "red"})
    assert (refused.status_code, code_of(refused)) == (403, "not_yours")
    assert bot.post(path, {**BOB, "choice": "green"}).status_code == 400
    assert bot.post(path, {**BOB, "text": "x" * 4001}).status_code == 400
    assert caller("discord").post(path, {**BOB, "choice": "red"}).content == NOT_FOUND
    assert bot.post(path, {**BOB, "choice": "red"}).status_code == 204
    ended(UUID(answer["turn_id"]))
    late = bot.post(path, {**ADA, "choice": "blue"})
    assert (late.status_code, code_of(late)) == (409, "question_closed")


def test_nothing_is_answered_in_the_name_of_an_account_that_is_shut(bot, model):
    """A-L9.3: not by the person who was asked, and their next message does not count as an answer either"""
    answer, question = ask(bot, model, channel())
    owner = question.session.owner
    owner.is_active = False
    owner.save()
    refused = bot.post(f"questions/{question.pk}/answer", {**BOB, "choice": "red"})
    assert (refused.status_code, code_of(refused)) == (404, "not_linked")
    where = ConversationPlace(
        platform="telegram", bot_account="bot-1", scope="server", container_id="general", server_id="guild"
    )
    able = turn_context.Channel(async_delivery=True, interactive=True)
    with pytest.raises(NotLinked):
        messages.receive_message(
            messages.IncomingMessage(key="u1", where=where, user_id="bob-1", text="red", channel=able)
        )
    question.refresh_from_db()
    assert question.outcome == "open"
    questions.close_question(question.pk, "cancelled")
    ended(UUID(answer["turn_id"]))


def test_the_next_plain_message_answers_and_another_members_waits(bot, model):
    """A-L14.4: our own bots map what the asked person writes; Carol's words queue, and the question stays open"""
    answer, question = ask(bot, model, channel())
    where = ConversationPlace(
        platform="telegram", bot_account="bot-1", scope="server", container_id="general", server_id="guild"
    )
    able = turn_context.Channel(async_delivery=True, interactive=True)
    carol = messages.receive_message(
        messages.IncomingMessage(key="u1", where=where, user_id="carol-1", text="Me too", channel=able)
    )
    assert isinstance(carol, messages.AcceptedMessage)
    assert carol.state == "queued"
    question.refresh_from_db()
    assert question.outcome == "open"
    bob = messages.receive_message(
        messages.IncomingMessage(key="u2", where=where, user_id="bob-1", text="blue", channel=able)
    )
    assert isinstance(bob, messages.AnsweredQuestion)
    question.refresh_from_db()
    assert (question.outcome, question.answer) == ("answered", "blue")
    quiet(Session.objects.get(pk=answer["session_id"]))
    assert Message.objects.filter(kind="user").count() == 2


# --- commands ----------------------------------------------------------------------------------------


def test_every_command_answers_in_values(bot, model, settings):
    """A-L15.2: /help, /link, /unlink, /new, /stop, /status and /settings; unknown ones are no commands"""
    where = ConversationPlace(platform="telegram", bot_account="bot-1", scope="dm", container_id="dm-1")
    ada = commands.CommandRequest(where=where, user_id="ada-1", display_name="Ada")
    stranger = commands.CommandRequest(where=where, user_id="eve-1", display_name="Eve")
    assert [commands.parse_command(text) for text in ("/stop", "/NEW@bot now", "/dance", "stop", " ")] == [
        "stop",
        "new",
        None,
        None,
        None,
    ]
    assert set(commands.run_command("help", ada).commands) == set(commands.COMMANDS)
    assert commands.run_command("status", stranger) == StatusResult(linked=False)
    assert commands.run_command("status", ada) == StatusResult(linked=True)
    assert isinstance(commands.run_command("new", ada), NewConversationResult)
    assert commands.run_command("stop", ada) == StopResult(stopped=0)
    assert commands.run_command("link", stranger).link_url.startswith(settings.LINK_BASE_URL)
    assert commands.run_command("settings", ada).url.endswith("/settings/chats/")
    with pytest.raises(NotLinked):
        commands.run_command("new", stranger)
    commands.run_command("unlink", ada)
    assert not PlatformUserLink.objects.exists()


def test_only_the_owner_unlinks_a_server(bot):
    """A-L15.2: `/unlink` is the linked user's or the owner's"""
    where = ConversationPlace(
        platform="telegram", bot_account="bot-1", scope="server", container_id="general", server_id="guild"
    )
    with pytest.raises(core_errors.Forbidden):
        commands.run_command("unlink", commands.CommandRequest(where=where, user_id="bob-1", is_admin=True))
    commands.run_command("unlink", commands.CommandRequest(where=where, user_id="ada-1"))
    assert not factories.ada().server_links.exists()


def test_new_during_a_turn_lets_it_answer_where_it_began(bot, model):
    """A-L15.2: the old answer completes in the old session, the next message is in a new one"""
    model.will(ScriptedText("Old"), cue(1), ScriptedText(" answer."))
    old = say(bot, "k1", dm())
    model.reaches(1)
    place = {"scope": "dm", "container_id": "dm-1", **ADA}
    fresh = bot.post("conversations/new", place).json()
    later = say(bot, "k2", dm(text="Next"))
    assert later["session_id"] == fresh["session_id"] != old["session_id"]
    model.give(1)
    ended(UUID(old["turn_id"]))
    ended(UUID(later["turn_id"]))
    assert Message.objects.get(turn=old["turn_id"], kind="assistant").content == "Old answer."
