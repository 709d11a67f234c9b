"""The running turn's identity goes where its work goes, and nowhere else (A31)."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings

from config.core.db import run_in_thread
from copilot.chat import admission, turn_context
from copilot.chat.permissions import NO_PERMISSIONS, UNRESTRICTED
from copilot.chat.turn_context import (
    CHANNELS_BY_ORIGIN,
    Channel,
    InboundContext,
    ReplyAddress,
    TurnContext,
    WorkspaceScope,
)
from copilot.models import Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.tools.base import ToolInvocation, ToolOutput
from diagnostics import reaper
from tests.support import factories
from tests.support.turn_engine import Errand, NoArguments, add_tools, command, cue, ended, say, start, until


def turn(number: int) -> TurnContext:
    return TurnContext(
        user_id=number,
        session_id=f"session-{number}",
        turn_id=f"turn-{number}",
        fence=1,
        origin="web",
        permissions=NO_PERMISSIONS,
        channel=CHANNELS_BY_ORIGIN["web"],
    )


def here() -> str:
    return turn_context.get_turn_context().turn_id


async def test_fifty_turns_at_once_never_mix_in_tasks_and_threads():
    """A31.c1, A31.1: set in one place, inherited by child tasks and by threads of our bridge"""
    met = asyncio.Barrier(50)

    async def child() -> str:
        await asyncio.sleep(0)
        return here()

    async def run(number: int) -> set[str]:
        with turn_context.bind_turn_context(turn(number)):
            await met.wait()
            return {here(), await asyncio.create_task(child()), await run_in_thread(here)}

    seen = await asyncio.gather(*(run(number) for number in range(50)))
    assert seen == [{f"turn-{number}"} for number in range(50)]


def test_outside_a_turn_it_raises_and_inside_another_it_nests():
    """A31.1: reset by token, and immutable"""
    with pytest.raises(RuntimeError):
        here()
    with turn_context.bind_turn_context(turn(1)) as outer:
        with turn_context.bind_turn_context(turn(2)):
            assert here() == "turn-2"
        assert here() == "turn-1"
        with pytest.raises(dataclasses.FrozenInstanceError):
            outer.user_id = 2
    with pytest.raises(RuntimeError):
        here()


@pytest.mark.parametrize("ability", ["async_delivery", "interactive"])
def test_a_channel_that_leaves_an_ability_out_stops_the_boot(ability):
    """A31.c1, A31.2: there is no default, and the table is made when the module is loaded"""
    with pytest.raises(TypeError, match=ability):
        Channel(**{name: True for name in ("async_delivery", "interactive") if name != ability})


def test_each_channel_can_do_what_its_way_in_can():
    """A31.2"""
    able = {
        name: (channel.async_delivery, channel.interactive) for name, channel in CHANNELS_BY_ORIGIN.items()
    }
    assert able["web"] == able["goal"] == (True, True)
    assert able["api"] == (False, True)
    assert able["schedule"] == able["parent"] == (True, False)


# --- a turn asked for from a chat platform (L16) -----------------------------------------------------

DEN = ReplyAddress(
    platform="telegram",
    conversation_id="11111111-1111-4111-8111-111111111111",
    container="-100",
    thread="7",
    anchor="42",
    speaker="9007199254740993",
    of_payer=False,
    async_delivery=False,
    interactive=True,
)


class Look(Errand):
    """Remembers what the turn's context said."""

    seen: list[TurnContext]

    async def _run(self, arguments: NoArguments, invocation: ToolInvocation) -> ToolOutput:
        self.seen = [*getattr(self, "seen", []), turn_context.get_turn_context()]
        return await super()._run(arguments, invocation)


@pytest.mark.parametrize("queued", [False, True])
def test_a_turn_knows_where_it_was_asked_for_also_on_another_worker(rig, model, monkeypatch, queued):
    """A31.1, A31.2, A-L16.2: channel, reply address, workspace, locale and deadline, from the turn's row"""
    session = factories.session()
    look = Look("look_around")
    add_tools(monkeypatch, look)
    inbound_context = InboundContext(locale="de", reply=DEN)
    guest = replace(UNRESTRICTED, files="session")
    if queued:
        model.will(ScriptedText("First."), cue(1))
        first = start(session)
        model.reaches(1)
    model.will(ScriptedCall("look_around", {}))
    model.will(ScriptedText("Half"), cue(2), ScriptedText(" whole."))
    say(
        session,
        "And?",
        origin="telegram",
        run_id="r",
        inbound_context=inbound_context,
        permissions=guest,
        author="Bob",
    )
    if queued:
        model.give(1)
        ended(first)
    until(lambda: Turn.objects.filter(run_ids__contains=["r"]).exists())
    turn = Turn.objects.get(run_ids__contains=["r"])
    model.reaches(2)
    model.will(ScriptedCall("look_around", {}))
    rig.worker.kill()
    rig.start_worker()
    until(lambda: reaper.take_over_dead_turns() == 1)
    ended(turn.pk)
    seen, again = look.seen
    assert seen.inbound_context == again.inbound_context == inbound_context
    assert (again.locale, again.reply, again.channel.async_delivery) == ("de", DEN, False)
    assert again.workspace == WorkspaceScope(user_id=session.owner_id, session_id=str(session.pk))
    assert seen.deadline < datetime.now(UTC) + timedelta(seconds=settings.TURN_MAX_SECONDS)
    assert again.seconds_left(seen.deadline) <= 1
    assert "speaker: Bob" in model.said_to()


def test_a_platform_that_says_nothing_of_itself_is_refused(db):
    """A31.2, A31.3: the place declares what its channel can do, and there is no default"""
    with pytest.raises(LookupError, match="telegram"):
        admission.submit_message(command(factories.session(), "Hello", origin="telegram"))
    with pytest.raises(LookupError, match="slack"):
        turn_context.get_channel("slack", DEN)
    with pytest.raises(TypeError, match="async_delivery"):
        ReplyAddress(**{name: value for name, value in asdict(DEN).items() if name != "async_delivery"})
