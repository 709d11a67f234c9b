"""Messages, stop and queue over REST (E3, T3, T6, T7)."""

from __future__ import annotations

import pytest

from copilot.models import Message, Turn
from tests.support import factories
from tests.support.rest_clients import JSON, V1, code_of, program

pytestmark = pytest.mark.django_db


def say(client, session, text="hi", *, key=None, **fields):
    headers = {"idempotency-key": key} if key else {}
    path = f"{V1}/sessions/{session.pk}/messages"
    return client.post(path, {"text": text, **fields}, content_type=JSON, headers=headers)


def test_the_first_message_starts_a_turn_and_the_next_waits_behind_it():
    """T3.4, T3.5"""
    client, session = program(factories.ada()), factories.session()
    first, second = say(client, session), say(client, session, "and then?")
    assert (first.status_code, second.status_code) == (201, 202)
    assert second.json()["turn_id"] == first.json()["turn_id"]
    assert (second.json()["position"], second.json()["capacity"]) == (1, 10)
    turn = Turn.objects.get(pk=first.json()["turn_id"])
    assert (turn.origin, turn.status) == ("api", "queued")


def test_the_eleventh_waiting_message_is_429_queue_full():
    """T11"""
    client, session = program(factories.ada()), factories.session()
    answers = [say(client, session, str(number)) for number in range(12)]
    assert [answer.status_code for answer in answers] == [201, *[202] * 10, 429]
    assert code_of(answers[-1]) == "queue_full"
    assert Message.objects.count() == 11


def test_the_same_idempotency_key_gives_the_first_outcome():
    """T3.6"""
    client, session = program(factories.ada()), factories.session()
    first, again = say(client, session, key="run-1"), say(client, session, run_id="run-1")
    assert first.json()["run_id"] == "run-1"
    assert again.json()["message_id"] == first.json()["message_id"]
    assert again.json()["turn_id"] == first.json()["turn_id"]
    assert Message.objects.count() == 1


def test_the_same_key_with_another_text_is_409():
    """T3.6"""
    client, session = program(factories.ada()), factories.session()
    say(client, session, key="run-1")
    refused = say(client, session, "something else", key="run-1")
    assert (refused.status_code, code_of(refused)) == (409, "idempotency_conflict")


@pytest.mark.parametrize("key", ["a b", "x" * 129, "é"])
def test_a_malformed_idempotency_key_is_400(key):
    refused = say(program(factories.ada()), factories.session(), key=key)
    assert (refused.status_code, code_of(refused)) == (400, "invalid_request")


def test_a_key_and_a_run_id_that_differ_are_400():
    refused = say(program(factories.ada()), factories.session(), key="a", run_id="b")
    assert (refused.status_code, code_of(refused)) == (400, "invalid_request")


def test_unusable_attachments_are_named_in_the_answer():
    """A29.1, S3"""
    answer = say(
        program(factories.ada()),
        factories.session(),
        attachments=["nope", "00000000-0000-4000-8000-000000000000"],
    )
    assert answer.status_code == 201
    assert answer.json()["ignored_attachments"] == ["nope", "00000000-0000-4000-8000-000000000000"]


def test_the_transcript_is_read_backwards_page_by_page():
    client, session = program(factories.ada()), factories.session()
    for number in range(1, 8):
        factories.message(session, content=str(number))
    factories.message(session, "note", content="for the model alone")
    path, before = f"{V1}/sessions/{session.pk}/messages", None
    seen: list[str] = []
    while True:
        page = client.get(f"{path}?limit=3" + (f"&before={before}" if before else "")).json()
        seen = [item["content"] for item in page["items"]] + seen
        before = page["before"]
        if not page["has_older"]:
            break
    assert seen == ["1", "2", "3", "4", "5", "6", "7"]
    assert before is None


def test_a_page_of_the_transcript_costs_the_same_statements_however_long(django_assert_num_queries):
    client, session = program(factories.ada()), factories.session()
    path = f"{V1}/sessions/{session.pk}/messages"
    for _ in range(40):
        factories.message(session, content="x")
    client.get(path)
    with django_assert_num_queries(3):  # key and user, session, rows
        assert len(client.get(path).json()["items"]) == 40


def test_stop_ends_a_turn_that_no_worker_took_and_is_harmless_when_idle():
    """T7.1, T7.3"""
    client, session = program(factories.ada()), factories.session()
    path = f"{V1}/sessions/{session.pk}/stop"
    assert client.generic("POST", path).json() == {"turn_id": None, "state": "idle"}
    turn_id = say(client, session).json()["turn_id"]
    stopped = client.post(path, {"queue": "drop"}, content_type=JSON)
    assert stopped.json() == {"turn_id": turn_id, "state": "stopping"}
    assert Turn.objects.get(pk=turn_id).status == "cancelled"


def test_the_queue_is_listed_edited_moved_and_emptied():
    """T6.5"""
    client, session = program(factories.ada()), factories.session()
    say(client, session)
    first, second = (say(client, session, text).json()["message_id"] for text in ("one", "two"))
    path = f"{V1}/sessions/{session.pk}/queue"
    assert [item["text"] for item in client.get(path).json()["items"]] == ["one", "two"]
    edited = client.patch(f"{path}/{first}", {"text": "uno"}, content_type=JSON)
    assert [item["text"] for item in edited.json()["items"]] == ["uno", "two"]
    moved = client.post(f"{path}/{second}/move", {"position": 1}, content_type=JSON)
    assert [(item["text"], item["position"]) for item in moved.json()["items"]] == [("two", 1), ("uno", 2)]
    assert [item["text"] for item in client.delete(f"{path}/{first}").json()["items"]] == ["two"]
    gone = client.delete(f"{path}/{first}")
    assert (gone.status_code, code_of(gone)) == (409, "not_queued")


def test_an_edit_obeys_the_limits_of_a_message():
    """T11: the same on every entry point."""
    client, session = program(factories.ada()), factories.session()
    say(client, session)
    waiting = say(client, session, "one").json()["message_id"]
    path = f"{V1}/sessions/{session.pk}/queue/{waiting}"
    for text, code in (("", "empty_message"), ("x" * 64_001, "message_too_long")):
        refused = client.patch(path, {"text": text}, content_type=JSON)
        assert (refused.status_code, code_of(refused)) == (400, code)


def test_send_now_puts_a_waiting_message_in_front():
    """T6.5"""
    client, session = program(factories.ada()), factories.session()
    started = say(client, session).json()["turn_id"]
    say(client, session, "one")
    urgent = say(client, session, "two").json()["message_id"]
    answer = client.post(f"{V1}/sessions/{session.pk}/queue/{urgent}/send_now")
    assert answer.status_code == 200
    assert Turn.objects.get(pk=started).status == "cancelled"
    assert Message.objects.get(pk=urgent).turn_id is not None


# --- versions and undo -------------------------------------------------------------------------------


@pytest.fixture
def said():
    """A finished turn, as its rows stand."""
    session = factories.session()
    turn = factories.turn(session, "succeeded")
    message = factories.message(session, content="One", turn=turn, origin="web")
    factories.message(session, "assistant", content="Aye.", turn=turn)
    return message


def branch(client, session_id, act, **fields):
    return client.post(f"{V1}/sessions/{session_id}/branches", {"act": act, **fields}, content_type=JSON)


def test_edit_retry_and_switch_over_rest(said):
    """E3 `/sessions/{id}/branches`, A30.6"""
    client, path = program(factories.ada()), f"{V1}/sessions/{said.session_id}"
    edited = branch(client, said.session_id, "edit", message_id=str(said.pk), text="Uno", run_id="r")
    assert (edited.status_code, edited.json()["state"], edited.json()["run_id"]) == (201, "started", "r")
    refused = branch(client, said.session_id, "retry", message_id=edited.json()["message_id"])
    assert (refused.status_code, code_of(refused)) == (409, "session_busy")
    client.post(f"{path}/stop", {}, content_type=JSON)
    shown = edited.json()["message_id"]
    switched = branch(client, said.session_id, "switch", message_id=shown, branch=0)
    assert switched.status_code == 200
    assert switched.json() | {"cursor": ""} == {
        "message_id": str(said.pk),
        "branch": 0,
        "versions": 2,
        "cursor": "",
    }
    items = client.get(f"{path}/messages").json()["items"]
    assert [(row["content"], row["branch"], row["versions"]) for row in items] == [
        ("One", 0, 2),
        ("Aye.", 0, 1),
    ]


def test_undo_over_rest_says_what_it_cannot_take_back(said):
    """A30.2, A30.5"""
    client, path = program(factories.ada()), f"{V1}/sessions/{said.session_id}"
    undone = client.post(f"{path}/undo", {}, content_type=JSON)
    assert (undone.status_code, undone.json()["text"]) == (200, "One")
    assert "not undone" in undone.json()["message"]
    assert client.get(f"{path}/messages").json()["items"] == []
    again = client.post(f"{path}/undo", {}, content_type=JSON)
    assert (again.status_code, code_of(again)) == (409, "nothing_to_undo")


@pytest.mark.parametrize(
    "body",
    [
        {"act": "forget"},
        {"act": "edit", "message_id": "x"},
        {"act": "switch", "message_id": "x", "branch": -1},
        {"act": "switch", "message_id": "x", "branch": 0, "text": "hm"},
        {},
    ],
)
def test_a_malformed_act_on_a_branch_is_400(said, body):
    refused = branch(program(factories.ada()), said.session_id, **{"act": ""} | body)
    assert (refused.status_code, code_of(refused)) == (400, "invalid_request")


@pytest.mark.parametrize("door", ["branches", "undo"])
def test_a_reader_changes_no_branch(said, door):
    """A20.6"""
    body = {"act": "retry", "message_id": str(said.pk)} if door == "branches" else {}
    path = f"{V1}/sessions/{said.session_id}/{door}"
    refused = program(factories.ada(), "read").post(path, body, content_type=JSON)
    assert (refused.status_code, code_of(refused)) == (403, "insufficient_scope")
