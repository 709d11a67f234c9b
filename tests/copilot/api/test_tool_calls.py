"""A tool call can be read whole (G4.2)."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.support import factories
from tests.support.rest_clients import V1

pytestmark = pytest.mark.django_db


def stored_call(*, command: str = "ls", output: str = "ok", **result: object):
    session = factories.session()
    turn = factories.turn(session, "succeeded")
    factories.message(
        session,
        "tool_call",
        turn=turn,
        call_id="functions.bash:0/1",
        data={"tool": "bash_exec", "arguments": {"command": command, "env": {"api_key": "sk-" + "a" * 40}}},
    )
    data = {
        "tool": "bash_exec",
        "success": True,
        "preview": output[:4000],
        "duration_ms": 5,
        "truncated": False,
    }
    factories.message(
        session, "tool_result", turn=turn, call_id="functions.bash:0/1", content=output, data=data | result
    )
    return turn


def read(turn, query: str = "", client: Client | None = None):
    client = client or factories.sign_in(Client(), turn.session.owner)
    return client.get(f"{V1}/turns/{turn.pk}/tool-calls/functions.bash:0/1{query}")


def test_a_call_is_read_whole_without_its_secrets() -> None:
    """G4.2: a long script comes whole; secrets do not"""
    script = "\n".join(f"echo {number}" for number in range(400))
    answer = read(stored_call(command=script, output="x" * 9_000)).json()
    assert answer["arguments"]["command"] == script
    assert "sk-aaa" not in str(answer["arguments"])
    assert answer["output"] == "x" * 9_000
    assert (answer["status"], answer["characters"], answer["next_offset"]) == ("succeeded", 9_000, None)
    assert answer["output_complete"] is True


def test_the_output_comes_page_by_page() -> None:
    """G4.2"""
    turn = stored_call(output="abcdefghij")
    first = read(turn, "?limit=4").json()
    assert (first["output"], first["next_offset"]) == ("abcd", 4)
    last = read(turn, "?offset=8&limit=4").json()
    assert (last["output"], last["next_offset"], last["characters"]) == ("ij", None, 10)
    assert read(turn, "?offset=99").json()["output"] == ""
    assert read(turn, "?limit=0").status_code == 400


def test_an_output_whose_file_is_lost_says_so() -> None:
    """G4.2: what the model got is shown, and that it is not all"""
    assert (
        read(stored_call(output="part", file_id="0" * 8, truncated=True)).json()["output_complete"] is False
    )


def test_only_the_owner_reads_a_call() -> None:
    turn = stored_call()
    assert read(turn, client=factories.sign_in(Client(), factories.bob())).status_code == 404
    assert read(factories.turn(factories.session(), "succeeded")).status_code == 404
