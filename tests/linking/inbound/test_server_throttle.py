"""A server's burst waits in line, and nobody else does (L27)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from msgspec.structs import replace

from linking import tasks
from linking.inbound import updates
from linking.inbound.server_throttle import ServerThrottle, make_server_key
from linking.models import PlatformUpdate
from linking.platforms.base import ButtonPressed, IncomingUpdate, MessageReceived, PlatformPlace, Speaker
from tests.support.turn_engine import until

PER_SECOND = 50
HELD_UP = 777  # somebody is in its way the first time


@pytest.fixture
def handled(settings) -> list[int]:
    settings.LINK_SERVER_UPDATES_PER_SECOND = PER_SECOND
    return []


@pytest.fixture
def line(handled: list[int]) -> ServerThrottle:
    def handle(number: int) -> bool:
        handled.append(number)
        return handled.count(number) > 1 or number != HELD_UP

    return ServerThrottle(handle, clock=lambda: 100.0)


def test_a_seconds_worth_goes_through_and_the_others_come_after_it_in_order(
    line: ServerThrottle, handled: list[int]
):
    """L27: none is lost, none is handled twice, also when the sweep speaks of them again"""
    through = [number for number in range(PER_SECOND + 6) if line.try_pass("a server", number)]
    assert through == list(range(PER_SECOND + 1))
    assert not line.try_pass("a server", PER_SECOND + 5)  # it is queued already
    until(lambda: len(handled) == 5)
    assert handled == list(range(PER_SECOND + 1, PER_SECOND + 6))
    assert not line.try_pass("a server", 1000)  # a queue that was empty starts again
    until(lambda: handled[-1] == 1000)


def test_a_line_of_one_server_holds_up_no_other(line: ServerThrottle, handled: list[int]):
    """L27"""
    while line.try_pass("a crowded server", 0):
        pass
    assert line.try_pass("a quiet server", 1)
    until(lambda: handled == [0])


def test_who_finds_somebody_in_the_way_lines_up_once_more(line: ServerThrottle, handled: list[int]):
    """L18, L27: it is not left to the sweep"""
    line.enqueue("a server", HELD_UP)
    until(lambda: handled == [HELD_UP, HELD_UP])


def test_a_direct_message_belongs_to_no_crowd():
    assert make_server_key("telegram", "") == ""
    assert make_server_key("telegram", "s1") != make_server_key("discord", "s1")
    assert "s1" not in make_server_key("telegram", "s1")  # it travels through the broker


def said(number: int) -> IncomingUpdate:
    place = PlatformPlace(scope="server", server_id="server-9", container_id="channel-1")
    words = MessageReceived(
        speaker=Speaker(user_id="member"), message_id=str(number), text="Hello", mentioned=True
    )
    return IncomingUpdate(update_key=f"key-{number}", place=place, what=words)


@pytest.mark.django_db(transaction=True)
def test_in_line_one_update_is_handled_at_a_time_and_a_poisoned_one_fails_alone():
    """L18, L27"""
    first, second = (updates.store_update("scripted", "scripted-bot", said(number)) for number in (1, 2))
    assert first is not None
    assert second is not None
    tried: list[str] = []

    def handle(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
        tried.append(incoming.update_key)
        if incoming.update_key == "key-1":
            raise updates.UpdateHandlerFailed("ValueError")
        return "started"

    updates.handle_updates_until(first, handle)
    assert tried == ["key-1"] * updates.MAX_ATTEMPTS
    assert outcomes() == ["failed", ""]
    updates.handle_updates_until(second, handle)
    assert outcomes() == ["failed", "started"]


def outcomes() -> list[str]:
    return list(PlatformUpdate.objects.order_by("pk").values_list("outcome", flat=True))


@pytest.mark.django_db(transaction=True)
def test_the_update_handled_first_is_preceded_by_earlier_updates_of_its_place():
    """A-L18.4: the order of a place is kept, and nobody is left whose turn was used for another"""
    first, second, third = (
        updates.store_update("scripted", "scripted-bot", said(number)) for number in (1, 2, 3)
    )
    tried: list[str] = []

    def handle(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
        tried.append(incoming.update_key)
        return "started"

    for number in (second, first, third):
        assert number is not None
        assert updates.handle_updates_until(number, handle)
    assert tried == ["key-1", "key-2", "key-3"]


ASKED = MessageReceived(speaker=Speaker(user_id="member"), message_id="m", text="Hello", mentioned=True)


@pytest.mark.parametrize(
    ("what", "waits"),
    [
        (ASKED, True),
        (replace(ASKED, mentioned=False, names=("bot",)), True),
        (replace(ASKED, mentioned=False), False),
        (replace(ASKED, text="/stop"), False),
        (ButtonPressed(speaker=ASKED.speaker, message_id="m", code="c", reply_token=""), False),
    ],
)
def test_only_words_for_us_wait_in_line(what, waits):
    """L14, T7.1: a Stop, a decision and what members say to each other wait behind no crowd"""
    assert updates.is_throttled(what) is waits


@pytest.mark.django_db(transaction=True)
def test_what_waits_in_no_line_comes_soon_though_somebody_is_at_its_place(monkeypatch, settings):
    """L18, L27: behind a line that is minutes long"""
    settings.LINK_SERVER_UPDATES_PER_SECOND = 1
    handled: list[str] = []

    def attempt(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
        handled.append(incoming.update_key)
        return "started"

    monkeypatch.setattr(tasks, "_handle_update_safely", attempt)
    number = updates.store_update("scripted", "scripted-bot", said(1))
    assert number is not None
    for _ in range(600):
        tasks.SERVER_THROTTLE._reserve_slot("crowd")
    place = updates._lock_place_of_update(number)
    assert place is not None
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(tasks.handle_update, number, "crowd", False).result()
        assert handled == []
        updates._unlock_place(place)
        until(lambda: handled == ["key-1"])
        elsewhere.submit(lambda: connection.close()).result()


@pytest.mark.django_db(transaction=True)
def test_the_sweep_knows_in_which_crowd_an_update_came():
    """L18, L27: what a death left of a burst waits in line again"""
    first = updates.store_update("scripted", "scripted-bot", said(1))
    updates.store_update("scripted", "scripted-bot", said(2))
    PlatformUpdate.objects.update(received_at="2026-01-01T00:00:00Z")
    assert updates.find_overdue_updates() == [(first, make_server_key("scripted", "server-9"))]
