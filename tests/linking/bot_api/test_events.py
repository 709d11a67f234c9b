"""Bots read their own turns from a cursor, once and in order, and nobody else's (L2, L10, L13)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync

from config.core.errors import ServiceUnavailable
from copilot.models import Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedReasoning, ScriptedText
from copilot.realtime import event_log, fanout
from linking import errors
from linking.bot_api import events
from linking.bot_api.events import EventVisibility
from linking.event_projection import PROJECTIONS
from linking.links import bot_keys
from linking.models import BotKey
from tests.support import factories
from tests.support.bots import V1, Caller, caller, link_ada
from tests.support.rest_clients import NOBODYS, NOT_FOUND, Frame, code_of, opened
from tests.support.turn_engine import cue, ended, quiet, say, start


@pytest.fixture
def bot(rig) -> Caller:
    link_ada()
    return caller()


def answered(bot: Caller, key: str = "k1", **changes: object) -> dict[str, str]:
    answer = bot.say(key, **changes).json()
    ended(UUID(answer["turn_id"]))
    return answer


def frames(path: str, bot: Caller, *, until_kind: str | None = None, **headers: str) -> list[Frame]:
    """Read a stream to its end, or to a kind."""

    async def read() -> list[Frame]:
        async with opened(f"{V1}/{path}", bot.token, **headers) as stream:
            assert stream.status == 200, await stream.body()
            if until_kind is not None:
                return await stream.until(until_kind)
            body = (await stream.body()).decode()
            blocks = [block for block in body.split("\n\n") if "data: " in block]
            fields = [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]
            return [Frame(one.get("id", ""), one["event"], {"raw": one["data"]}) for one in fields]

    return async_to_sync(read)()


def test_a_reader_that_reconnects_continues_with_the_next_event(bot, model):
    """A-L13.1: disconnected after an event, resumed with its id: none lost, none doubled"""
    model.will(ScriptedText("First."), ScriptedCall("current_time", {}))
    model.will(ScriptedText("Then."), ScriptedCall("current_time", {}))
    model.will(ScriptedText("Last."))
    answer = answered(bot)
    path = f"turns/{answer['turn_id']}/events"
    whole = frames(f"{path}?cursor={answer['cursor']}", bot)
    assert len(whole) > 8
    for place in (0, 6, len(whole) - 2):
        rest = frames(path, bot, last_event_id=whole[place].id)
        assert [one.id for one in rest] == [one.id for one in whole[place + 1 :]]


def test_a_late_reader_gets_all_of_it_and_then_the_end(bot, model):
    """A-L13.2: after the end, with the cursor of the start: full replay, then close; also by long poll"""
    model.will(ScriptedReasoning("hm"), ScriptedText("Done."))
    answer = answered(bot)
    path = f"turns/{answer['turn_id']}/events"
    whole = frames(f"{path}?cursor={answer['cursor']}", bot)
    kinds = [one.event for one in whole]
    assert kinds[0] == "message.added"
    assert kinds[-1] == "turn.succeeded"
    assert set(kinds) <= set(PROJECTIONS)
    polled = bot.get(f"{path}?format=json&cursor={answer['cursor']}").json()
    assert [one["kind"] for one in polled["events"]] == kinds
    assert polled["ended"]
    rest = bot.get(f"{path}?format=json&wait=25&cursor={polled['cursor']}").json()
    assert rest == {"events": [], "cursor": polled["cursor"], "ended": True}


def test_a_long_poll_hears_what_comes_while_it_waits(bot, model):
    """A-L13.2: nothing yet, then news within the wait, at most a page of it"""
    model.will(ScriptedText("Slow"), cue(1), ScriptedText(" answer."))
    answer = bot.say("k1").json()
    model.reaches(1)
    path = f"turns/{answer['turn_id']}/events?format=json"
    seen = bot.get(f"{path}&cursor={answer['cursor']}").json()
    assert not seen["ended"]
    model.give(1)
    kinds: list[str] = []
    while not seen["ended"]:
        seen = bot.get(f"{path}&wait=25&cursor={seen['cursor']}").json()
        kinds += [one["kind"] for one in seen["events"]]
    assert kinds[-1] == "turn.succeeded"


def test_a_lost_cursor_gets_a_new_page_and_a_malformed_one_is_refused(bot, model):
    """A-L13.2: too old → a filtered snapshot with reset, then on; malformed → 400"""
    answer = answered(bot)
    path = f"sessions/{answer['session_id']}/events"
    [page] = frames(f"{path}?cursor=1-1", bot, until_kind="session.snapshot")
    assert page.data["reset"] is True
    assert [row["content"] for row in page.data["messages"]] == ["Hello", "Aye."]
    assert bot.get(f"{path}?format=json&cursor=1-1").json()["events"][0]["kind"] == "session.snapshot"
    refused = bot.get(f"{path}?format=json&cursor=yesterday")
    assert (refused.status_code, code_of(refused)) == (400, "invalid_cursor")


def test_what_is_typed_on_the_web_stays_on_the_web(bot, model):
    """A-L2.3: neither its turn, nor a message of it that joined the bot's own turn"""
    first = answered(bot)
    session = Session.objects.get(pk=first["session_id"])
    web = start(session, "From the page")
    ended(web)
    quiet(session)
    model.will(ScriptedText("One."), cue(1))
    second = bot.say("k2").json()
    model.reaches(1)
    say(session, "Joins it")
    model.give(1)
    ended(UUID(second["turn_id"]))
    quiet(session)
    path = f"sessions/{session.pk}/events?format=json&cursor={first['cursor']}"
    seen = bot.get(path).content.decode()
    assert "From the page" not in seen
    assert "Joins it" not in seen
    assert str(web) not in seen
    snapshot = bot.get(f"sessions/{session.pk}/events?format=json").content.decode()
    assert "From the page" not in snapshot
    assert bot.get(f"turns/{web}").content == NOT_FOUND


def test_another_platforms_or_bots_turn_does_not_exist(bot, model):
    """A-L2.3: by exact id, the same 404 as for an unknown one, at every endpoint that takes an id"""
    answer = answered(bot)
    strangers = [caller("discord", "bot-1"), caller("telegram", "bot-2")]
    turn, session = answer["turn_id"], answer["session_id"]
    doors = [f"turns/{turn}", f"turns/{turn}/events", f"sessions/{session}/events", f"turns/{NOBODYS}/events"]
    for stranger in strangers:
        for door in doors:
            refused = stranger.get(door)
            assert (refused.status_code, refused.content) == (404, NOT_FOUND), door
        for door in (f"turns/{turn}/stop", f"turns/{NOBODYS}/stop"):
            assert stranger.post(door, {"platform_user_id": "ada-1"}).content == NOT_FOUND
    assert Turn.objects.get(pk=turn).status == "succeeded"


def test_no_thought_tool_argument_or_output_goes_out(bot, model):
    """A-L13.4: what the model thought and what tools were given stays with us"""
    model.will(ScriptedReasoning("SECRET-THOUGHT"), ScriptedCall("current_time", {"timezone": "UTC"}))
    model.will(ScriptedText("Noon."))
    answer = answered(bot)
    page = bot.get(f"turns/{answer['turn_id']}/events?format=json&cursor={answer['cursor']}").json()
    text = str(page)
    assert "SECRET-THOUGHT" not in text
    assert "timezone" not in text
    tools = [one for one in page["events"] if one["kind"].startswith("tool.")]
    assert [(one["kind"], one["label"], one["state"]) for one in tools] == [
        ("tool.called", "Current time", "running"),
        ("tool.finished", "Current time", "done"),
    ]


def test_two_hundred_idle_streams_ask_nothing(bot, model, monkeypatch):
    """A-L13.3: no busy loop and no polling: all of a key's streams share one question, once a second"""
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.3)
    asked: list[Sequence[UUID]] = []
    standing = bot_keys.filter_valid_keys

    def counted(key_ids: Sequence[UUID]) -> set[UUID]:
        asked.append(key_ids)
        return standing(key_ids)

    monkeypatch.setattr(bot_keys, "filter_valid_keys", counted)
    answer = answered(bot)
    row = BotKey.objects.get()
    looks: list[object] = []

    async def idle() -> None:
        async def read() -> bytes:
            sight = EventVisibility(bot.bot, UUID(answer["session_id"]))
            held = events.StreamSlot(row)
            async with aclosing(events._generate_frames(sight, answer["cursor"], held)) as frames:
                while b"listening" not in await anext(frames):
                    pass
                told = await anext(frames)
            held.connection.close()
            return told

        looks.extend(await asyncio.gather(*(read() for _ in range(200))))

    async_to_sync(idle)()
    assert set(looks) == {b": keep-alive\n\n"}
    assert all(len(key_ids) == 1 for key_ids in asked)


def test_a_revoked_key_ends_its_stream_and_opens_none(bot, model):
    """A-L10.2: with `event: closed`, and the next call is 401"""
    answer = answered(bot)

    async def read() -> bytes:
        async with opened(f"{V1}/sessions/{answer['session_id']}/events", bot.token) as stream:
            await stream.until("session.snapshot")
            await BotKey.objects.aupdate(revoked_at=factories.timezone.now())
            return await stream.body()

    assert b"event: closed" in async_to_sync(read)()
    assert bot.get("me").status_code == 401


def test_a_key_has_so_many_streams_and_a_closed_one_makes_room(bot, model, settings):
    """A-L13.3: beyond the limit 429 with Retry-After; what was closed counts no more"""
    settings.BOT_KEY_STREAMS = 2
    row = BotKey.objects.get()
    held = [events.StreamSlot(row) for _ in range(3)]
    held[0].acquire()
    held[1].acquire()
    with pytest.raises(errors.RateLimited):
        held[2].acquire()
    held[0].release()
    held[2].acquire()
    settings.BOT_KEY_STREAMS = 1
    refused = bot.get(f"sessions/{answered(bot)['session_id']}/events")
    assert (refused.status_code, refused["Retry-After"]) == (429, "15")


def test_a_stream_that_is_refused_before_its_first_byte_holds_no_place(bot, model, settings, monkeypatch):
    """A-L13.3: the log is away when it is opened; the key's next stream is not refused for that"""
    settings.BOT_KEY_STREAMS = 1
    path = f"sessions/{answered(bot)['session_id']}/events?cursor=0-0"

    async def away(*asked: object) -> list[event_log.LogEntry]:
        raise ServiceUnavailable

    with monkeypatch.context() as outage:
        outage.setattr(fanout, "read_page_after", away)
        assert bot.get(path).status_code == 503
    events.StreamSlot(BotKey.objects.get()).acquire()


def test_a_session_stream_ends_after_its_time(bot, model, monkeypatch):
    """A-L13.1: ten minutes, then the client comes back with its cursor"""
    monkeypatch.setattr(events, "KEEP_ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(events, "MAX_SESSION_STREAM_SECONDS", 0.0)
    answer = answered(bot)
    seen = frames(f"sessions/{answer['session_id']}/events?cursor={answer['cursor']}", bot)
    assert seen[-1].event == "turn.succeeded"
