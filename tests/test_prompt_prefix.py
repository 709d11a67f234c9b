"""Earlier requests stay the beginning of later ones, so that providers can cache them (A15.9)."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import msgspec

from copilot.agent.followups import FollowUp, render, stored
from copilot.agent.loop import Loop
from copilot.agent.prompt import build, server_context, system_text
from copilot.providers.base import ReasoningDelta, TextDelta, UserMessage
from copilot.rows import Row
from tests.playing import ENTRY, Keeper, Reciter, call, calls, ports, say

TURNS = 20
MIDNIGHT = datetime(2026, 11, 16, 23, 40, tzinfo=UTC)


class Queue:
    """One follow-up at the first boundary of a turn, stored as rows before the model sees it."""

    def __init__(self, keeper, text):
        self.keeper = keeper
        self.waiting = [FollowUp(id=str(uuid4()), text=text), FollowUp(id=str(uuid4()), text="and soon")]

    async def take(self):
        taken, self.waiting = self.waiting, []
        for follow_up, block in zip(taken, stored(taken), strict=True):
            data = {"follow_up": block}
            self.keeper.add(
                Row(id=follow_up.id, kind="user", content=follow_up.text, mid_turn=True, data=data)
            )
        return (UserMessage(text=render(taken)),) if taken else ()


def replies(number):
    arguments = json.dumps({"zone": "north", "at": {"row": number, "col": 2}, "a": [1, 2]})
    looking = calls(call(f"c{number}a", "look", arguments), call(f"c{number}b", "look"), text="I look.")
    thinking = [ReasoningDelta("hm"), *calls(call(f"c{number}c", "write_file", "{"), call("x", "nonsense"))]
    return looking, thinking, say(f"Answer {number} ", "is here.")


async def played_turn(number, keeper):
    """The requests of one turn; every seventh is stopped amid its answer."""
    context = server_context(now=MIDNIGHT + timedelta(minutes=5 * number), timezone="Europe/Berlin")
    keeper.add(Row(id=str(uuid4()), kind="user", content=f"Question {number}", server_context=context))
    *work, answer = replies(number)
    stopped = number % 7 == 6
    reciter = Reciter(*work, [TextDelta("Answer, in p")] if stopped else answer)
    loop = Loop(
        system=system_text(),
        messages=list(build(keeper.rows(), turn_id=f"turn-{number}", entry=ENTRY)),
        chain=(ENTRY,),
        ports=ports(reciter, follow_ups=Queue(keeper, f"Hurry with {number}")),
    )
    async with aclosing(loop.play()) as parts:
        async for part in parts:
            keeper.keep(part)
            if stopped and loop.rounds == 3 and getattr(part, "kind", "") == "text.extended":
                keeper.keep(loop.open_block)
                break
    return reciter.requests


def canonical(request):
    """System, tools and messages in the order a provider reads them, without replay data."""
    messages = [replace(m, replay=()) if m.role == "assistant" else m for m in request.messages]
    parts = [request.system, request.suffix, [(t.name, t.description) for t in request.tools], messages]
    return msgspec.json.encode(parts).decode()


def common(earlier, later):
    """How many characters both begin with."""
    pairs = enumerate(zip(earlier, later, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(earlier), len(later)))


async def test_twenty_turns_with_tools_follow_ups_a_midnight_and_stops_keep_their_prefix():
    """A15.9, A15.c1"""
    keeper, requests = Keeper(), []
    for number in range(TURNS):
        requests += await played_turn(number, keeper)
    texts = [canonical(request) for request in requests]
    assert len(texts) == 3 * TURNS
    for earlier, later in pairwise(texts):
        assert common(earlier, later) / len(earlier) >= 0.99
