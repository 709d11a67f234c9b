"""The agent publishes a file only with a person's word, and the link is revocable (A22.1, A11.12, S8)."""

from __future__ import annotations

import re

import pytest

from copilot.chat import approval_decisions
from copilot.chat.commands import DecideApproval
from copilot.models import Approval, Message, Session, Share
from copilot.providers.scripted import ScriptedCall
from copilot.sharing import services as sharing
from tests.support import factories
from tests.support.rest_clients import V1, person
from tests.support.shares import status, stored
from tests.support.turn_engine import ended, start, until
from tests.support.turn_engine import status as status_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_file_is_published_only_after_a_person_agreed(rig, model):
    """A22.1, A11.12: auto-approval without any cap changes nothing"""
    session = factories.session()
    Session.objects.filter(pk=session.pk).update(auto_approve=True, auto_approve_cap=10**12)
    file = stored("notes.txt", b"hello")
    model.will(ScriptedCall("share_file", {"file": "notes.txt", "expires_in_days": 7}))
    turn = start(session, "Give this to Bob")
    until(lambda: status_of(turn) == "waiting")
    assert not Share.objects.exists()
    asked = Approval.objects.get(turn=turn)
    assert (asked.state, asked.automatic) == ("requested", False)
    approval_decisions.decide_approvals(
        session.owner_id, [DecideApproval(approval_id=asked.pk, decision="approve")]
    )
    assert ended(turn).status == "succeeded"
    share = Share.objects.get()
    assert (share.expires_at - share.created_at).days in (6, 7)
    told = Message.objects.get(session=session, kind="tool_result").content
    path = re.search(r"/share/[0-9a-f-]{36}", told).group()
    assert status(path) == status(f"{path}/files/{file.pk}") == 200
    assert person(factories.ada()).delete(f"{V1}/files/{file.pk}/share").status_code == 204
    assert status(path) == 404


def test_the_approval_of_a_deletion_says_that_it_ends_a_share(rig, model):
    """S3, A22.3: of a file that nobody else can open it is asked as of any"""
    session = factories.session()
    reasons = []
    for name in ("shared.txt", "own.txt"):
        file = stored(name, b"hello")
        if name == "shared.txt":
            sharing.publish_file(file.owner_id, file.pk, sharing.ShareTerms())
        model.will(ScriptedCall("delete_file", {"file": name}))
        turn = start(session, "Away with it")
        until(lambda turn=turn: status_of(turn) == "waiting")
        asked = Approval.objects.get(turn=turn)
        reasons.append(asked.reason)
        approval_decisions.decide_approvals(
            session.owner_id, [DecideApproval(approval_id=asked.pk, decision="approve")]
        )
        assert ended(turn).status == "succeeded"
    assert reasons == [
        "This file has a public link. Deleting the file turns the link off for good.",
        "This tool always needs your approval.",
    ]
    assert Share.objects.get().revoke_reason == "file_deleted"
