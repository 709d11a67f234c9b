"""Decisions, messages and stops that come together: one of them wins, and the others are told (A11.5, A11.c2, A11.c3)."""

from __future__ import annotations

import pytest

from config.core.errors import Conflict
from copilot.chat import (
    admission,
    admission_outcomes,
    approval_decisions,
    approvals,
    paused_turns,
    stop,
    turn_transitions,
    turns,
)
from copilot.chat.approvals import ApprovalCandidate
from copilot.chat.commands import DecideApproval
from copilot.models import Approval, Session, Turn
from tests.support import factories
from tests.support.race_repeats import rounds
from tests.support.turn_engine import command, together

pytestmark = pytest.mark.django_db(transaction=True)


def asked(session: Session) -> Approval:
    turn = factories.turn(session, Turn.Status.WAITING)
    factories.message(session, turn=turn)
    factories.message(
        session,
        "tool_call",
        turn=turn,
        call_id=f"call-{turn.pk}",
        data={"tool": "read_file", "arguments": {"path": "a"}},
    )
    return Approval.objects.create(
        turn=turn, session=session, call_id=f"call-{turn.pk}", tool="read_file", arguments={"path": "a"}
    )


def deciding(row: Approval, decision: str):
    return lambda: approval_decisions.decide_approvals(
        row.session.owner_id, [DecideApproval(approval_id=row.pk, decision=decision)]
    )


@rounds(15, 100)
def test_of_an_approval_and_a_rejection_exactly_one_wins(rounds):
    """A11.c2: released together, the loser is told how it stands"""
    session = factories.session()
    for _ in range(rounds):
        row = asked(session)
        answers = together(deciding(row, "approve"), deciding(row, "reject"))
        [lost] = [one for one in answers if isinstance(one, Conflict)]
        state = Approval.objects.get(pk=row.pk).state
        assert lost.details["state"] == state
        assert state == ("approved" if isinstance(answers[1], Conflict) else "rejected")
        assert Turn.objects.get(pk=row.turn_id).status == "queued"
        turn_transitions.end_turn(
            row.turn_id, Turn.objects.get(pk=row.turn_id).fence, turns.CANCELLED, reason="user"
        )


@rounds(8, 40)
def test_an_approval_and_a_message_either_resume_or_abandon(rounds):
    """A11.c2: never both, never neither"""
    seen = set()
    for number in range(rounds):
        session = factories.session(factories.user(f"ada{number}"))  # nobody may queue so often in a minute
        row = asked(session)
        said = command(session, "Never mind")
        decided, message = together(
            deciding(row, "approve"), lambda said=said: admission.submit_message(said)
        )
        turn, row = Turn.objects.get(pk=row.turn_id), Approval.objects.get(pk=row.pk)
        unfinished = Turn.objects.filter(session=session, status__in=Turn.UNFINISHED).get()
        if isinstance(decided, Conflict):
            assert (turn.status, row.state, decided.details["state"]) == (
                "cancelled",
                "abandoned",
                "abandoned",
            )
            assert isinstance(message, admission_outcomes.SubmissionStarted)
            assert unfinished.pk == message.turn_id
        else:
            assert (turn.status, row.state) == ("queued", "approved")
            assert isinstance(message, admission_outcomes.SubmissionQueued), message
            assert unfinished.pk == turn.pk
        seen.add(turn.status)
    assert seen <= {"cancelled", "queued"}


@rounds(8, 40)
def test_an_approval_and_a_stop_leave_one_turn_that_is_over_or_told_to_stop(rounds):
    """A11.5, A11.9"""
    for _ in range(rounds):
        session = factories.session()
        row = asked(session)
        decided, _ = together(
            deciding(row, "approve"), lambda session=session: stop.stop_session(session.owner_id, session.pk)
        )
        turn, row = Turn.objects.get(pk=row.turn_id), Approval.objects.get(pk=row.pk)
        assert turn.status == "cancelled"
        assert row.state == "cancelled"
        if isinstance(decided, Conflict):
            assert decided.details["state"] == "cancelled"


@rounds(8, 40)
def test_expiry_and_an_approval_decide_once(rounds):
    """A11.5, A11.9"""
    for _ in range(rounds):
        session = factories.session()
        row = asked(session)
        decided, expired = together(
            deciding(row, "approve"), lambda row=row: paused_turns.expire_paused_turn(row.turn_id)
        )
        state = Approval.objects.get(pk=row.pk).state
        assert (state, expired) == (
            ("abandoned", True) if isinstance(decided, Conflict) else ("approved", False)
        )


@rounds(8, 40)
def test_parallel_turns_and_children_cannot_overshoot_the_cap(rounds):
    """A11.c3, A11.11: the reservation is one conditional update"""
    for _ in range(rounds):
        root = factories.session()
        Session.objects.filter(pk=root.pk).update(
            auto_approve=True, auto_approve_cap=1_000, auto_approve_children=True
        )
        family = [root, factories.session(), factories.session()]
        Session.objects.filter(pk__in=[one.pk for one in family[1:]]).update(
            root=root, auto_approve_cap=1_000, auto_approve=True
        )
        running = [factories.turn(one, Turn.Status.RUNNING) for one in family]
        wanted = ApprovalCandidate(
            call_id="c", tool="pay", arguments={}, reason="!", billable=True, estimate=400
        )
        admitted = together(
            *(
                lambda turn=turn: approvals.approve_automatically(turn.pk, turn.fence, [wanted])
                for turn in running
            )
        )
        assert sorted(len(one.approved) for one in admitted) == [0, 1, 1]
        assert [one.refused["c"] for one in admitted if one.refused] == [approvals.OVER_CAP_REASON]
        first = next(turn for turn, one in zip(running, admitted, strict=True) if one.approved)
        assert Session.objects.get(pk=root.pk).auto_approve_spent == 800
        approvals.close_approvals(first.pk, "cancelled")
        assert Session.objects.get(pk=root.pk).auto_approve_spent == 400
