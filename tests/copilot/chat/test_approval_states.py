"""An approval moves only the way it may, and the database knows its states (A11.2)."""

from __future__ import annotations

from itertools import product

import pytest
from django.db import IntegrityError, transaction

from config.core.errors import TurnConflict
from copilot.chat import approvals
from copilot.chat.approvals import ApprovalCandidate
from copilot.models import Approval
from tests.support import factories

State = Approval.State
LEGAL = {
    ("requested", "approved"),
    ("requested", "rejected"),
    ("requested", "abandoned"),
    ("requested", "cancelled"),
    ("approved", "running"),
    ("approved", "cancelled"),
    ("running", "done"),
    ("running", "cancelled"),
}


@pytest.fixture
def approval(db):
    turn = factories.turn(factories.session(), "running")
    wanted = ApprovalCandidate(
        call_id="c", tool="pay", arguments={"to": "Bob"}, reason="It costs.", estimate=5
    )
    [row] = approvals.request_approvals(turn.pk, turn.fence, [wanted])
    return row


@pytest.mark.parametrize(
    ("came", "goes"), [*product(State.values, [state for state in State.values if state != "requested"])]
)
def test_only_these_moves_are_made(approval, came, goes):
    """A11.2: one conditional update each; every other one raises and changes nothing, and none leads back to the request"""
    Approval.objects.filter(pk=approval.pk).update(state=came)
    if (came, goes) in LEGAL:
        approvals._change_state(approval, State(goes))
    else:
        with pytest.raises(TurnConflict):
            approvals._change_state(approval, State(goes))
    approval.refresh_from_db()
    assert approval.state == (goes if (came, goes) in LEGAL else came)


def test_the_database_refuses_a_state_nobody_knows(approval):
    """A11.2, T2.3"""
    with pytest.raises(IntegrityError), transaction.atomic():
        Approval.objects.filter(pk=approval.pk).update(state="perhaps")


def test_a_row_says_what_was_asked_and_why(approval):
    """A11.2"""
    approval.refresh_from_db()
    assert (approval.arguments, approval.reason) == ({"to": "Bob"}, "It costs.")
    assert (approval.estimate_microdollars, approval.final_arguments, approval.decided_by_id) == (
        5,
        None,
        None,
    )
