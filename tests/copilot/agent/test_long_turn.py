"""One turn of fifty steps through all that can come between: a brake, a failing model, a person's word, a second
thought, a full window and a killed worker. It stays one turn with one ending and a whole transcript."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from billing.models import UsageRecord
from copilot.chat import approval_decisions
from copilot.chat.commands import DecideApproval
from copilot.models import Approval, Message, ModelCall, Turn
from copilot.providers import catalogue, scripted
from copilot.providers.base import CatalogueEntry, ModelRequest
from copilot.providers.clients import close_all_clients
from copilot.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedText, ScriptedUsage, ScriptItem
from copilot.realtime.payloads import Tokens
from diagnostics import reaper
from tests.support import factories
from tests.support.chat_completions_server import ChatServer, serving
from tests.support.turn_engine import (
    Errand,
    Model,
    Rig,
    add_tools,
    answer,
    cue,
    ended,
    folded,
    fresh,
    lease_of,
    notices,
    queue,
    quiet,
    rows_of,
    start,
    told,
    until,
)

STEPS = 50
WINDOW = 40_000
BRAKED, GONE, ASKED, STEERED, FULL, KILLED = 5, 12, 20, 27, 34, 42
FIRST = CatalogueEntry(
    name="First", provider="scripted", model="first", credential="one", context_window=WINDOW
)
SECOND = replace(FIRST, name="Second", model="second", credential="two")


class Errands:
    """A model that works through fifty steps, and meets something on its way."""

    def __init__(self) -> None:
        self.step = 0
        self.met: set[str] = set()
        self.summaries = 0

    def once(self, what: str, at: int) -> bool:
        if self.step != at or what in self.met:
            return False
        self.met.add(what)
        return True

    def __call__(self, request: ModelRequest) -> list[ScriptItem]:
        if not request.tools:
            self.summaries += 1
            return [ScriptedText("Steps up to here are done; go on with the next."), used(900, 40)]
        if self.once("brake", BRAKED):
            return [
                ScriptedFailure(
                    status=429, headers={"retry-after": "0"}, body='{"error": {"message": "slow down"}}'
                )
            ]
        if self.once("gone", GONE):
            return [ScriptedFailure("model_not_found", status=404)]
        if self.once("killed", KILLED):
            return [ScriptedText("Half of step 43"), cue(KILLED), ScriptedText("never heard")]
        self.step += 1
        if self.step > STEPS:
            return [ScriptedText("All fifty steps are done."), used(2_000, 10)]
        tool = "erase" if self.step == ASKED else "wait" if self.step == STEERED else "fetch"
        tokens = WINDOW - 5_000 if self.step == FULL else 2_000
        return [
            ScriptedText(f"Step {self.step}."),
            ScriptedCall(tool, {"note": str(self.step)}),
            used(tokens, 20),
        ]


def used(given: int, said: int) -> ScriptedUsage:
    return ScriptedUsage(Tokens(input=given, output=said))


@pytest.fixture(name="speaker", params=["scripted", "over HTTP"])
def speaker_fixture(request, rig, model, settings) -> Iterator[Model | ChatServer]:
    """Who answers for both models of the chain: a script, or a server that the official SDK is sent to."""
    settings.TURN_MAX_ROUNDS = STEPS + 1  # and the answer: not one more, whatever came between
    before = catalogue.get_catalogue()
    with ExitStack() as stack:
        speaker = model if request.param == "scripted" else stack.enter_context(serving())
        chain = (FIRST, SECOND)
        if isinstance(speaker, ChatServer):
            stack.callback(hang_up, rig)
            over = {"provider": "openai_chat", "base_url": speaker.address}
            chain = (replace(FIRST, **over), replace(SECOND, **over))
        for entry in chain:
            scripted.install_script(entry.model, model)
            stack.callback(scripted.uninstall_script, entry.model)
        catalogue.set_catalogue(catalogue.Catalogue(entries=chain, tiers={"standard": chain, "small": chain}))
        yield speaker
    catalogue.set_catalogue(before)


def hang_up(rig: Rig) -> None:
    """Each worker's clients are closed on its own loop, as its process would."""
    for worker in rig.workers:
        if worker.alive:
            asyncio.run_coroutine_threadsafe(close_all_clients(), worker._loop).result(10)
        else:
            worker._loop.run_until_complete(close_all_clients())


def test_a_turn_of_fifty_steps_survives_all_that_can_come_between(rig, speaker, monkeypatch):
    """A7.1, A7.6, A11.3, A13.3, A17.3, T9.1, A3.9: in one turn; by a script, and by the openai SDK over a socket"""
    session = factories.session()
    fetch, erase, wait = Errand("fetch"), Errand("erase", approval="ask"), Errand("wait", waits=True)
    add_tools(monkeypatch, fetch, erase, wait)
    speaker.otherwise = errands = Errands()
    before = fresh(session)

    turn_id = start(session, "Do all fifty steps.")
    approve_when_asked(session, turn_id)
    until(lambda: wait.runs == 1)
    queue(session, "And be careful.")
    wait.cue.give()
    speaker.reaches(KILLED)
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    turn = ended(turn_id)
    quiet(session)

    assert (turn.status, turn.limit_code, Turn.objects.filter(session=session).count()) == (
        "succeeded",
        "",
        1,
    )
    assert answer(turn_id).endswith("All fifty steps are done.")
    assert (fetch.runs, erase.runs, wait.runs) == (STEPS - 2, 1, 1)
    assert [note for note in fetch.given if note not in {str(ASKED), str(STEERED)}] == [
        str(number) for number in range(1, STEPS + 1) if number not in {ASKED, STEERED}
    ]
    assert_whole(turn)
    assert_met_all(session, errands)
    assert_paid_once(turn)
    assert lease_of(session) == {}
    assert_followed(session, before)


def approve_when_asked(session, turn_id):
    until(lambda: told(session.pk, "turn.paused") and lease_of(session) == {})
    assert Turn.objects.get(pk=turn_id).status == "waiting"
    [asked] = Approval.objects.filter(turn=turn_id, state="requested")
    approval_decisions.decide_approvals(
        session.owner_id, [DecideApproval(approval_id=asked.pk, decision="approve")]
    )


def assert_followed(session, before):
    """A client that follows the log misses no row since its last snapshot; a reload shows the same ending (T8.4)."""
    followed, reloaded = rows_of(folded(before, session)), rows_of(fresh(session))
    shown = Message.objects.filter(session=session, hidden="").exclude(kind="note")
    every = [str(row.pk) for row in shown.order_by("sequence")]
    assert [row.id for row in followed] == every[-len(followed) :]
    assert len(followed) >= len(reloaded)
    assert followed[-len(reloaded) :] == reloaded


def assert_whole(turn):
    """Every call has its one result right behind it, in the order of the steps; nothing is left open."""
    rows = Message.objects.filter(turn=turn.pk, hidden="").order_by("sequence")
    calls = [row.call_id for row in rows if row.kind == "tool_call"]
    results = [row.call_id for row in rows if row.kind == "tool_result"]
    assert len(calls) == len(set(calls)) == STEPS
    assert calls == results
    assert not any(row.streaming for row in rows)
    said = [row for row in rows if row.kind == "user"]
    assert [row.content for row in said] == ["Do all fifty steps.", "And be careful."]
    waited = next(row for row in rows if row.kind == "tool_call" and row.data["tool"] == "wait")
    behind = rows.filter(sequence__gt=waited.sequence)[:2]
    assert [row.kind for row in behind] == ["tool_result", "user"]


def assert_met_all(session, errands):
    """Each thing came once, was told once, and left no notice: all of it was handled."""
    assert errands.met == {"brake", "gone", "killed"}
    assert [event.failure_class for event in told(session.pk, "model.retrying")] == ["rate_limited"]
    assert [(event.from_model, event.to_model) for event in told(session.pk, "model.switched")] == [
        ("First", "Second")
    ]
    assert len(told(session.pk, "approval.requested")) == len(told(session.pk, "approval.decided")) == 1
    assert len(told(session.pk, "follow_up.delivered")) == 1
    assert (errands.summaries, len(told(session.pk, "context.compacted"))) == (1, 1)
    assert Message.objects.filter(session=session, kind="summary").count() == 1
    assert len(told(session.pk, "turn.recovering")) == 1
    assert len(told(session.pk, "turn.succeeded")) == 1
    assert notices(session) == []


def assert_paid_once(turn):
    """Every request has one row, and every one that did work one record of its money."""
    calls = ModelCall.objects.filter(turn=turn.pk).order_by("number")
    assert list(calls.values_list("number", flat=True)) == list(range(1, len(calls) + 1))
    assert list(calls.filter(purpose="compaction").values_list("model", flat=True)) == ["second"]
    records = UsageRecord.objects.filter(call_id__in=calls.values("pk"))
    assert records.count() == STEPS + 1 + 1 + 1  # the steps, the answer, the summary, and the one cut off
