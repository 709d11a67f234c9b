"""Log lines bear the ids of their request and turn, and no secret (D19)."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Iterator
from io import StringIO

import pytest
import structlog

from config import logs
from copilot import context
from copilot.context import CHANNELS, TurnContext
from copilot.permissions import NOTHING


@pytest.fixture
def lines() -> Iterator[StringIO]:
    """Production's lines, caught; logging is as before afterwards."""
    formatter = logs.configuration(production=True, level="INFO")["formatters"]["line"]  # type: ignore[index]
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter.pop("()")(**formatter))
    logger = logging.getLogger("tried.here")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield out
    logger.removeHandler(handler)
    logs.configuration(production=False, level="INFO")


def turn(number: int) -> TurnContext:
    return TurnContext(
        user_id=123456789012 + number,
        session_id=f"session-{number}",
        turn_id=f"turn-{number}",
        fence=number,
        origin="web",
        permissions=NOTHING,
        channel=CHANNELS["web"],
    )


def test_a_line_inside_a_turn_names_request_session_and_turn_a_d19_1(lines: StringIO):
    """A31.5, A-D19.1: and the last eight characters of who it is for"""
    with structlog.contextvars.bound_contextvars(request_id="req-12345678"), context.bound(turn(7)):
        try:
            raise ValueError("tool broke")
        except ValueError:
            logging.getLogger("tried.here").exception("a tool failed")
    record = json.loads(lines.getvalue())
    assert record["msg"] == "a tool failed"
    assert (record["request_id"], record["session_id"], record["turn_id"]) == (
        "req-12345678",
        "session-7",
        "turn-7",
    )
    assert (record["fence"], record["user_ref"], record["error_kind"]) == (7, "56789019", "ValueError")
    assert {"ts", "level", "logger"} <= set(record)


def test_a_value_cannot_forge_a_line_a_d19_2(lines: StringIO):
    logging.getLogger("tried.here").info("agent %s", 'x\n{"level":"critical"}\u2028y')
    assert lines.getvalue().count("\n") == 1
    assert json.loads(lines.getvalue())["level"] == "info"


def test_a_value_cannot_forge_a_line_for_people_either_a_d19_2():
    event = logs._escape(None, "info", {"event": "agent x\ncritical y", "exception": "a\nb"})
    assert event == {"event": "agent x\\ncritical y", "exception": "a\nb"}


async def test_parallel_turns_never_mix_their_ids_a_d19_3(lines: StringIO):
    async def play(number: int) -> None:
        with context.bound(turn(number)):
            await asyncio.sleep(random.random() / 100)
            await asyncio.to_thread(logging.getLogger("tried.here").info, "turn %s", number)

    await asyncio.gather(*(play(number) for number in range(1000)))
    records = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert len(records) == 1000
    assert all(record["turn_id"] == f"turn-{record['msg'].split()[1]}" for record in records)


def test_secrets_are_masked_by_name_and_by_shape(lines: StringIO):
    structlog.get_logger("tried.here").info(
        "call with Bearer abcdefghijklmnop1234567890",
        api_key="hunter2-hunter2",
        headers={"Authorization": "Basic QWxhZGRpbjpvcGVu", "Accept": "*/*"},
        input_tokens=12,
    )
    record = json.loads(lines.getvalue())
    assert "hunter2" not in lines.getvalue()
    assert "abcdefghijklmnop" not in lines.getvalue()
    assert "QWxhZGRpbjpvcGVu" not in lines.getvalue()
    assert (record["input_tokens"], record["headers"]["Accept"]) == (12, "*/*")
