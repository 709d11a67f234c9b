"""Waiting for a conversation's end against the end itself (A21.c1, T10)."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from django.utils import timezone

from config.core.db import run_in_thread
from copilot.chat import turn_results
from copilot.models import Session, Turn
from copilot.realtime import event_log
from copilot.realtime.events import TurnCancelled
from tests.support import factories
from tests.support.race_repeats import rounds

AT_ONCE = 10
MOMENTS = [0.0, 0.0005, 0.001, 0.002, 0.004, 0.008]  # from before the subscription to after the first look


@rounds(60, 500)
@pytest.mark.django_db(transaction=True)
async def test_no_end_between_looking_and_listening_is_missed(monkeypatch, rounds):
    """A21.c1: 500 runs. Rows are looked at once, so that only the news of the end can wake who waits"""
    monkeypatch.setattr(turn_results, "ROW_POLL_SECONDS", 60.0)
    children = [await run_in_thread(factories.session) for _ in range(AT_ONCE)]
    chance = random.Random(21)
    found = await asyncio.gather(*(_runs(child, chance, rounds // AT_ONCE) for child in children))
    assert [status for statuses in found for status in statuses] == ["cancelled"] * rounds


async def _runs(child: Session, chance: random.Random, count: int) -> list[str]:
    return [await _run(child, chance.choice(MOMENTS)) for _ in range(count)]


async def _run(child: Session, later: float) -> str:
    turn = await run_in_thread(factories.turn, child, "running")
    waiting = turn_results.wait_for_turn(child.owner_id, turn.pk, timeout_seconds=30)
    outcome, _ = await asyncio.gather(asyncio.wait_for(waiting, 25), run_in_thread(_end, turn, later))
    return outcome.status


def _end(turn: Turn, later: float) -> None:
    """Row first, then the event, as every ending is told."""
    time.sleep(later)  # a moment of the race, waited for by nobody
    Turn.objects.filter(pk=turn.pk).update(status="cancelled", ended_at=timezone.now())
    event_log.append_events(str(turn.session_id), [(TurnCancelled(run_ids=[], reason="user"), str(turn.pk))])
