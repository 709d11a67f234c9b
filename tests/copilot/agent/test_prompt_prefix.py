"""Earlier requests stay the beginning of later ones, so that providers can cache them (A15.9)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import msgspec
import pytest

from copilot.agent.loop import AgentLoop
from copilot.agent.model_context import build_context, build_message_context, read_system_prompt
from copilot.agent.queued_messages import FollowUp, render_follow_ups, render_stored_blocks
from copilot.chat import stop
from copilot.chat.message_rows import MessageRow
from copilot.models import Session
from copilot.providers import anthropic, openai_chat, openai_responses
from copilot.providers.base import CatalogueEntry, ReasoningDelta, TextDelta, UserMessage
from copilot.providers.scripted import ScriptedCall, ScriptedText
from tests.support import factories
from tests.support.agent_loop import (
    ENTRY,
    Keeper,
    Reciter,
    Silence,
    call,
    calls,
    kinds,
    output_of,
    play_until,
    ports,
    say,
)
from tests.support.turn_engine import Errand, Model, add_tools, cue, ended, queue, quiet, start

TURNS = 20
MIDNIGHT = datetime(2026, 11, 16, 23, 40, tzinfo=UTC)


class Queue:
    """One follow-up at the first boundary of a turn, stored as rows before the model sees it."""

    def __init__(self, keeper, text):
        self.keeper = keeper
        self.waiting = [FollowUp(id=str(uuid4()), text=text), FollowUp(id=str(uuid4()), text="and soon")]

    async def take_follow_ups(self):
        taken, self.waiting = self.waiting, []
        for follow_up, block in zip(taken, render_stored_blocks(taken), strict=True):
            data = {"follow_up": block}
            self.keeper.add(
                MessageRow(id=follow_up.id, kind="user", content=follow_up.text, mid_turn=True, data=data)
            )
        return (UserMessage(text=render_follow_ups(taken)),) if taken else ()


def replies(number):
    arguments = json.dumps({"zone": "north", "at": {"row": number, "col": 2}, "a": [1, 2]})
    looking = calls(call(f"c{number}a", "look", arguments), call(f"c{number}b", "look"), text="I look.")
    thinking = [ReasoningDelta("hm"), *calls(call(f"c{number}c", "write_file", "{"), call("x", "nonsense"))]
    return looking, thinking, say(f"Answer {number} ", "is here.")


async def played_turn(number, keeper):
    """The requests of one turn; every seventh is stopped amid its answer."""
    context = build_message_context(
        sent=f"{MIDNIGHT + timedelta(minutes=5 * number):%A, %Y-%m-%d %H:%M} (Europe/Berlin)"
    )
    keeper.add(MessageRow(id=str(uuid4()), kind="user", content=f"Question {number}", server_context=context))
    *work, answer = replies(number)
    stopped = number % 7 == 6
    reciter = Reciter(*work, [TextDelta("Answer, in p"), Silence()] if stopped else answer)
    loop = AgentLoop(
        system=read_system_prompt(),
        messages=list(build_context(keeper.rows(), turn_id=f"turn-{number}", entry=ENTRY)),
        chain=(ENTRY,),
        ports=ports(reciter, follow_ups=Queue(keeper, f"Hurry with {number}")),
    )

    def keep_newest(parts):
        keeper.keep(parts[-1])
        return loop.rounds == 3 and kinds(parts)[-1] == "text.extended"

    if stopped:
        await play_until(loop, keep_newest)
        keeper.keep(loop.open_block)
    else:
        output_of(loop).on_emit = keep_newest
        await loop.run()
    return reciter.requests


WIRES = {
    "chat": (
        CatalogueEntry(name="m", provider="openai_chat", model="gpt"),
        openai_chat.encode_request,
        {"official": True},
    ),
    "gateway": (
        CatalogueEntry(
            name="m", provider="openai_chat", model="anthropic/claude-x", base_url="https://openrouter.ai"
        ),
        openai_chat.encode_request,
        {"official": False},
    ),
    "responses": (
        CatalogueEntry(name="m", provider="openai_responses", model="gpt"),
        openai_responses.encode_request,
        {},
    ),
    "anthropic": (
        CatalogueEntry(name="m", provider="anthropic", model="claude-x"),
        anthropic.build_request_body,
        {},
    ),
}


def canonical(request, wire):
    """The body as a provider reads it, without cache marks and replay data; the end of the list is no content."""
    entry, encode, more = WIRES[wire]
    messages = tuple(replace(m, replay=()) if m.role == "assistant" else m for m in request.messages)
    body = encode(replace(request, entry=entry, messages=messages, thinking_tokens=0), **more)
    plain = without_marks(msgspec.json.decode(body) if isinstance(body, bytes) else body)
    return msgspec.json.encode(plain).decode().removesuffix("]}")


def without_marks(value):
    if isinstance(value, list):
        return [without_marks(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: without_marks(item) for name, item in value.items() if name != "cache_control"}


def common(earlier, later):
    """How many characters both begin with."""
    pairs = enumerate(zip(earlier, later, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(earlier), len(later)))


def assert_prefixes_hold(requests, wire):
    texts = [canonical(request, wire) for request in requests]
    for earlier, later in pairwise(texts):
        assert common(earlier, later) / len(earlier) >= 0.99
        assert len(later) > len(earlier)


@pytest.fixture(scope="module", name="requests")
def _requests():
    return asyncio.run(played_conversation())


async def played_conversation():
    keeper, requests = Keeper(), []
    for number in range(TURNS):
        requests += await played_turn(number, keeper)
    return requests


@pytest.mark.parametrize("wire", WIRES)
def test_twenty_turns_with_tools_follow_ups_a_midnight_and_stops_keep_their_prefix(requests, wire):
    """A15.9, A15.c1"""
    assert len(requests) == 3 * TURNS
    assert_prefixes_hold(requests, wire)


# --- through the engine and the database -------------------------------------------------------------


def worked(session: Session, model: Model, errand: Errand, number: int) -> None:
    """One turn: a call, a follow-up at its boundary, an answer that is sometimes stopped."""
    stopped = number % 5 == 4
    model.will(ScriptedText("I look."), ScriptedCall("look", {"note": f"at {number}"}), cue(2 * number + 1))
    model.will(ScriptedText("So far "), cue(2 * number + 2), ScriptedText(f"answer {number}."))
    turn = start(session, f"Question {number}, please.")
    model.reaches(2 * number + 1)
    queue(session, f"Hurry with {number}.")
    model.give(2 * number + 1)
    model.reaches(2 * number + 2)
    if stopped:
        stop.stop_session(session.owner_id, session.pk)
    else:
        model.give(2 * number + 2)
    assert ended(turn).status == ("cancelled" if stopped else "succeeded")
    quiet(session)


def test_what_the_database_gives_back_is_what_was_sent(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A15.9: twenty turns of the real engine, each rebuilt from its rows."""
    errand = Errand("look")
    add_tools(monkeypatch, errand)
    session = factories.session(factories.ada())
    for number in range(TURNS):
        worked(session, model, errand, number)
    assert errand.runs == TURNS
    assert len(model.requests) == 2 * TURNS
    for wire in WIRES:
        assert_prefixes_hold(model.requests, wire)


def test_two_users_share_the_system_text_and_the_tools_to_the_byte(model: Model) -> None:
    """A15.c1"""
    for user in (factories.ada(), factories.bob()):
        ended(start(factories.session(user), "Hello"))
    one, other = model.requests
    assert (one.system, one.suffix, one.tools) == (other.system, other.suffix, other.tools)
    parts = [
        canonical(replace(request, messages=(UserMessage(text="x"),)), "anthropic")
        for request in (one, other)
    ]
    assert parts[0] == parts[1]
