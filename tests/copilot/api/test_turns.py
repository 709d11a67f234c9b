"""Waiting for a result over REST (T10, E3)."""

from __future__ import annotations

import pytest

from copilot.accounts import api_keys
from copilot.realtime.fanout import EVENT_FANOUT
from tests.support import factories
from tests.support.rest_clients import NOBODYS, NOT_FOUND, V1, eventually, opened

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def token():
    return api_keys.create_api_key(factories.ada()).token


@pytest.fixture
def turn():
    made = factories.turn(factories.session(factories.ada()), "running", run_ids=["r1"])
    factories.message(made.session, content="hi", turn=made, run_id="r1")
    factories.message(made.session, "assistant", content="So far", turn=made)
    return made


async def test_waiting_answers_when_the_time_is_up(token, turn):
    async with opened(f"{V1}/turns/{turn.pk}/wait?timeout=0", token) as call:
        assert (call.status, call.headers["content-type"]) == (200, "application/json")
        assert b'"status":"running","text":"So far"' in await call.body()


async def test_waiting_takes_the_run_id_of_a_message(token, turn):
    async with opened(f"{V1}/turns/{turn.pk}/wait?timeout=0.1&run_id=r1", token) as call:
        assert call.status == 200
    async with opened(f"{V1}/turns/{turn.pk}/wait?timeout=0&run_id=other", token) as call:
        assert (call.status, await call.body()) == (404, NOT_FOUND)


@pytest.mark.parametrize(
    "query",
    ["timeout=301", "timeout=-1", "timeout=x", "timeout=nan", "timeout=inf", "run_id=%20", "run_id=", "x=1"],
)
async def test_odd_questions_are_400(token, turn, query):
    async with opened(f"{V1}/turns/{turn.pk}/wait?{query}", token) as call:
        assert call.status == 400
        assert b'"invalid_request"' in await call.body()


async def test_unknown_turns_are_404_and_missing_credentials_are_401(token, turn):
    async with opened(f"{V1}/turns/{NOBODYS}/wait", token) as call:
        assert (call.status, await call.body()) == (404, NOT_FOUND)
    async with opened(f"{V1}/turns/{turn.pk}/wait", "nonsense") as call:
        assert call.status == 401
        assert call.headers["www-authenticate"].startswith("Bearer")


async def test_a_waiter_that_hangs_up_is_let_go_of(token, turn):
    """T10"""
    from tests.support.rest_clients import Stream

    call = Stream(f"{V1}/turns/{turn.pk}/wait?timeout=300", token, {})
    await call.call.send_input({"type": "http.request", "body": b"", "more_body": False})
    await eventually(lambda: str(turn.session_id) in EVENT_FANOUT._sessions)
    await call.hang_up()
    await eventually(lambda: str(turn.session_id) not in EVENT_FANOUT._sessions)
