"""Many chats at once, and servers that go away meanwhile: nothing is lost or doubled (L27)."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.db.models import Count

from copilot.models import Message, Session
from copilot.providers.scripted import ScriptedText
from linking import tasks
from linking.links import confirmation, tokens
from linking.links.tokens import TokenRequest
from linking.models import PlatformUpdate
from linking.platforms.base import PlatformPlace
from tests.support import factories
from tests.support.platform_chats import ScriptedChat, chatting, handled, link_chat_accounts
from tests.support.programs import run_module
from tests.support.redis_outages import redis_away
from tests.support.turn_engine import cue, quiet, until

CHATS = 100
SECONDS = 60


@pytest.fixture
def chat(rig, settings, monkeypatch):
    with chatting(settings, monkeypatch):
        link_chat_accounts("scripted-ada")
        yield ScriptedChat()


def test_webhooks_store_while_redis_is_down_and_everybody_is_answered_once_afterwards(
    chat: ScriptedChat, model, rig
):
    """A-L27.2"""
    model.will(ScriptedText("One, "), cue(1), ScriptedText("still here."))
    chat.say("first")
    until(lambda: chat.texts() == ["One, "])
    with redis_away():
        assert chat.say("second", number=2).status_code == 200
        assert PlatformUpdate.objects.filter(done_at=None).count() == 1
    model.give(1)
    until(lambda: chat.texts()[0] == "One, still here.")
    quiet(Session.objects.get())  # who comes while it is ending waits in line, and is told so
    PlatformUpdate.objects.filter(done_at=None).update(received_at="2026-01-01T00:00:00Z")
    tasks.sweep()
    until(handled)
    until(lambda: chat.texts() == ["One, still here.", "Aye."])
    assert Message.objects.filter(kind="user").count() == 2


class Member(ScriptedChat):
    """Somebody in a channel of a server."""

    def __init__(self, number: int) -> None:
        super().__init__(f"channel-{number}", f"member-{number}")
        self.place = PlatformPlace(scope="server", server_id="server-9", container_id=self.container)


@pytest.mark.parametrize(
    "updates", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_a_burst_from_one_server_comes_through_whole(
    chat: ScriptedChat, model, settings, monkeypatch, updates
):
    """L27: each update twice and in any order, by eight clients at once; none is lost and none counts double"""
    settings.LINK_CHANNEL_MESSAGES = 10_000
    settings.LINK_SERVER_UPDATES_PER_SECOND = 40  # most of them wait in line
    monkeypatch.setattr("copilot.chat.admission.rate_limits.count_request", lambda *who, **often: None)
    asked = TokenRequest(platform="scripted", bot_account="scripted-bot", subject_id="server-9")
    token = tokens.create_server_token(asked, requester_is_admin=True).token
    confirmation.confirm_server_link(factories.ada(), token, {"member_turns_per_hour": 10_000})
    work = ThreadPoolExecutor(8)
    monkeypatch.setattr(
        tasks,
        "enqueue_update",
        lambda update_id, server_key="", *, throttled=True: work.submit(
            _handle, update_id, server_key, throttled
        ),
    )
    model.otherwise = lambda request: [ScriptedText("Noted.")]
    members = [Member(number) for number in range(updates // 10)]
    knocks = [(member, line) for member in members for line in range(10)] * 2
    random.Random(9).shuffle(knocks)

    def knock(own: list[tuple[Member, int]]) -> None:
        """Post to one webhook after the other; refused, the platform tries again."""
        for member, line in own:
            while (status := member.say(f"line {line}", number=line).status_code) == 503:
                time.sleep(0.1)
            assert status == 200
        connection.close()

    with work, ThreadPoolExecutor(8) as doors:
        list(doors.map(knock, [knocks[first::8] for first in range(8)]))
        until(handled, 300)
    said = Message.objects.filter(kind="user", sequence__isnull=False)
    until(lambda: said.count() == updates, 300)
    assert said.values("session", "content").distinct().count() == updates
    until(lambda: all(one.texts().count("Noted.") == 10 for one in members), 300)
    assert dict(PlatformUpdate.objects.values_list("kind").annotate(Count("id"))) == {"said": updates}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_redis_killed_under_chats_costs_nobody_an_answer():
    """A-L27.2: real processes; webhooks keep storing, turns resume, nobody is answered twice"""
    run_module("tests.platform_load", "--only", "restart", "--chats", "8", "--seconds", "24")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_chats_of_a_message_a_second(chat: ScriptedChat, model, rig, monkeypatch):
    """A-L27.1: for a minute; every message is heard and answered once, or refused in words"""
    work = ThreadPoolExecutor(8)
    monkeypatch.setattr(
        tasks,
        "enqueue_update",
        lambda update_id, server_key="", *, throttled=True: work.submit(
            _handle, update_id, server_key, throttled
        ),
    )
    model.otherwise = lambda request: [ScriptedText("Noted.")]
    users = [f"u{number}" for number in range(CHATS)]
    for user in users:  # each with an account of their own: an account's pace is limited
        link_chat_accounts(user, owner=factories.user(user))
    chats = [ScriptedChat(f"room-{user}", user) for user in users]
    start = threading.Barrier(CHATS)

    def talk(one: ScriptedChat) -> None:
        start.wait(60)
        for line in range(SECONDS):
            began = time.monotonic()
            assert one.say(f"line {line}", number=line).status_code == 200
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))
        connection.close()

    with work, ThreadPoolExecutor(CHATS) as people:
        list(people.map(talk, chats))
        until(handled, 300)
    taken = PlatformUpdate.objects.exclude(outcome="refused")  # a slow machine fills the line of a chat
    heard = {one.container: taken.filter(container_id=one.container).count() for one in chats}
    said = Message.objects.filter(kind="user", sequence__isnull=False)
    until(lambda: said.count() == taken.count(), 300)
    until(lambda: all(one.texts().count("Noted.") == heard[one.container] for one in chats), 300)
    assert said.values("session", "content").distinct().count() == said.count()
    assert PlatformUpdate.objects.count() == CHATS * SECONDS
    assert set(taken.values_list("outcome", flat=True)) <= {"started", "queued"}


def _handle(update_id: int, server_key: str, throttled: bool) -> None:
    try:
        tasks.handle_update(update_id, server_key, throttled)
    finally:
        connection.close()
