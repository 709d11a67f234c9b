"""Measure how much of each request repeats the previous one, which prompt caches depend on (P11)."""

from __future__ import annotations

from itertools import pairwise

import aiohttp
import msgspec

from bench.bars import Findings, Measured
from bench.clients import Prompt, SocketClient, http_session
from bench.measures.first_token import played
from bench.options import Scale
from bench.readings import percentile
from bench.site import BenchProblem, Site

TURNS = 3
ROUNDS = 10  # per turn, followed by an answer
WRITE = {
    "name": "write_file",
    "arguments": '{"name": "note $round.md", "content": "Step $round: all is well."}',
}
LOOK = {"name": "read_file", "arguments": '{"file": "note $round.md"}'}
WORK = Prompt(tokens=20, more={"tools": [WRITE, LOOK], "rounds": ROUNDS})


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    client = await SocketClient(site.target(0), site.seeded.sessions[0]).open()
    for _ in range(TURNS):
        await played(client, WORK)
    await client.close()
    async with http_session() as http:
        bodies = await _conversation(site, http)
    if len(bodies) != TURNS * (ROUNDS + 1):
        raise BenchProblem(f"{len(bodies)} requests came of {TURNS} turns with {ROUNDS} rounds each")
    shares = [100 * _common(earlier, later) / len(earlier) for earlier, later in pairwise(bodies)]
    detail: dict[str, object] = {
        "requests": len(bodies),
        "bytes_of_the_last": len(bodies[-1]),
        "median_percent": round(percentile(shares, 50), 3),
    }
    findings.lines["P11"] = Measured((min(shares),), detail)


async def _conversation(site: Site, http: aiohttp.ClientSession) -> list[bytes]:
    """Return the newest requests that offered tools, as sent; requests for titles offer none."""
    last = 2 * TURNS * (ROUNDS + 1)
    url = f"http://127.0.0.1:{site.provider_port}/requests?last={last}"
    async with http.get(url) as response:
        recorded = msgspec.json.decode(await response.read())
    asked = [one["body"] for one in recorded if one["body"].get("tools")]
    return [msgspec.json.encode(body) for body in asked[-TURNS * (ROUNDS + 1) :]]


def _common(earlier: bytes, later: bytes) -> int:
    """Count the bytes that both begin with."""
    pairs = enumerate(zip(earlier, later, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(earlier), len(later)))
