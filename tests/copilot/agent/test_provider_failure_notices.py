"""Notices of a provider's failure, and what a turn keeps when another model or a later run continues it (A6.2, A4.3)."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from copilot.chat import approval_decisions, model_calls
from copilot.chat.commands import DecideApproval
from copilot.chat.permissions import NO_PERMISSIONS, Permissions
from copilot.models import Approval, Message, ModelCall
from copilot.providers import catalogue, scripted
from copilot.providers.base import CatalogueEntry
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedFinish,
    ScriptedText,
    ScriptedUsage,
)
from copilot.realtime.events import StepStarted, TurnSucceeded
from copilot.realtime.payloads import NoticeContent, Tokens
from tests.support import factories
from tests.support.turn_engine import (
    Errand,
    add_tools,
    ended,
    fresh,
    lease_of,
    notices,
    rows_of,
    start,
    told,
    until,
)

FIRST = CatalogueEntry(name="First", provider="scripted", model="first", credential="one")
SECOND = replace(FIRST, name="Second", model="second", credential="two")


@pytest.fixture(name="offer")
def offer_fixture(model):
    """Which models there are, the first of them the standard one; all of them answer as `model` does."""
    before = catalogue.get_catalogue()
    for entry in (FIRST, SECOND):
        scripted.install_script(entry.model, model)

    def offer(*entries: CatalogueEntry, chain: tuple[CatalogueEntry, ...] = ()) -> None:
        chain = chain or entries
        catalogue.set_catalogue(
            catalogue.Catalogue(entries=entries, tiers={"standard": chain, "small": chain})
        )

    yield offer
    for entry in (FIRST, SECOND):
        scripted.uninstall_script(entry.model)
    catalogue.set_catalogue(before)


def test_a_failure_names_its_provider_its_model_and_the_providers_own_request(rig, model, offer):
    """A6.2, A19.1: live, after a reload, and on the row of the call"""
    offer(FIRST, SECOND)
    session = factories.session()
    model.will(ScriptedFailure("model_not_found", status=404))
    body = json.dumps({"error": {"message": "No such field: <b>tools</b>"}})
    model.will(ScriptedFailure(status=400, body=body, headers={"x-request-id": "req_7"}))
    turn = ended(start(session))
    [notice] = [row.content for row in rows_of(fresh(session)) if isinstance(row.content, NoticeContent)]
    assert (notice.provider, notice.model, notice.request_id, notice.action) == (
        "scripted",
        "First",  # the first model's class and name (A7.c5)
        "",
        "retry",
    )
    assert "Models tried: First (model_not_found), Second (bad_request)." in notice.details
    [posted] = told(session.pk, "notice.posted")
    assert posted.message.content == notice
    assert list(
        ModelCall.objects.filter(turn=turn.pk).order_by("number").values_list("request_id", flat=True)
    ) == [
        "",
        "req_7",
    ]


def test_the_request_is_named_where_one_model_alone_was_asked(rig, model, offer):
    """A6.2: and none where no provider was asked"""
    offer(FIRST)
    session = factories.session()
    model.will(
        ScriptedFailure(status=400, body='{"error": {"message": "No."}}', headers={"request-id": "req_8"})
    )
    ended(start(session))
    row = Message.objects.get(session=session, kind="notice")
    assert (row.data["provider"], row.data["model"], row.data["request_id"]) == ("scripted", "First", "req_8")
    assert notices(session) == ["bad_request"]


def test_a_refusal_names_the_reply_that_it_was(rig, model, offer):
    """A6.2"""
    offer(FIRST)
    session = factories.session()
    model.will(ScriptedText("I'd rather not."), ScriptedFinish("refused"))
    ended(start(session))
    row = Message.objects.get(session=session, kind="notice")
    assert (row.data["code"], row.data["request_id"]) == ("refused", "scripted-1")


@pytest.mark.parametrize(("finish", "code"), [("refused", "refused"), ("overflow", "context_overflow")])
def test_a_reply_that_cannot_be_worked_with_is_no_answer_after_a_takeover_either(rig, model, finish, code):
    """A6.1, A3.9: its outcome is stored on its call, although it ended"""
    session = factories.session()
    model.otherwise = lambda request: [ScriptedText("No."), ScriptedFinish(finish)]
    turn = ended(start(session))
    assert turn.status == "failed"
    assert {call.ending for call in ModelCall.objects.filter(turn=turn)} == {code}
    assert not model_calls.was_final_answer(turn.pk, 1)


def test_a_failure_that_no_row_can_store_verbatim_is_reported_all_the_same(rig, model, offer):
    """A6.2, A6.3: a NUL in what a provider says, and a name of a request that has no end"""
    offer(FIRST)
    session = factories.session()
    body = json.dumps({"error": {"message": "No\0pe."}, "request_id": "req\0" + "x" * 500})
    model.will(ScriptedFailure(status=400, body=body))
    turn = ended(start(session))
    row = Message.objects.get(session=session, kind="notice")
    assert (turn.failure_code, row.data["code"], row.data["details"]) == (
        "bad_request",
        "bad_request",
        "Nope.",
    )
    assert row.data["request_id"] == ("req" + "x" * 500)[:128]
    until(lambda: ModelCall.objects.get(turn=turn.pk).request_id == row.data["request_id"])


def approved(session, turn_id):
    """Somebody agrees to what the turn asks for, once it waits."""
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    open_ones = Approval.objects.filter(turn=turn_id, state="requested")
    approval_decisions.decide_approvals(
        session.owner_id, [DecideApproval(approval_id=one.pk, decision="approve") for one in open_ones]
    )


def test_a_turn_that_waited_keeps_its_model_when_the_tier_means_another_by_then(
    rig, model, offer, monkeypatch
):
    """A4.3: the next turn uses the new one"""
    offer(FIRST)
    add_tools(monkeypatch, Errand("erase", approval="ask"))
    session = factories.session()
    model.will(ScriptedCall("erase"))
    turn_id = start(session)
    until(lambda: told(session.pk, "turn.paused"))
    offer(FIRST, SECOND, chain=(SECOND,))
    approved(session, turn_id)
    assert ended(turn_id).model == "First"
    assert ended(start(session, "Again")).model == "Second"
    assert [request.entry.name for request in model.requests] == ["First", "First", "Second"]


def test_a_switch_to_the_same_model_under_another_key_holds_after_a_wait(rig, model, offer, monkeypatch):
    """A7.6, A3.9: known by its name, for provider and model are the first one's too"""
    twin = replace(FIRST, name="Twin", credential="two")
    offer(FIRST, twin)
    add_tools(monkeypatch, Errand("erase", approval="ask"))
    session = factories.session()
    model.will(ScriptedFailure("quota_exhausted", status=402))
    model.will(ScriptedText("Shall I?"), ScriptedCall("erase"))
    turn_id = start(session)
    approved(session, turn_id)
    assert ended(turn_id).model == "Twin"
    assert [request.entry.name for request in model.requests] == ["First", "Twin", "Twin"]


def test_a_turn_that_waited_tells_what_all_of_it_took(rig, model, monkeypatch):
    """A3.6, A19.9: the tokens of every run, and the first of them as it came before the wait"""
    add_tools(monkeypatch, Errand("erase", approval="ask"))
    session = factories.session()
    model.will(ScriptedText("Shall I?"), ScriptedUsage(Tokens(input=10, output=5)), ScriptedCall("erase"))
    model.will(ScriptedText("Done."), ScriptedUsage(Tokens(input=20, cache_read=3, output=7)))
    turn_id = start(session)
    approved(session, turn_id)
    turn = ended(turn_id)
    [summary] = [event.summary for event in told(session.pk, "turn.succeeded")]
    assert summary.tokens == Tokens(input=30, cache_read=3, output=12)
    assert turn.summary["tokens"]["output"] == 12
    accepted = Message.objects.get(turn=turn_id, kind="user").created_at
    waited = (Approval.objects.get(turn=turn_id).created_at - accepted).total_seconds()
    assert summary.first_token_ms is not None
    assert summary.first_token_ms <= waited * 1000


@pytest.mark.parametrize("pauses", [1, 3])
def test_a_pause_gives_no_further_round_and_takes_none(rig, model, settings, monkeypatch, pauses):
    """A10.1, A10.c2, A3.6: retries do not count as rounds either"""
    settings.TURN_MAX_ROUNDS = pauses + 1
    add_tools(monkeypatch, Errand("erase", approval="ask"))
    session = factories.session()
    model.will(ScriptedFailure(status=429, headers={"retry-after": "0"}))
    for _ in range(pauses + 1):
        model.will(ScriptedText("Once more."), ScriptedCall("erase"))
    turn_id = start(session)
    for number in range(1, pauses + 1):
        until(lambda number=number: len(told(session.pk, "turn.paused")) == number)
        approved(session, turn_id)
    turn = ended(turn_id)
    assert (turn.status, turn.limit_code, turn.summary["rounds"]) == ("succeeded", "round_limit", pauses + 1)
    assert len(model.requests) == pauses + 2
    steps = [event.round for event in told(session.pk, "step.started") if isinstance(event, StepStarted)]
    assert steps == [1, *(number for number in range(1, pauses + 1) for _ in range(2)), pauses + 1]
    [succeeded] = told(session.pk, "turn.succeeded")
    assert isinstance(succeeded, TurnSucceeded)


@pytest.mark.parametrize("stored", [None, {}, {"tools": None}])
def test_a_turn_without_a_filter_may_do_nothing_and_the_log_says_so(stored, caplog):
    """A20.2: absence is never read as unrestricted"""
    with caplog.at_level(logging.ERROR, logger="copilot.chat.permissions"):
        assert Permissions.from_json(stored) == NO_PERMISSIONS
    assert [record.levelname for record in caplog.records] == ["ERROR"]
