"""One loop over all four providers: the same conversation gives the same events and the same rows (A33.c3)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby

import pytest

from copilot.agent.loop import AgentLoop
from copilot.agent.outputs import (
    CompactionSucceeded,
    LoopEnding,
    LoopOutput,
    ReasoningReplayAdded,
    ToolCallAdded,
    ToolResultAdded,
)
from copilot.providers.base import CatalogueEntry, ImagePart, Provider, UserMessage
from copilot.providers.scripted import (
    Script,
    ScriptedCall,
    ScriptedCut,
    ScriptedFailure,
    ScriptedFinish,
    ScriptedHang,
    ScriptedProvider,
    ScriptedReasoning,
    ScriptedText,
    ScriptItem,
)
from copilot.realtime.events import ReasoningExtended, TextExtended
from tests.support.agent_doubles import (
    InMemoryApprovalPolicy,
    InMemoryCompactor,
    InMemoryFollowUps,
    InMemoryToolbox,
)
from tests.support.agent_loop import kinds, look, loop_of, of, play, play_until
from tests.support.provider_wires import VENDORS, FakeProvider, vendor

WORDS = ScriptedText("t0 t1 ")
ENTRY = CatalogueEntry(name="Parity", provider="scripted", model="fake:tokens=2", supports_images=True)
PICTURE = ImagePart(mime="image/png", data=b"\x89PNG")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    plan: dict[str, object]  # for the fake provider
    script: Sequence[Sequence[ScriptItem]]  # the same, for the scripted one
    follow_up: str = ""
    images: tuple[ImagePart, ...] = ()
    asks: bool = False  # looking needs a person's word
    shortens: bool = False  # a conversation that is too long can be summarised


LOOK: dict[str, object] = {"name": "look", "arguments": {"at": "it"}}
SCENARIOS = {
    "text": Scenario(plan={}, script=[[WORDS]]),
    "tools": Scenario(
        plan={"tools": [LOOK, LOOK]}, script=[[ScriptedCall("look", {"at": "it"})] * 2, [WORDS]]
    ),
    "thoughts": Scenario(
        plan={"thinking": 2, "tools": [LOOK]},
        script=[
            [ScriptedReasoning("r0 r1 "), ScriptedCall("look", {"at": "it"})],
            [ScriptedReasoning("r0 r1 "), WORDS],
        ],
    ),
    "malformed": Scenario(
        plan={"tools": [{"name": "look", "arguments": '{"at": '}]},
        script=[[ScriptedCall("look", '{"at": ')], [WORDS]],
    ),
    "follow-up": Scenario(
        plan={"tools": [LOOK]}, script=[[ScriptedCall("look", {"at": "it"})], [WORDS]], follow_up="And this?"
    ),
    "images": Scenario(plan={}, script=[[WORDS]], images=(PICTURE,)),
    "overflow": Scenario(
        plan={"status": 400, "body": "prompt is too long"},
        script=[[ScriptedFailure(code="context_overflow")]],
    ),
    "shortened": Scenario(
        plan={"status": 400, "body": "prompt is too long", "fail_times": 1},
        script=[[ScriptedFailure(code="context_overflow")], [WORDS]],
        shortens=True,
    ),
    "pause": Scenario(
        plan={"tools": [LOOK, LOOK]}, script=[[ScriptedCall("look", {"at": "it"})] * 2], asks=True
    ),
    "two rounds": Scenario(
        plan={"tools": [{"name": "look", "arguments": {"at": "$round"}}], "rounds": 2},
        script=[[ScriptedCall("look", {"at": "0"})], [ScriptedCall("look", {"at": "1"})], [WORDS]],
    ),
    "unknown tool": Scenario(
        plan={"tools": [{"name": "lok", "arguments": {}}]}, script=[[ScriptedCall("lok", {})], [WORDS]]
    ),
    "tried again": Scenario(
        plan={"status": 529, "fail_times": 1}, script=[[ScriptedFailure("overloaded", status=529)], [WORDS]]
    ),
    "taken back": Scenario(
        plan={"cut_after": 1, "fail_times": 1}, script=[[ScriptedText("t0 "), ScriptedCut()], [WORDS]]
    ),
    "broken for good": Scenario(plan={"status": 401}, script=[[ScriptedFailure("auth_failed", status=401)]]),
    "length": Scenario(
        plan={"finish": "?"}, script=[[WORDS, ScriptedFinish("length")], [ScriptedFinish("length")]]
    ),
}
CUT_SHORT = {"openai_chat": "length", "openai_responses": "max_output_tokens", "anthropic": "max_tokens"}


@asynccontextmanager
async def provider_of(kind: str, scenario: Scenario, fake: FakeProvider) -> AsyncIterator[Provider]:
    if kind == "scripted":
        yield ScriptedProvider(Script(*scenario.script))
        return
    async with vendor(kind, fake.address) as provider:
        yield provider


def loop_for(kind: str, scenario: Scenario, provider: Provider) -> AgentLoop:
    """Each wire has words of its own: the fake counts failures by them."""
    plan = scenario.plan | ({"finish": CUT_SHORT.get(kind)} if "finish" in scenario.plan else {})
    asked = UserMessage(text=f"Hello {kind} fake:{json.dumps(plan)}", images=scenario.images)
    said = [(UserMessage(text=scenario.follow_up),)] if scenario.follow_up else []
    return loop_of(
        provider,
        messages=[asked],
        chain=(ENTRY,),
        toolbox=InMemoryToolbox(tools={"look": look}),
        follow_ups=InMemoryFollowUps(said),
        approvals=InMemoryApprovalPolicy(asks={"look": "It looks."} if scenario.asks else {}),
        compactor=InMemoryCompactor(*[CompactionSucceeded(messages=(asked,), tokens=10)] * scenario.shortens),
    )


async def played(kind: str, scenario: Scenario, fake: FakeProvider) -> list[LoopOutput | LoopEnding]:
    async with provider_of(kind, scenario, fake) as provider:
        return await play(loop_for(kind, scenario, provider))


def seen(parts: Sequence[LoopOutput]) -> list[str]:
    """Kinds in order, however often a block was extended; what a vendor keeps for itself is left out."""
    shown = [part for part in parts if not isinstance(part, ReasoningReplayAdded)]
    return [kind for kind, _ in groupby(kinds(shown))]


def rows(parts: Sequence[LoopOutput]) -> list[object]:
    """Return what is kept, without the ids that each run creates."""
    text = "".join(part.delta for part in of(parts, TextExtended))
    thought = "".join(part.delta for part in of(parts, ReasoningExtended))
    calls = [(made.call.tool, made.call.arguments) for made in of(parts, ToolCallAdded)]
    results = [(made.outcome.success, made.outcome.content) for made in of(parts, ToolResultAdded)]
    return [text, thought, calls, results]


@pytest.mark.parametrize("kind", VENDORS)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_vendor_gives_what_the_script_gives_a33_c3(
    name: str, kind: str, fake: FakeProvider
) -> None:
    scenario = SCENARIOS[name]
    expected = await played("scripted", scenario, fake)
    found = await played(kind, scenario, fake)
    assert seen(found) == seen(expected)
    assert rows(found) == rows(expected)


@pytest.mark.parametrize("kind", VENDORS)
async def test_every_vendor_hears_the_follow_up_and_sees_the_picture_a33_c3(
    kind: str, fake: FakeProvider
) -> None:
    for name, sign in (("follow-up", "And this?"), ("images", base64.b64encode(PICTURE.data).decode())):
        await played(kind, SCENARIOS[name], fake)
        assert sign in json.dumps(await asyncio.to_thread(fake.get, "/requests?last=1"))


STOPPED = Scenario(
    plan={"thinking": 2, "tokens": 1_000, "gap_ms": 20},
    script=[[ScriptedReasoning("r0 r1 "), ScriptedText("t0 "), ScriptedHang()]],
)


async def stopped(kind: str, fake: FakeProvider) -> tuple[list[str], list[str], bool]:
    """What was seen until the first word, what stood open then, and whether the call is known to be cut off."""
    async with provider_of(kind, STOPPED, fake) as provider:
        loop = loop_for(kind, STOPPED, provider)
        parts = await play_until(loop, lambda parts: of(parts, TextExtended))
        call = loop.unrecorded_call()
        left = [loop.open_block, loop.open_step]
        return seen(parts), [type(one).__name__ for one in left], call is not None and call.aborted


@pytest.mark.parametrize("kind", VENDORS)
async def test_a_stop_leaves_the_same_state_with_every_provider_a33_c3(kind: str, fake: FakeProvider) -> None:
    assert await stopped(kind, fake) == await stopped("scripted", fake)
