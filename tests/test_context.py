"""The running turn's identity goes where its work goes, and nowhere else (A31)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from copilot import context
from copilot.bridge import in_thread
from copilot.context import CHANNELS, Channel, TurnContext
from copilot.permissions import NOTHING


def turn(number: int) -> TurnContext:
    return TurnContext(
        user_id=number,
        session_id=f"session-{number}",
        turn_id=f"turn-{number}",
        fence=1,
        origin="web",
        permissions=NOTHING,
        channel=CHANNELS["web"],
    )


def here() -> str:
    return context.current().turn_id


async def test_fifty_turns_at_once_never_mix_in_tasks_and_threads():
    """A31.c1, A31.1: set in one place, inherited by child tasks and by threads of our bridge"""
    met = asyncio.Barrier(50)

    async def child() -> str:
        await asyncio.sleep(0)
        return here()

    async def run(number: int) -> set[str]:
        with context.bound(turn(number)):
            await met.wait()
            return {here(), await asyncio.create_task(child()), await in_thread(here)}

    seen = await asyncio.gather(*(run(number) for number in range(50)))
    assert seen == [{f"turn-{number}"} for number in range(50)]


def test_outside_a_turn_it_raises_and_inside_another_it_nests():
    """A31.1: reset by token, and immutable"""
    with pytest.raises(RuntimeError):
        here()
    with context.bound(turn(1)) as outer:
        with context.bound(turn(2)):
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
    able = {name: (channel.async_delivery, channel.interactive) for name, channel in CHANNELS.items()}
    assert able["web"] == able["goal"] == (True, True)
    assert able["api"] == (False, True)
    assert able["schedule"] == able["parent"] == (True, False)
