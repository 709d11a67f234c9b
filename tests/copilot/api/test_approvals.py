"""Decisions over REST and the socket, and what a chat may do without asking (A11.4, A11.11, E2, E3)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from config.core.db import run_in_thread
from copilot.models import Approval, Session, Turn
from tests.support import factories
from tests.support.rest_clients import JSON, NOBODYS, NOT_FOUND, V1, code_of, person, program
from tests.support.turn_engine import fresh, told
from tests.support.websocket_client import connected

pytestmark = pytest.mark.django_db(transaction=True)


def asked(session: Session, *tools: str) -> list[Approval]:
    """A turn that waits for a word on these calls."""
    turn = factories.turn(session, Turn.Status.WAITING)
    return [
        Approval.objects.create(
            turn=turn,
            session=session,
            call_id=f"call-{place}",
            tool=tool,
            position=place,
            arguments={"file": "a.txt"},
        )
        for place, tool in enumerate(tools)
    ]


def decide(client, row, decision="approve", **fields):
    return client.post(f"{V1}/approvals/{row.pk}/decide", {"decision": decision, **fields}, content_type=JSON)


def test_a_decision_is_taken_and_the_last_one_resumes_the_turn():
    """A11.4, E3"""
    session = factories.session()
    first, second = asked(session, "read_file", "read_file")
    client = program(factories.ada())
    taken = decide(client, first)
    assert taken.status_code == 200
    assert taken.json()["resumed"] == []
    assert [one["state"] for one in taken.json()["approvals"]] == ["approved"]
    last = decide(client, second, "reject", feedback="No.")
    assert last.json()["resumed"] == [str(second.turn_id)]
    assert Turn.objects.get(pk=second.turn_id).status == "queued"
    kinds = [event.kind for event in told(session.pk)]
    assert kinds == ["approval.decided", "approval.decided", "turn.queued", "session.changed"]


def test_a_batch_decides_all_at_once():
    """A11.4"""
    rows = asked(factories.session(), "read_file", "read_file")
    decisions = [
        {"approval_id": str(rows[0].pk), "decision": "approve", "arguments": {"file": "b.txt"}},
        {"approval_id": str(rows[1].pk), "decision": "reject", "feedback": "Later."},
    ]
    taken = program(factories.ada()).post(
        f"{V1}/approvals/decide", {"decisions": decisions}, content_type=JSON
    )
    assert [one["edited"] for one in taken.json()["approvals"]] == [True, False]
    states = dict(Approval.objects.values_list("state", "final_arguments"))
    assert states == {"approved": {"file": "b.txt"}, "rejected": None}


def test_a_second_decision_is_a_conflict_that_names_the_state():
    """A11.5"""
    [row] = asked(factories.session(), "read_file")
    client = program(factories.ada())
    assert decide(client, row, "reject").status_code == 200
    late = decide(client, row)
    assert (late.status_code, code_of(late)) == (409, "approval_closed")
    assert late.json()["error"]["state"] == "rejected"


def test_other_users_ids_and_unknown_ids_get_the_same_response():
    """A11.4, E3"""
    [row] = asked(factories.session(), "read_file")
    assert decide(program(factories.bob()), row).content == NOT_FOUND
    nobodys = program(factories.ada()).post(
        f"{V1}/approvals/{NOBODYS}/decide", {"decision": "approve"}, content_type=JSON
    )
    assert nobodys.content == NOT_FOUND
    assert Approval.objects.get().state == "requested"


def test_deciding_needs_the_scope_chat():
    """A20.6"""
    [row] = asked(factories.session(), "read_file")
    refused = decide(program(factories.ada(), "read"), row)
    assert (refused.status_code, code_of(refused)) == (403, "insufficient_scope")


@pytest.mark.parametrize(
    "fields",
    [
        {"decision": "maybe"},
        {},
        {"decision": "approve", "arguments": []},
        {"decision": "approve", "arguments": {"nothing": 1}},
        {"decision": "reject", "arguments": {"file": "b"}},
        {"decision": "reject", "feedback": "x" * 2_001},
        {"decision": "approve", "extra": 1},
    ],
)
def test_odd_decisions_are_400_and_the_request_stays_open(fields):
    """A11.6"""
    [row] = asked(factories.session(), "read_file")
    refused = program(factories.ada()).post(f"{V1}/approvals/{row.pk}/decide", fields, content_type=JSON)
    assert refused.status_code == 400
    assert Approval.objects.get().state == "requested"


def test_nothing_or_too_much_at_once_is_400():
    client = program(factories.ada())
    one = {"approval_id": str(uuid4()), "decision": "approve"}
    for decisions in ([], [one] * 101, "all"):
        refused = client.post(f"{V1}/approvals/decide", {"decisions": decisions}, content_type=JSON)
        assert (refused.status_code, code_of(refused)) == (400, "invalid_request")


async def test_the_socket_decides_one_by_one_or_several_at_once():
    """E2"""
    ada = await run_in_thread(factories.ada)
    session = await run_in_thread(factories.session)
    first, second, third = await run_in_thread(asked, session, "read_file", "read_file", "read_file")
    async with connected(ada) as socket:
        one = await socket.ask("approval.decide", approval_id=str(first.pk), decision="approve")
        assert (one["kind"], one["resumed"]) == ("ack", [])
        wrong = await socket.ask("approval.decide", approval_id=str(second.pk))
        assert (wrong["kind"], wrong["code"]) == ("error", "invalid_request")
        unknown = await socket.ask("approval.decide", approval_id="x", decision="approve")
        assert unknown["code"] == "not_found"
        rest = [{"approval_id": str(row.pk), "decision": "reject"} for row in (second, third)]
        several = await socket.ask("approval.decide", decisions=rest)
        assert several["resumed"] == [str(first.turn_id)]
        late = await socket.ask("approval.decide", approval_id=str(first.pk), decision="reject")
        assert (late["code"], late["state"]) == ("approval_closed", "approved")


# --- without asking ----------------------------------------------------------------------------------


def allow(session, **fields):
    body = {"auto_approve": fields}
    return person(factories.ada()).patch(f"{V1}/sessions/{session.pk}", body, content_type=JSON)


def test_a_chat_is_allowed_to_act_without_asking_within_a_cap():
    """A11.11: off by default, on with an explicit cap; other tabs are told, and a reload knows"""
    session = factories.session()
    assert fresh(session).auto_approve.enabled is False
    changed = allow(session, enabled=True, cap_microdollars=1_000)
    assert changed.json()["auto_approve"]["cap_microdollars"] == 1_000
    assert fresh(session).auto_approve.cap_microdollars == 1_000
    assert [event.auto_approve.enabled for event in told(session.pk, "session.changed")] == [True]
    assert allow(session, enabled=False).json()["auto_approve"]["enabled"] is False


def test_spending_counts_until_it_is_switched_on_again():
    """A11.11: a raised cap forgets nothing, a new permission begins with what is reserved"""
    session = factories.session()
    allow(session, enabled=True, cap_microdollars=1_000)
    Session.objects.filter(pk=session.pk).update(auto_approve_spent=800)
    allow(session, enabled=True, cap_microdollars=2_000)
    assert Session.objects.get(pk=session.pk).auto_approve_spent == 800
    [row] = asked(session, "read_file")
    Approval.objects.filter(pk=row.pk).update(state="running", reserved_microdollars=300)
    allow(session, enabled=False)
    allow(session, enabled=True, cap_microdollars=2_000)
    assert Session.objects.get(pk=session.pk).auto_approve_spent == 300


@pytest.mark.parametrize(
    "fields", [{}, {"enabled": True, "cap_microdollars": -1}, {"enabled": "yes"}, {"enabled": True, "cap": 1}]
)
def test_odd_permissions_are_400(fields):
    session = factories.session()
    assert allow(session, **fields).status_code == 400
    assert Session.objects.get(pk=session.pk).auto_approve is False


def test_only_the_owner_can_allow_it():
    body = {"auto_approve": {"enabled": True}}
    session = factories.session()
    refused = person(factories.bob()).patch(f"{V1}/sessions/{session.pk}", body, content_type=JSON)
    assert refused.content == NOT_FOUND
    assert Session.objects.get(pk=session.pk).auto_approve is False


def test_open_approvals_are_listed_for_their_owner_alone():
    """X7: oldest first, page by page, and gone once they are decided"""
    session = factories.session()
    first, second = asked(session, "read_file", "read_file")
    client = program(factories.ada())
    page = client.get(f"{V1}/approvals?limit=1").json()
    assert [item["approval"]["id"] for item in page["items"]] == [str(first.pk)]
    assert (page["items"][0]["session_id"], page["next_cursor"]) == (str(session.pk), str(first.pk))
    rest = client.get(f"{V1}/approvals?cursor={page['next_cursor']}").json()
    assert ([item["approval"]["id"] for item in rest["items"]], rest["next_cursor"]) == (
        [str(second.pk)],
        None,
    )
    decide(client, first)
    assert [item["approval"]["id"] for item in client.get(f"{V1}/approvals").json()["items"]] == [
        str(second.pk)
    ]
    assert program(factories.bob()).get(f"{V1}/approvals").json()["items"] == []
    assert client.get(f"{V1}/approvals?cursor={uuid4()}").status_code == 404
