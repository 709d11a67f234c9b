"""Answers in a chat: few edits, nothing lost to a refusal or a death, and an end where nobody can be told (L19)."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import msgspec
import pytest
from django.utils import timezone

from copilot.chat.permissions import UNRESTRICTED
from copilot.chat.turn_context import InboundContext
from copilot.models import Message, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.schedules import services as schedules
from linking import tasks
from linking.models import OutboundMessage, PlatformConversation
from linking.outbound import notices, worker
from linking.outbound import records as outbound_records
from linking.outbound.layout import MessagePage
from linking.outbound.notices import Notice
from linking.outbound.turn_follower import EditInterval, MessageSync
from linking.platforms import scripted
from linking.platforms.base import (
    CallRefused,
    ChatUnreachable,
    FormatRefused,
    MessageGone,
    OutboundAddress,
    OutgoingMessage,
    PlatformBusy,
    PlatformUnavailable,
)
from linking.platforms.scripted import ScriptedAdapter, ScriptedWorld
from tests.platform_fakes import discord, recorded
from tests.support import factories
from tests.support.platform_chats import (
    DiscordChat,
    ScriptedChat,
    chatting,
    close_courier,
    link_chat_accounts,
)
from tests.support.schedules import run_due_schedule
from tests.support.timeouts import PATIENCE_SECONDS
from tests.support.turn_engine import cue, until


@pytest.fixture
def chat(rig, settings, monkeypatch):
    with chatting(settings, monkeypatch):
        link_chat_accounts("scripted-ada")
        scripted.SHARED_WORLD.posted.clear()
        yield ScriptedChat()


def given() -> bool:
    return Turn.objects.exists() and not (
        Turn.objects.exclude(platform_messages__final=True).exists()
        or OutboundMessage.objects.filter(final=False).exists()
    )


def swept_after_death() -> None:
    """Wait until the server has noticed that the outbound worker is gone; then any process sweeps."""
    until(worker.find_undelivered_turns)
    tasks.sweep()


@pytest.mark.django_db(transaction=True)
def test_six_hundred_deltas_in_six_seconds_are_a_handful_of_edits():
    """A-L19.2: at most one per interval, and one more at the end"""
    errand = new_errand()
    now = [100.0]
    world = ScriptedWorld(clock=lambda: now[0])
    adapter = type("Slow", (ScriptedAdapter,), {"min_edit_interval_seconds": {"dm": 1.2}})(
        secret="s", world=world
    )

    async def stream() -> None:
        delivery = MessageSync(errand, adapter)
        delivery.edit_interval = EditInterval(1.2, world.clock)
        text = ""
        for number in range(600):
            now[0] += 0.01
            text += f"{number} "
            await delivery.sync_pages([MessagePage(text[-800:])], final=False)
        now[0] += 1.2
        await delivery.sync_pages([MessagePage(text[-800:])], final=True)

    asyncio.run(stream())
    [message] = world.posted.values()
    assert message.text.endswith("599 ")
    assert 0 < message.edits <= 6 / 1.2 + 1
    assert world.calls.count("edit") == message.edits  # and none was refused for being too fast


@pytest.mark.django_db(transaction=True)
def test_words_that_were_not_said_after_all_do_not_stay_behind_the_answer():
    """L19: a model started over and said less; the chat shows what the web shows"""
    world = ScriptedWorld()
    adapter = type("Quick", (ScriptedAdapter,), {"min_edit_interval_seconds": {"dm": 0.0}})(
        secret="s", world=world
    )

    async def stream() -> None:
        delivery = MessageSync(errand, adapter)
        await delivery.sync_pages([MessagePage("One."), MessagePage("Two, and")], final=False)
        await delivery.sync_pages([MessagePage("Only one.")], final=True)

    errand = new_errand()
    asyncio.run(stream())
    assert [one.text for one in world.posted.values()] == ["Only one.", "*Taken back.*"]


def new_errand() -> outbound_records.OutboundTurn:
    session = factories.session()
    place = PlatformConversation.objects.create(
        platform="scripted",
        bot_account="b",
        container_id="c1",
        scope="dm",
        session=session,
        closed_at=timezone.now(),
    )
    return outbound_records.OutboundTurn(
        turn_id=factories.turn(session).pk,
        session_id=session.pk,
        owner_id=session.owner_id,
        conversation_id=place.pk,
        platform="scripted",
        address=OutboundAddress(scope="dm", container_id="c1"),
        status="running",
        sent={},
    )


def test_a_complaint_widens_the_pace_for_a_minute():
    """L19: wait what the platform says, then twice as long between edits, and as before after sixty seconds"""
    now = [100.0]
    pace = EditInterval(1.0, lambda: now[0])
    pace.record_sent()
    assert pace.seconds_left() == 1.0
    pace.record_refusal(5.0)
    assert pace.seconds_left() == 5.0
    now[0] += 5.0
    pace.record_sent()
    assert pace.seconds_left() == 2.0
    now[0] += 60.0
    pace.record_sent()
    assert pace.seconds_left() == 1.0


def test_another_process_continues_to_edit_the_same_message(chat: ScriptedChat, model):
    """A-L19.5: the outbound worker dies in the middle of the answer, and again at its end"""
    model.will(ScriptedText("First half, "), cue(1), ScriptedText("second half."))
    chat.say("Hello")
    until(lambda: chat.texts() == ["First half, "])
    close_courier()
    swept_after_death()
    model.give(1)
    until(given)
    assert chat.texts() == ["First half, second half."]
    close_courier()
    tasks.sweep()
    assert chat.texts() == ["First half, second half."]
    assert worker.find_undelivered_turns() == []


def test_of_a_long_conversation_one_answer_is_owed_once(chat: ScriptedChat, model):
    """L19: the sweep speaks of what is missing and of nothing else, however much was said there before"""
    for number in range(3):
        chat.say(f"Hello {number}")
        until(lambda number=number: Turn.objects.count() == number + 1 and given())
    model.will(ScriptedText("First half, "), cue(1), ScriptedText("second half."))
    chat.say("Once more")
    until(lambda: "First half, " in chat.texts())
    assert worker.find_undelivered_turns() == []  # somebody carries it
    close_courier()
    until(lambda: worker.find_undelivered_turns() == [Turn.objects.latest("created_at").pk])
    tasks.sweep()
    model.give(1)
    until(given)
    assert worker.find_undelivered_turns() == []


def test_a_part_whose_sending_was_cut_off_is_sent_again_under_its_nonce(
    chat: ScriptedChat, model, monkeypatch
):
    """A-L19.5: the platform had it already; it knows the nonce, so people see it once"""
    kept = outbound_records.record_part
    monkeypatch.setattr(
        outbound_records, "record_part", lambda *arguments: (_ for _ in ()).throw(RuntimeError("killed"))
    )
    chat.say("Hello")
    until(lambda: chat.texts() == ["Aye."])
    until(lambda: OutboundMessage.objects.filter(platform_message_id="").count() == 1)
    close_courier()
    monkeypatch.setattr(outbound_records, "record_part", kept)
    until(lambda: Turn.objects.filter(status="succeeded").count() == 1)
    swept_after_death()
    until(given)
    assert chat.texts() == ["Aye."]


@pytest.mark.parametrize("problem", [PlatformBusy(0.05), PlatformUnavailable("down")], ids=["429", "down"])
def test_an_answer_is_not_lost_because_the_platform_refused_it_for_a_while(
    chat: ScriptedChat, problem, monkeypatch
):
    """A-L19.2: wait what it says, then say it whole"""
    monkeypatch.setattr("linking.outbound.turn_follower.FIRST_PAUSE_SECONDS", 0.01)
    scripted.SHARED_WORLD.failures.extend([problem] * 3)
    chat.say("Hello")
    until(given)
    assert chat.texts() == ["Aye."]


def test_a_deleted_message_is_sent_again(chat: ScriptedChat, model):
    model.will(ScriptedText("First half, "), cue(1), ScriptedText("second half."))
    chat.say("Hello")
    until(lambda: chat.texts() == ["First half, "])
    scripted.SHARED_WORLD.posted.clear()  # somebody deleted it
    model.give(1)
    until(given)
    assert chat.texts() == ["First half, second half."]


def test_a_worker_that_continues_after_a_crash_edits_the_message_sent_again(chat: ScriptedChat, model):
    """A-L19.5: the message was deleted before the process died; its second stays the only one"""
    model.will(ScriptedText("One, "), cue(1), ScriptedText("two, "), cue(2), ScriptedText("three."))
    chat.say("Hello")
    until(lambda: chat.texts() == ["One, "])
    scripted.SHARED_WORLD.posted.clear()
    model.give(1)
    until(lambda: chat.texts() == ["One, two, "])
    [stands] = scripted.SHARED_WORLD.list_messages(chat.container)
    until(lambda: OutboundMessage.objects.filter(platform_message_id=stands.id).exists())
    close_courier()
    swept_after_death()
    model.give(2)
    until(given)
    assert chat.texts() == ["One, two, three."]


def test_an_answer_is_not_lost_because_a_step_on_the_way_was_refused(chat: ScriptedChat, model):
    """L19: the platform takes neither of two steps, for good; the whole it takes"""
    model.will(ScriptedText("One, "), cue(1), ScriptedText("two, "), cue(2), ScriptedText("three."))
    scripted.SHARED_WORLD.failures.append(CallRefused("bad"))
    chat.say("Hello")
    until(lambda: not scripted.SHARED_WORLD.failures)
    scripted.SHARED_WORLD.failures.append(CallRefused("bad"))
    model.give(1)
    until(lambda: not scripted.SHARED_WORLD.failures)
    model.give(2)
    until(given)
    assert chat.texts() == ["One, two, three."]


@pytest.mark.parametrize(
    "problem",
    [ChatUnreachable("blocked"), CallRefused("bad"), MessageGone("gone"), FormatRefused("odd")],
    ids=lambda problem: type(problem).__name__,
)
def test_a_turn_continues_and_its_answer_is_kept_where_the_chat_is_unreachable(
    chat: ScriptedChat, problem, monkeypatch
):
    """A-L19.5: nothing more is sent, and the sweep leaves it alone"""

    async def refuse(*arguments: object) -> str:
        raise problem

    monkeypatch.setattr(ScriptedAdapter, "send_message", refuse)
    chat.say("Hello")
    until(given)
    until(lambda: Message.objects.filter(kind="assistant", content="Aye.").exists())
    assert (chat.texts(), worker.find_undelivered_turns()) == ([], [])
    marked = PlatformConversation.objects.exclude(unreachable_at=None).exists()
    assert marked == isinstance(problem, ChatUnreachable)


def test_words_that_were_sent_in_a_crash_are_not_the_last(chat: ScriptedChat, model, monkeypatch):
    """L19: the platform took the first words and dropped the repetition; the whole answer is there all the same"""
    keep, lost = outbound_records.record_part, []

    def crash(*given: object) -> None:
        monkeypatch.setattr(outbound_records, "record_part", keep)
        lost.append(given)

    monkeypatch.setattr(outbound_records, "record_part", crash)
    model.will(ScriptedText("First half, "), cue(1), ScriptedText("second half."))
    chat.say("Hello")
    until(lambda: lost)
    close_courier()
    swept_after_death()
    model.give(1)
    until(given)
    assert chat.texts() == ["First half, second half."]


def test_what_follows_later_stays_on_the_web_once_the_place_is_closed(chat: ScriptedChat, model):
    """L16: a reminder comes into the chat it was asked for in; after `/new` or an unlink it does not"""
    chat.say("Hello")
    until(given)
    turn = Turn.objects.get()
    asked = schedules.ScheduleRequest(
        prompt="Remind me",
        cron="0 9 * * *",
        timezone="UTC",
        session_id=turn.session_id,
        inbound_context=msgspec.convert(turn.inbound_context, InboundContext),
    )
    task = schedules.create_schedule(turn.session.owner_id, asked, UNRESTRICTED)
    model.will(ScriptedText("Water the plants."))
    run_due_schedule(task)
    until(lambda: "Water the plants." in chat.texts())
    PlatformConversation.objects.update(closed_at=timezone.now())
    model.will(ScriptedText("Once more."))
    late = run_due_schedule(task)
    assert not outbound_records.is_delivery_pending(late, worker.get_own_accounts())
    assert worker.find_undelivered_turns() == []
    assert "Once more." not in chat.texts()


def test_a_very_long_answer_is_ten_messages_and_a_file(chat: ScriptedChat, model):
    """A-L19.1: more than ten parts: the whole of it as a file"""
    answer = "\n\n".join(f"Paragraph {number}. " + "word " * 100 for number in range(40))
    model.will(ScriptedText(answer))
    chat.say("Tell me everything")
    until(given)
    assert len(chat.texts()) == 10
    assert [(name, content.decode()) for name, content in scripted.SHARED_WORLD.files] == [
        ("answer.md", answer)
    ]


def test_what_the_agent_made_goes_into_the_chat_once(chat: ScriptedChat, model, monkeypatch):
    """A-L19.5: the last version of each file, after the text; also when the outbound worker dies before recording it"""
    model.will(ScriptedCall("write_file", {"name": "log.txt", "content": "day one"}))
    model.will(
        ScriptedCall("write_file", {"name": "log.txt", "content": "day one\nday two", "overwrite": True}),
        ScriptedCall("write_file", {"name": "huge.txt", "content": "x" * 100_001}),
    )
    model.will(ScriptedText("Here is the log."))
    finish = outbound_records.mark_delivered
    monkeypatch.setattr(
        outbound_records, "mark_delivered", lambda errand: (_ for _ in ()).throw(RuntimeError("killed"))
    )
    chat.say("Keep a log")
    until(lambda: len(chat.texts()) == 2)
    close_courier()
    monkeypatch.setattr(outbound_records, "mark_delivered", finish)
    swept_after_death()
    until(given)
    assert scripted.SHARED_WORLD.files == [("log.txt", b"day one\nday two")]
    assert len(chat.texts()) == 2
    assert chat.texts()[0] == "Here is the log."
    assert "`huge.txt` can't be sent here." in chat.texts()[1]
    assert f"/chat/{Turn.objects.get().session_id}/" in chat.texts()[1]


def test_a_file_that_the_platform_never_takes_is_named_instead(chat: ScriptedChat, model, monkeypatch):
    """A-L19.5: after a few tries its owner is told where it is, and the answer is not held up for ever"""
    monkeypatch.setattr("linking.outbound.turn_follower.FIRST_PAUSE_SECONDS", 0.01)
    model.will(ScriptedCall("write_file", {"name": "log.txt", "content": "day one"}))
    model.will(cue(1), ScriptedText("Here."))
    chat.say("Keep a log")
    model.reaches(1)
    until(lambda: scripted.SHARED_WORLD.typing)

    async def away(*arguments: object) -> str:
        raise PlatformUnavailable("down")

    monkeypatch.setattr(scripted.ScriptedAdapter, "send_file", away)
    model.give(1)
    until(given)
    assert "`log.txt` can't be sent here." in chat.texts()[-1]


def test_the_first_sign_of_life_comes_before_the_answer(chat: ScriptedChat, model):
    """A-L19.2: typing, at once"""
    model.will(cue(1), ScriptedText("Later."))
    chat.say("Hello")
    until(lambda: scripted.SHARED_WORLD.typing)
    assert chat.texts() == []
    model.give(1)
    until(given)


def test_the_sender_of_a_queued_message_learns_its_position(chat: ScriptedChat, model):
    """A-L19.2: and is answered when it is their turn"""
    model.will(cue(1), ScriptedText("One."))
    model.will(ScriptedText("Two."))
    chat.say("first")
    model.reaches(1)
    chat.say("second")
    until(lambda: chat.texts() == ["I'm still working on the last message. Yours is number 1 in the queue."])
    model.give(1)
    until(lambda: chat.texts()[1:] == ["One.", "Two."])
    until(given)


def test_a_turn_of_twenty_minutes_is_answered_although_discords_token_is_void(
    rig, model, settings, monkeypatch
):
    """A-L22.2: the promised reply is filled by its token, the end by the bot itself"""
    fake = discord.Discord()
    with fake.running(), chatting(settings, monkeypatch, discord=fake):
        from linking.links import confirmation, tokens
        from linking.links.tokens import TokenRequest

        asked = TokenRequest(platform="discord", bot_account=fake.app_id, subject_id=recorded.DISCORD_ADA)
        confirmation.confirm_user_link(factories.ada(), tokens.create_user_token(asked).token)
        there = DiscordChat(fake)
        model.will(ScriptedText("It takes long. "), cue(1), ScriptedText("Done."))
        there.say("Hello")
        until(lambda: there.texts() == ["It takes long. "])
        start = fake.clock()
        fake.clock = lambda: start + 20 * 60
        model.give(1)
        until(given)
        assert there.texts() == ["It takes long. Done."]
        assert fake.refused == []


def test_a_notice_is_not_tried_before_the_platform_would_have_it(chat: ScriptedChat):
    """L19: wait what it says; one that could only come much later is not said"""
    to = OutboundAddress(scope="dm", container_id=chat.container)
    scripted.SHARED_WORLD.failures += [PlatformBusy(3600), PlatformBusy(0.01)]
    for text in ("Too late.", "In time."):
        notices.send_first_accepted("scripted", Notice(to=to, text=text))
    worker.wait_until_sent(PATIENCE_SECONDS)
    assert (scripted.SHARED_WORLD.calls, chat.texts()) == (["send"] * 3, ["In time."])


class Held:
    """A platform that takes nothing in one chat until it is let go."""

    def __init__(self, monkeypatch, container: str) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        send = ScriptedAdapter.send_message

        async def held(adapter: ScriptedAdapter, to: OutboundAddress, message: OutgoingMessage) -> str:
            if to.container_id == container:
                self.begun.set()
                assert await asyncio.to_thread(self.may_go_on.wait, PATIENCE_SECONDS)
            return await send(adapter, to, message)

        monkeypatch.setattr(ScriptedAdapter, "send_message", held)


def test_a_chat_where_the_platform_is_slow_keeps_no_other_waiting(chat: ScriptedChat, monkeypatch):
    """L18, L27: sending a notice holds no thread; each chat gets its notices in order"""
    slow, quick = (
        OutboundAddress(scope="dm", container_id=chat.container),
        OutboundAddress(scope="dm", container_id="other"),
    )
    held = Held(monkeypatch, chat.container)
    for text in ("one", "two", "three"):
        notices.send_first_accepted("scripted", Notice(to=slow, text=text))
    notices.send_first_accepted("scripted", Notice(to=quick, text="meanwhile"))
    assert held.begun.wait(PATIENCE_SECONDS)
    until(lambda: [one.text for one in scripted.SHARED_WORLD.list_messages("other")] == ["meanwhile"])
    assert chat.texts() == []
    held.may_go_on.set()
    worker.wait_until_sent(PATIENCE_SECONDS)
    assert chat.texts() == ["one", "two", "three"]


def test_a_place_in_line_is_not_told_where_something_is_being_said(chat: ScriptedChat, monkeypatch):
    """L20: a flooded chat gets one notice, not one for each message"""
    to = OutboundAddress(scope="dm", container_id=chat.container)
    held = Held(monkeypatch, chat.container)
    for position in range(5):
        notices.send_if_idle("scripted", to, f"place {position}")
    assert held.begun.wait(PATIENCE_SECONDS)
    held.may_go_on.set()
    worker.wait_until_sent(PATIENCE_SECONDS)
    assert chat.texts() == ["place 0"]


def test_the_second_of_two_ways_is_taken_where_the_first_is_refused(chat: ScriptedChat):
    """L4: and only if it may be"""
    to = OutboundAddress(scope="server", container_id=chat.container)
    asked: list[str] = []

    def may(answer: bool) -> bool:
        asked.append("asked")
        return answer

    private = Notice(to=to, text="alone", only_for="77")
    for answer in (True, False):
        scripted.SHARED_WORLD.failures.append(ChatUnreachable("no chat of their own"))
        notices.send_first_accepted(
            "scripted", private, Notice(to=to, text="to all", may_send=partial(may, answer))
        )
        worker.wait_until_sent(PATIENCE_SECONDS)
    notices.send_first_accepted(
        "scripted", private, Notice(to=to, text="to all", may_send=partial(may, True))
    )
    worker.wait_until_sent(PATIENCE_SECONDS)
    assert [(one.text, one.only_for) for one in chat.shown()] == [("to all", ""), ("alone", "77")]
    assert asked == ["asked"] * 2
