"""Anything in any order: submit, queue, stop, finish, crash, reconnect, flush — and what must hold after it (T12)."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.db import connection
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from config.core import rate_limits
from config.core.errors import RequestRefused
from config.core.redis import get_redis
from copilot.chat import announcements, queue_commands, stop
from copilot.chat import selectors as chat_selectors
from copilot.models import Message, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from diagnostics import reaper
from tests.support import event_reducer, factories
from tests.support.race_repeats import rounds
from tests.support.turn_engine import (
    Rig,
    cue,
    endings,
    folded,
    fresh,
    is_busy,
    lease_of,
    rigged,
    rows_of,
    said,
    say,
    until,
)


@dataclass
class Story:
    """What the world outside knows."""

    accepted: dict[str, str] = field(default_factory=dict)  # message id → text
    dropped: set[str] = field(default_factory=set)
    flushed: bool = False


class Conversation(RuleBasedStateMachine):
    """One session, one worker at a time, a model that answers when the machine says so."""

    rig: Rig

    @initialize()
    def begin(self) -> None:
        self.session = factories.session()
        self.story = Story()
        self.count = 0
        self.cue_number = 0
        self.rig.model._cues.clear()
        self.rig.model.otherwise = self._reply
        if not self.rig.workers or not self.rig.worker.alive:
            self.rig.start_worker()
        self.page, self.cursor = event_reducer.ReducedTranscript(), "0-0"

    def _reply(self, request):
        self.cue_number += 1
        talk = [ScriptedText("Words ", size=2), cue(self.cue_number), ScriptedText("and more.")]
        uses_tool = len(self.rig.model.requests) % 3 == 0 and request.messages[-1].role == "user"
        return [*talk, ScriptedCall("current_time")] if uses_tool else talk

    # --- what may happen -------------------------------------------------------------------------

    @rule(named=st.booleans())
    def submit(self, named: bool) -> None:
        self.count += 1
        text = f"Message {self.count}"
        get_redis().delete(rate_limits.rate_limit_key("queue", str(self.session.owner_id)))
        try:
            outcome = say(self.session, text, run_id=f"run-{self.count}" if named else None)
        except RequestRefused:
            assert not Message.objects.filter(session=self.session, content=text).exists()
            return
        self.story.accepted[str(outcome.message_id)] = text

    @rule(queue=st.sampled_from(["keep", "drop"]))
    def stop(self, queue: str) -> None:
        before = {item.id for item in chat_selectors.get_queue_items(self.session.pk)}
        stop.stop_session(self.session.owner_id, self.session.pk, queue=queue)
        if queue == "drop":
            gone = Message.objects.filter(pk__in=before).exclude(dropped_at=None)
            self.story.dropped |= {str(pk) for pk in gone.values_list("pk", flat=True)}

    @rule()
    def finish(self) -> None:
        """Whatever the model is saying, it says to the end."""
        for number in list(self.rig.model._cues):
            self.rig.model.give(number)

    @rule()
    def crash(self) -> None:
        self.rig.worker.kill()
        self.rig.start_worker()
        Turn.objects.filter(session=self.session, status="running").update(
            attempt_started_at="2026-01-01T00:00:00Z"
        )
        reaper.take_over_dead_turns()

    @rule()
    def flush(self) -> None:
        get_redis().flushdb()
        self.story.flushed = True
        reaper.run_sweep_steps()

    @rule()
    def reconnect(self) -> None:
        """A client takes a fresh page and follows from there."""
        snapshot, self.cursor = chat_selectors.build_snapshot(self.session.pk)
        self.page = event_reducer.reduce_snapshot(snapshot)
        self.story.flushed = False

    @rule(place=st.integers(0, 9))
    def remove(self, place: int) -> None:
        items = chat_selectors.get_queue_items(self.session.pk)
        if not items:
            return
        item = items[place % len(items)]
        try:
            queue_commands.remove_queued_message(
                self.session.owner_id, self.session.pk, factories.uuid.UUID(item.id)
            )
        except RequestRefused:
            return  # a turn was quicker
        self.story.dropped.add(item.id)

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def at_most_one_turn_is_unfinished(self) -> None:
        if hasattr(self, "session"):
            assert Turn.objects.filter(session=self.session, status__in=Turn.UNFINISHED).count() <= 1

    @invariant()
    def nothing_is_said_twice(self) -> None:
        if hasattr(self, "session"):
            texts = said(self.session)
            assert len(texts) == len(set(texts))

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self._settle()
            self._judge()
        connection.close()

    def _settle(self) -> None:
        until(lambda: self._calm())

    def _calm(self) -> bool:
        self.finish()
        reaper.run_sweep_steps()
        reaper.take_over_dead_turns()
        busy = Turn.objects.filter(session=self.session, status__in=Turn.UNFINISHED).exists()
        # A run_id waits for nothing; behind a worker that died between an ending and its last act, for the sweep (D3).
        busy = busy or any(item.run_id for item in chat_selectors.get_queue_items(self.session.pk))
        told = self.rig.worker.is_idle and not announcements.list_unpublished_sessions()
        return not busy and lease_of(self.session) == {} and told

    def _judge(self) -> None:
        placed = set(
            map(
                str,
                Message.objects.filter(session=self.session, sequence__isnull=False, kind="user").values_list(
                    "pk", flat=True
                ),
            )
        )
        pending = {item.id for item in chat_selectors.get_queue_items(self.session.pk)}
        for message_id, text in self.story.accepted.items():
            homes = (message_id in placed) + (message_id in pending) + (message_id in self.story.dropped)
            assert homes == 1, f"{text} is in {homes} places"
        assert placed | pending <= set(self.story.accepted)
        assert not Message.objects.filter(session=self.session, streaming=True).exists()
        self._judge_endings()
        self._judge_page()

    def _judge_endings(self) -> None:
        ended = Turn.objects.filter(session=self.session)
        told = endings(self.session.pk)
        assert len(told) <= ended.count()
        run_ids = [run_id for ids in ended.values_list("run_ids", flat=True) for run_id in ids]
        assert len(run_ids) == len(set(run_ids)), "a run_id has one ending"
        if not self.story.flushed:
            assert not is_busy(self.session) or len(told) < ended.count()

    def _judge_page(self) -> None:
        """T8.4: who followed from the last snapshot sees what a reload shows."""
        if not self.story.flushed:
            seen, again = folded(self.page, self.session, after=self.cursor), fresh(self.session)
            shown = {row.id: row for row in rows_of(seen)}
            for row in rows_of(again):
                assert shown.get(row.id) == row
            assert (seen.queue, seen.state, seen.turn) == (again.queue, again.state, again.turn)


@rounds(10, 600)
def test_whatever_happens_nothing_is_lost(transactional_db, rounds):
    """T12"""
    with rigged() as rig:
        Conversation.rig = rig
        run_state_machine_as_test(
            Conversation,
            settings=settings(
                max_examples=rounds,
                stateful_step_count=15,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
