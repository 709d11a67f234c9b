"""Updates count once, are handled in order, and survive the process that handles them (L18)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from django.db import connection

from config.core.errors import ServiceUnavailable
from copilot.models import Message, Question, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from linking import metrics, tasks
from linking.inbound import updates
from linking.models import PlatformUpdate
from linking.platforms.base import IncomingUpdate
from tests.support.platform_chats import ScriptedChat, chatting, handled, link_chat_accounts
from tests.support.turn_engine import quiet, said, until


@pytest.fixture
def chat(rig, settings, monkeypatch):
    with chatting(settings, monkeypatch):
        link_chat_accounts("scripted-ada")
        yield ScriptedChat()


def together(count: int, act) -> None:
    """All at the same instant, each on a connection of its own."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait(20)
        try:
            act(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


def only_turn() -> Turn:
    until(lambda: Turn.objects.filter(status="succeeded").count() == Turn.objects.count() > 0)
    return Turn.objects.get()


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_the_same_update_fifty_times_is_one_message_and_one_turn(chat: ScriptedChat, rounds):
    """A-L18.1: posted in parallel"""
    for number in range(1, rounds + 1):
        answers: list[int] = []
        together(50, lambda _: answers.append(chat.say("Hello", number=number).status_code))
        assert answers == [200] * 50
        until(handled)
        until(lambda: Turn.objects.filter(status="succeeded").count() == number)
        assert Message.objects.filter(kind="user").count() == Turn.objects.count() == number
        until(lambda: chat.texts().count("Aye.") == number)
        assert PlatformUpdate.objects.count() == number


def test_a_worker_that_dies_before_it_marks_an_update_leaves_no_second_message(
    chat: ScriptedChat, monkeypatch
):
    """A-L18.2: between the message's row and the mark"""
    with monkeypatch.context() as dying:
        dying.setattr(updates, "_finish_update", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            chat.say("Hello")
    assert PlatformUpdate.objects.get().done_at is None
    turn = only_turn()
    tasks.handle_update(PlatformUpdate.objects.get().pk)
    assert handled()
    assert only_turn() == turn
    assert Message.objects.filter(kind="user").count() == 1


def dies_before_the_mark(chat: ScriptedChat, text: str, monkeypatch) -> int:
    """The update, heard and not marked."""
    with monkeypatch.context() as dying:
        dying.setattr(updates, "_finish_update", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            chat.say(text)
    return PlatformUpdate.objects.get(done_at=None).pk


def test_an_answer_that_comes_again_after_a_death_is_no_message(chat: ScriptedChat, model, monkeypatch):
    """A-L18.2, L14: its question is closed by then; it was this answer that closed it"""
    model.will(ScriptedCall("ask_user", {"question": "Red or blue?"}))
    model.will(ScriptedText("Blue it is."))
    chat.say("Paint it")
    until(lambda: Question.objects.filter(outcome="open").exists())
    number = dies_before_the_mark(chat, "blue", monkeypatch)
    only_turn()
    tasks.handle_update(number)
    assert PlatformUpdate.objects.get(pk=number).outcome == "answered"
    assert (Turn.objects.count(), Message.objects.filter(kind="user").count()) == (1, 1)


def test_a_message_that_comes_again_after_a_death_does_not_answer_what_it_led_to(
    chat: ScriptedChat, model, monkeypatch
):
    """A-L18.2, L14: its own turn asks something meanwhile"""
    model.will(ScriptedCall("ask_user", {"question": "Red or blue?"}))
    number = dies_before_the_mark(chat, "Paint it", monkeypatch)
    until(lambda: Question.objects.filter(outcome="open").exists())
    tasks.handle_update(number)
    assert PlatformUpdate.objects.get(pk=number).outcome == "started"
    assert Question.objects.get().outcome == "open"


def test_an_update_is_handled_in_few_statements(
    chat: ScriptedChat, monkeypatch, django_assert_max_num_queries
):
    """L27: somebody waits for every round trip"""
    chat.say("Hello")  # opens the conversation
    until(lambda: chat.texts() == ["Aye."])
    quiet(Session.objects.get())
    monkeypatch.setattr(tasks, "enqueue_update", lambda *told, **how: None)
    number = stored(chat, "Hello again", 2)
    with django_assert_max_num_queries(12):
        tasks.handle_update(number)
    assert handled()


@pytest.mark.parametrize("rounds", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_updates_of_one_chat_are_handled_in_the_order_of_their_arrival(
    chat: ScriptedChat, rig, rounds, monkeypatch
):
    """A-L18.4: however many workers are told of them, and in which order"""
    monkeypatch.setattr("copilot.chat.admission.rate_limits.count_request", lambda *who, **often: None)
    for first in range(0, 8 * rounds, 8):
        rig.hold_tasks()
        numbers = [stored(chat, f"line {first + one}", first + one) for one in range(8)]
        rig.run_tasks()
        together(8, lambda one: tasks.handle_update(numbers[7 - one]))
        until(handled)
        heard = Message.objects.filter(kind="user", sequence__isnull=False)
        until(lambda: heard.count() == first + 8)
        session = Turn.objects.first().session
        assert said(session) == [f"line {number}" for number in range(first + 8)]
        quiet(session)


def stored(chat: ScriptedChat, text: str, number: int) -> int:
    found = updates.store_update("scripted", "scripted-bot", chat.incoming(text, number))
    assert found is not None
    return found


def test_an_update_whose_task_was_lost_is_found_by_the_sweep(chat: ScriptedChat):
    """A-L18.2: a crash between the inbox's commit and the broker"""
    number = stored(chat, "Hello", 1)
    tasks.sweep()
    assert not handled()  # it is too fresh to be forgotten
    PlatformUpdate.objects.filter(pk=number).update(received_at="2026-01-01T00:00:00Z")
    tasks.sweep()
    assert handled()
    only_turn()


def test_a_poison_update_fails_alone_and_does_not_block_its_chat(chat: ScriptedChat, monkeypatch):
    """A-L18.4: three tries, then it is marked and counted, and the next one continues"""
    tried: list[str] = []

    def handle(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
        tried.append(incoming.update_key)
        if incoming.update_key == "scripted-room-1.1":
            raise updates.UpdateHandlerFailed("ValueError")
        return "started"

    poison, good = stored(chat, "poison", 1), stored(chat, "good", 2)
    counted = metrics.platform_updates.labels("scripted", "failed")._value.get()
    updates.handle_place_updates(good, handle)
    assert metrics.platform_updates.labels("scripted", "failed")._value.get() == counted + 1
    assert tried == ["scripted-room-1.1"] * 3 + ["scripted-room-1.2"]
    outcomes = dict(PlatformUpdate.objects.values_list("pk", "outcome"))
    assert outcomes == {poison: "failed", good: "started"}
    assert not PlatformUpdate.objects.exclude(payload=None).exists()


def test_what_only_time_can_mend_is_no_failure_and_keeps_the_order(chat: ScriptedChat):
    """A-L27.2: Redis is away: updates wait, and nothing overtakes"""

    def away(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
        raise ServiceUnavailable

    first, second = stored(chat, "one", 1), stored(chat, "two", 2)
    for _ in range(5):
        updates.handle_place_updates(second, away)
    assert list(PlatformUpdate.objects.values_list("attempts", flat=True)) == [0, 0]
    order: list[str] = []

    def back(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
        order.append(incoming.update_key)
        return "started"

    updates.handle_place_updates(first, back)
    assert order == ["scripted-room-1.1", "scripted-room-1.2"]


def test_an_identity_that_restarts_at_a_lower_number_is_a_new_update(chat: ScriptedChat):
    """A-L21.1: membership, never "greater than the last" """
    assert stored(chat, "before", 5_000_000)
    assert stored(chat, "after a quiet week", 4_000_000)
    assert updates.store_update("scripted", "scripted-bot", chat.incoming("again", 4_000_000)) is None


def test_what_is_stored_together_keeps_its_order_and_counts_once(chat: ScriptedChat):
    """L18: also beside itself, and beside the same message under another update's key"""
    first, second, twin = (chat.incoming("words", number) for number in (3, 2, 9))
    same_message = msgspec.structs.replace(first, update_key="another")
    rows = [
        updates._to_row("scripted", "scripted-bot", one) for one in (first, second, first, same_message, twin)
    ]
    numbers = updates._store_rows(rows)
    assert numbers[2:4] == [None, None]
    kept = [number for number in numbers if number]
    assert kept == sorted(kept)
    assert list(PlatformUpdate.objects.order_by("pk").values_list("pk", "update_key")) == [
        (numbers[0], first.update_key),
        (numbers[1], second.update_key),
        (numbers[4], twin.update_key),
    ]
    assert updates._store_rows(rows) == [None] * 5


def test_keys_are_kept_for_a_week_and_payloads_only_until_they_are_handled(chat: ScriptedChat):
    """A-L25.1: and of unlinked people only the key and the kind"""
    stranger = ScriptedChat("elsewhere", user="77")
    stranger.say("my secret diary")
    until(handled)
    row = PlatformUpdate.objects.get()
    assert (row.payload, row.container_id, row.outcome, row.kind) == (None, "", "unlinked", "said")
    PlatformUpdate.objects.update(received_at="2026-01-01T00:00:00Z")
    assert updates.purge_updates() == 1


@pytest.mark.parametrize("text", ["/help", "/link", "/start", "", "x" * 70_000], ids=lambda text: text[:6])
def test_only_the_keys_of_an_unlinked_persons_update_are_kept(chat: ScriptedChat, text):
    """L25: also a command that is obeyed, and what is refused before anybody asks who sent it"""
    stranger = ScriptedChat("elsewhere", user="77")
    stranger.say(text)
    until(handled)
    row = PlatformUpdate.objects.get()
    assert (row.payload, row.container_id, row.thread_id) == (None, "", "")
    chat.say("Hello")
    chat.say("/status")
    until(handled)
    kept = PlatformUpdate.objects.exclude(pk=row.pk).values_list("container_id", flat=True)
    assert list(kept) == [chat.container] * 2


def test_many_chats_at_once_lose_and_double_nothing(chat: ScriptedChat, model):
    """A-L27.1: in small: ten chats, three messages each"""
    users = [f"u{number}" for number in range(10)]
    link_chat_accounts(*users)
    model.otherwise = lambda request: [ScriptedText("Noted.")]
    chats = [ScriptedChat(f"room-{user}", user) for user in users]

    def talk(number: int) -> None:
        for line in range(3):
            assert chats[number].say(f"{number}/{line}", number=line).status_code == 200

    together(10, talk)
    until(handled, 60)
    until(lambda: Message.objects.filter(kind="user", sequence__isnull=False).count() == 30, 60)
    until(lambda: all(one.texts().count("Noted.") == 3 for one in chats), 60)
