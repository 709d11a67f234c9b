"""The native event stream: snapshot, resume, reset, signs of life, and letting go (T8, E3, L10)."""

from __future__ import annotations

import pytest

from config.core.db import run_in_thread
from copilot.accounts import api_keys
from copilot.api import turns
from copilot.realtime import event_log
from copilot.realtime.events import SessionChanged, TextExtended
from copilot.realtime.fanout import EVENT_FANOUT
from tests.support import factories
from tests.support.rest_clients import NOBODYS, NOT_FOUND, V1, eventually, opened
from tests.support.timeouts import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada():
    return factories.ada()


@pytest.fixture
def token(ada):
    return api_keys.create_api_key(ada).token


@pytest.fixture
def session(ada):
    made = factories.session(ada, title="Boats")
    factories.message(made, content="Ahoy")
    return made


@pytest.fixture
def path(session):
    return f"{V1}/sessions/{session.pk}/stream"


def listed(value):
    assert isinstance(value, list)
    return value


def publish(session, *titles):
    """Changes of the title, one event each; the cursor of the last."""
    happened = [
        (SessionChanged(title=title, pinned=False, archived=False, state="idle"), None) for title in titles
    ]
    return event_log.append_events(str(session.pk), happened)


async def test_without_a_cursor_there_is_one_snapshot_and_then_what_happens(session, token, path):
    """T8.3"""
    await run_in_thread(publish, session, "before")
    async with opened(path, token) as read:
        assert (read.status, read.headers["content-type"]) == (200, "text/event-stream")
        assert read.headers["cache-control"] == "no-store"
        assert read.headers["x-accel-buffering"] == "no"
        snapshot = await read.frame()
        assert snapshot.event == snapshot.data["kind"] == "session.snapshot"
        assert [message["content"] for message in listed(snapshot.data["messages"])] == ["Ahoy"]
        assert (snapshot.data["reset"], snapshot.data["cursor"]) == (False, snapshot.id)
        cursor = await run_in_thread(publish, session, "after")
        frame = await read.frame()
        assert (frame.id, frame.event, frame.data["title"]) == (cursor, "session.changed", "after")
        assert frame.data["session_id"] == str(session.pk)


async def test_a_cursor_gives_everything_after_it_once_and_in_order(session, token, path):
    """T8.2"""
    cursor = await run_in_thread(publish, session, "seen")
    await run_in_thread(publish, session, "1", "2", "3")
    for resumed in ({"path": f"{path}?cursor={cursor}"}, {"path": path, "last_event_id": cursor}):
        async with opened(resumed.pop("path"), token, **resumed) as read:
            await run_in_thread(publish, session, "live")
            assert [(await read.frame()).data["title"] for _ in range(4)] == ["1", "2", "3", "live"]
        await run_in_thread(trim, session)
        await run_in_thread(publish, session, "1", "2", "3")


def trim(session):
    """Back to the first event."""
    from config.core.redis import get_redis
    from copilot.realtime import redis_keys

    for entry in event_log.read_recent(str(session.pk), count=100)[1:]:
        get_redis().xdel(redis_keys.event_log_key(str(session.pk)), entry.cursor)


async def test_the_header_goes_before_the_query(session, token, path):
    """A browser's EventSource reconnects to its first URL."""
    first = await run_in_thread(publish, session, "1")
    second = await run_in_thread(publish, session, "2")
    await run_in_thread(publish, session, "3")
    async with opened(f"{path}?cursor={first}", token, last_event_id=second) as read:
        assert (await read.frame()).data["title"] == "3"


async def test_a_cursor_too_old_gives_a_reset_snapshot(session, token, path):
    """T8.2"""
    await run_in_thread(publish, session, "1")
    for lost in ("1-0", "18446744073709551615-1"):
        async with opened(f"{path}?cursor={lost}", token) as read:
            frame = await read.frame()
            assert (frame.event, frame.data["reset"]) == ("session.snapshot", True)


@pytest.mark.parametrize(
    "cursor",
    ["x", "1", "-", "1-1-1", "99999999999999999999-0", "١-١", "1-0%0a", "0-99999999999999999999", "*", "%24"],
)
async def test_a_malformed_cursor_is_400(token, path, cursor):
    """T8.2"""
    async with opened(f"{path}?cursor={cursor}", token) as read:
        body = await read.body()
        assert read.status == 400
        assert b'"invalid_cursor"' in body


async def test_refusals_come_before_the_first_byte_in_the_usual_form(session, token, path):
    async with opened(path, "nonsense") as read:
        assert (read.status, read.headers["content-type"]) == (401, "application/json")
    stranger = await run_in_thread(lambda: api_keys.create_api_key(factories.bob()).token)
    for missing, caller in ((path, stranger), (f"{V1}/sessions/{NOBODYS}/stream", token)):
        async with opened(missing, caller) as read:
            assert (read.status, await read.body()) == (404, NOT_FOUND)
    async with opened(path, token, accept="application/json") as read:
        assert read.status == 406
    async with opened(f"{path}?limit=3", token) as read:
        assert read.status == 400


async def test_a_key_without_read_may_not_listen(ada, path):
    """A20.6"""
    token = await run_in_thread(lambda: api_keys.create_api_key(ada, scopes=("chat",)).token)
    async with opened(path, token) as read:
        assert read.status == 403


async def test_a_reader_that_hangs_up_is_let_go_of(session, token, path):
    """T8.6"""
    async with opened(path, token) as read:
        await read.frame()
        assert str(session.pk) in EVENT_FANOUT._sessions
    await eventually(lambda: str(session.pk) not in EVENT_FANOUT._sessions)


async def test_silence_is_filled_with_signs_of_life(monkeypatch, token, path):
    monkeypatch.setattr(turns, "KEEP_ALIVE_SECONDS", 0.05)
    async with opened(path, token) as read:
        await read.frame()
        assert await read.block() == b": keep-alive"
        assert await read.block() == b": keep-alive"


async def test_a_revoked_key_loses_its_open_stream(monkeypatch, ada, path):
    """A-L10.2"""
    monkeypatch.setattr(turns, "KEEP_ALIVE_SECONDS", 0.05)
    key = await run_in_thread(api_keys.create_api_key, ada)
    async with opened(path, key.token) as read:
        await read.frame()
        await run_in_thread(api_keys.revoke_api_key, ada.pk, key.row.id)
        assert (await read.frame()).event == "closed"
        await read.call.wait(timeout=PATIENCE_SECONDS)


async def test_a_deleted_session_ends_its_streams(monkeypatch, ada, session, token, path):
    from copilot.chat import sessions

    monkeypatch.setattr(turns, "KEEP_ALIVE_SECONDS", 0.05)
    async with opened(path, token) as read:
        await read.frame()
        await run_in_thread(sessions.delete_session, ada.pk, session.pk)
        *told, closed = await read.until("closed")
        assert (closed.event, closed.data) == ("closed", {})
        assert all(frame.data["deleted"] is True for frame in told)  # the look may come before the news


async def test_a_reader_that_was_too_slow_gets_a_snapshot_and_continues(monkeypatch, session, token, path):
    """T8.6"""
    from copilot.realtime import fanout

    async with opened(path, token) as read:
        await read.frame()
        monkeypatch.setattr(fanout, "MAX_QUEUED_EVENTS", 3)
        await run_in_thread(publish, session, *"abcdefgh")
        frame = await read.frame()
        assert (frame.event, frame.data["reset"]) == ("session.snapshot", True)
        await run_in_thread(publish, session, "later")
        assert (await read.frame()).data["title"] == "later"


async def test_text_with_line_breaks_stays_in_one_data_line(session, token, path):
    async with opened(path, token) as read:
        await read.frame()
        delta = "one\ntwo\r\n\u2028three\u0085"
        event = TextExtended(block_id="b", row_id=NOBODYS, offset=0, delta=delta)
        await run_in_thread(event_log.append_events, str(session.pk), [(event, NOBODYS)])
        assert (await read.frame()).data["delta"] == delta
