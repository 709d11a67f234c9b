"""Log lines bear the ids of their request and turn, and no secret (D19)."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace

import pytest
import structlog
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, transaction

from config import celery, logging_config
from copilot.chat import turn_context
from copilot.chat.permissions import NO_PERMISSIONS
from copilot.chat.turn_context import CHANNELS_BY_ORIGIN, TurnContext
from copilot.models import Turn
from copilot.providers.scripted import ScriptedCall
from copilot.tools.base import ToolInvocation, ToolOutput
from tests.support import factories, link_factories
from tests.support.rest_clients import JSON, V1, person
from tests.support.turn_engine import Errand, NoArguments, add_tools, ended


@pytest.fixture
def lines() -> Iterator[StringIO]:
    """Production's lines, caught; logging is as before afterwards."""
    formatter = logging_config.build_logging_config(production=True, level="INFO")["formatters"]["line"]
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter.pop("()")(**formatter))
    logger = logging.getLogger("tried.here")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield out
    logger.removeHandler(handler)
    logging_config.build_logging_config(production=False, level="INFO")


def turn(number: int) -> TurnContext:
    return TurnContext(
        user_id=123456789012 + number,
        session_id=f"session-{number}",
        turn_id=f"turn-{number}",
        fence=number,
        origin="web",
        permissions=NO_PERMISSIONS,
        channel=CHANNELS_BY_ORIGIN["web"],
    )


def test_a_line_inside_a_turn_names_request_session_and_turn_a_d19_1(lines: StringIO):
    """A31.5, A-D19.1: and the last eight characters of the user's reference"""
    with (
        structlog.contextvars.bound_contextvars(request_id="req-12345678"),
        turn_context.bind_turn_context(turn(7)),
    ):
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
    event = logging_config._escape_control_characters(
        None, "info", {"event": "agent x\ncritical y", "exception": "a\nb"}
    )
    assert event == {"event": "agent x\\ncritical y", "exception": "a\nb"}


async def test_parallel_turns_never_mix_their_ids_a_d19_3(lines: StringIO):
    async def play(number: int) -> None:
        with turn_context.bind_turn_context(turn(number)):
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


def test_the_line_of_a_failing_tool_names_the_request_that_led_to_it(
    rig, model, monkeypatch, lines: StringIO
):
    """A-D19.1: from the browser through the row to the worker"""

    class Broken(Errand):
        async def _run(self, arguments: NoArguments, invocation: ToolInvocation) -> ToolOutput:
            raise ValueError("the paper is stuck")

    add_tools(monkeypatch, Broken("print_paper"))
    model.will(ScriptedCall("print_paper", {}))
    session = factories.session(factories.ada())
    tools = logging.getLogger("copilot.tools.execution")
    tools.addHandler(handler := logging.getLogger("tried.here").handlers[0])
    try:
        answer = person(session.owner).post(
            f"{V1}/sessions/{session.pk}/messages",
            {"text": "Print"},
            content_type=JSON,
            headers={"X-Request-ID": "named-at-the-door"},
        )
        turn = ended(Turn.objects.get(session=session).pk)
    finally:
        tools.removeHandler(handler)
    [record] = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert answer.status_code == 201
    assert record["request_id"] == "named-at-the-door"
    assert (record["session_id"], record["turn_id"]) == (str(session.pk), str(turn.pk))


@pytest.mark.django_db
def test_a_user_agent_cannot_write_a_line_of_its_own(client, lines: StringIO):
    """A-D19.2: nor can anything else in a request"""
    http = logging.getLogger("http")
    http.addHandler(handler := logging.getLogger("tried.here").handlers[0])
    try:
        client.get("/", headers={"User-Agent": 'x\n{"level":"critical"}', "Cookie": "sessionid=hunter2"})
    finally:
        http.removeHandler(handler)
    [line] = lines.getvalue().splitlines()
    assert json.loads(line)["level"] == "info"
    assert "hunter2" not in line


def test_a_job_keeps_the_id_of_the_request_that_sent_it():
    """D19: bound once per job, and gone with it"""
    headers: dict[str, object] = {}
    with structlog.contextvars.bound_contextvars(request_id="req-12345678"):
        celery._add_trace_headers(headers=headers)
    assert headers == {"request_id": "req-12345678"}
    task = SimpleNamespace(name="copilot.tasks.run_data_job", request=SimpleNamespace(**headers))
    celery._enter_task_context(task_id="1", task=task)
    assert structlog.contextvars.get_contextvars() == {
        "request_id": "req-12345678",
        "job": "copilot.tasks.run_data_job",
    }
    celery._exit_task_context(task=task)
    assert structlog.contextvars.get_contextvars() == {}


@pytest.mark.django_db
def test_what_the_database_says_of_a_row_is_not_written_down(lines: StringIO):
    """L25: a unique violation names the platform's id, a broken rule the whole row; also as Celery quotes it"""
    for fields in ({"server_id": "-1001234567890"}, {"server_id": "-1001234567890", "state": "odd"}):
        try:
            with transaction.atomic():
                link_factories.server_link(**fields)
                link_factories.server_link(**fields)
        except IntegrityError as problem:
            logging.getLogger("tried.here").exception("it broke")
            logging.getLogger("tried.here").error("Task x raised unexpected: %r", problem)
    written = lines.getvalue()
    assert written.count("IntegrityError") >= 4
    assert "1001234567890" not in written


@pytest.mark.parametrize(
    "path",
    [
        "/api/bot/v1/users/987654321012345",
        "/api/bot/v1/servers/-1001234567890/resolve",
        "/api/v1/linking/server-links/987654321012345",
        "/api/bot/v1/987654321012345",
    ],
)
def test_an_unknown_path_leaves_no_id_in_a_line(lines: StringIO, path):
    """L25: Django quotes what it did not find; our own ids stay"""
    own = "/api/bot/v1/turns/0190b7a0-0000-7000-8000-000000000001/stop"
    logging.getLogger("tried.here").warning("Not Found: %s", path)
    logging.getLogger("tried.here").warning("Not Found: %s", own)
    written = lines.getvalue()
    assert not {"987654321012345", "1001234567890"} & set(re.findall("[0-9]+", written))
    assert own in written


def test_debug_is_refused_in_production():
    """D19: it shows what people write"""
    with pytest.raises(ImproperlyConfigured):
        logging_config.build_logging_config(production=True, level="DEBUG")
