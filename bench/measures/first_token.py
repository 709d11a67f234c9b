"""Measure how much later the first token arrives than from the provider itself, one user at a time (P1, P7)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.bars import Findings, Measured
from bench.clients import Client, OpenAIClient, Prompt, Target, http_session
from bench.options import Scale
from bench.readings import Reading, milliseconds, percentile, spread
from bench.site import MODEL, BenchProblem, Site

SHORT = Prompt(tokens=5, first_ms=30, gap_ms=5)
WARM_UP = 10


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    """Alternate the calls, so that a slow moment of the machine affects both."""
    ours: list[Reading] = []
    direct: list[Reading] = []
    clients = await site.clients(range(8))
    async with http_session() as http:
        provider = OpenAIClient(Target(site.provider_url), MODEL, http)
        for number in range(WARM_UP + scale.first_tokens):
            direct.append(await played(provider, SHORT))
            ours.append(await played(clients[number % len(clients)], SHORT))
    for client in clients:
        await client.close()
    findings.lines["P1"] = _first_token(ours[WARM_UP:], direct[WARM_UP:])
    findings.lines["P7"] = _started(ours[WARM_UP:])


async def played(client: Client, prompt: Prompt) -> Reading:
    reading = await client.play(prompt)
    if reading.ending != "turn.succeeded":
        raise BenchProblem(f"a turn ended as {reading.ending} {reading.problem}")
    return reading


def _first_token(ours: Sequence[Reading], direct: Sequence[Reading]) -> Measured:
    mine, theirs = [r.first_ms for r in ours], [r.first_ms for r in direct]
    values = tuple(percentile(mine, share) - percentile(theirs, share) for share in (50, 95))
    accepted = [milliseconds(r.accepted_at - r.asked_at) for r in ours]
    return Measured(
        values, {"socket_ms": spread(mine), "direct_ms": spread(theirs), "accepted_ms": spread(accepted)}
    )


def _started(ours: Sequence[Reading]) -> Measured:
    waited = [milliseconds(r.started_at - r.asked_at) for r in ours]
    return Measured((percentile(waited, 95),), {"started_ms": spread(waited)})


async def first_token_ms(site: Site, calls: int, *, session: int = 0) -> list[float]:
    """Measure first tokens of one user on an otherwise unchanged site, after a warm-up."""
    client = await site.client(session).open()
    readings = [await played(client, SHORT) for _ in range(calls + 3)]
    await client.close()
    return [reading.first_ms for reading in readings[3:]]
