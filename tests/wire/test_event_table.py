"""The events of A2.6 and E1 and what each carries; names are API, so a table says them once more."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from copilot.realtime import events

CARRIES = {
    "turn.started": "model tier mode resumed run_ids",
    "turn.heartbeat": "phase elapsed_seconds",
    "step.started": "step_id round",
    "step.finished": "step_id round finish_reason",
    "step.retracted": "step_id round failure_class",
    "reasoning.started": "block_id row_id",
    "reasoning.extended": "block_id row_id offset delta",
    "reasoning.ended": "block_id row_id",
    "text.started": "block_id row_id",
    "text.extended": "block_id row_id offset delta",
    "text.ended": "block_id row_id",
    "tool.proposed": "call_id tool",
    "tool.called": "call_id tool arguments",
    "tool.progressed": "call_id message",
    "tool.state_changed": "call_id state",
    "tool.finished": "call_id success duration_ms preview truncated link",
    "approval.requested": "approvals",
    "approval.decided": "approval_id state by edited",
    "question.asked": "question",
    "question.closed": "question_id outcome",
    "follow_up.delivered": "message_ids still_queued",
    "model.retrying": "failure_class delay_seconds attempt attempts",
    "model.healed": "healing",
    "model.switched": "from_model to_model failure_class",
    "context.compacting": "tokens_before window",
    "context.compacted": "tokens_before tokens_after window",
    "context.compaction_failed": "reason",
    "usage.metered": "tokens_per_second context_used_percent tokens limit_used_percent",
    "usage.recorded": "purpose tokens",
    "notice.posted": "row_id code label hint action details",
    "todos.changed": "items",
    "title.changed": "title origin",
    "goal.judged": "state reason",
    "goal.continued": "state reason number most",
    "turn.paused": "approvals",
    "turn.succeeded": "summary limit_code run_ids",
    "turn.failed": "code notice_id run_ids",
    "turn.cancelled": "reason run_ids",
    "session.snapshot": "messages turn queue approvals questions reset",
    "session.changed": "title pinned archived state",
    "message.added": "message",
    "queue.changed": "items",
    "turn.queued": "origin run_ids",
    "turn.throttled": "reason",
    "turn.recovering": "attempt",
    "artifact.added": "file_id name type size",
    "artifact.removed": "file_id",
    "limit.reached": "window resets_at queued",
}


def fields_of(kind: str) -> set[str]:
    [found] = [one for one in typing.get_args(events.Event) if kind == typing.get_args(hint(one))[0]]
    return {field.name for field in dataclasses.fields(found)}


def hint(event: type) -> object:
    return typing.get_type_hints(event)["kind"]


@pytest.mark.parametrize("kind", CARRIES)
def test_an_event_carries_what_is_promised_of_it(kind: str) -> None:
    """A2.6, E1"""
    assert set(CARRIES[kind].split()) <= fields_of(kind)


def test_exactly_one_kind_of_each_ending_bears_the_run_ids() -> None:
    """A2.6, A2.8, T3.6"""
    assert set(events.ENDING_KINDS) == {"turn.succeeded", "turn.failed", "turn.cancelled"}
    assert all("run_ids" in fields_of(kind) for kind in events.ENDING_KINDS)


def test_a_turn_pauses_only_for_approvals_and_says_which() -> None:
    """A2.6"""
    assert "turn.paused" not in events.ENDING_KINDS
