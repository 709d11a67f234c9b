"""Run many turns at once: clients that run turn after turn, or hold one long turn each.

    python -m bench.load --client openai --target http://127.0.0.1:9000/v1 --concurrency 50

measures any target from outside with the standard load of P16.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from bench.clients import Client, OpenAIClient, Prompt, SocketClient, SseClient, Target, http_session
from bench.readings import Reading, lags_ms, now, spread

STANDARD = Prompt(tokens=100, first_ms=50, gap_ms=10)


@dataclass
class Loaded:
    """The results of a load run."""

    readings: list[Reading]
    turns_per_second: float

    @property
    def failed(self) -> list[str]:
        return [r.problem or r.ending for r in self.readings if r.ending != "turn.succeeded"]

    @property
    def wrong(self) -> int:
        return sum(reading.wrong for reading in self.readings)

    def as_detail(self) -> dict[str, object]:
        return {
            "turns": len(self.readings),
            "queued": sum(r.queued for r in self.readings),
            "failed": len(self.failed),
            "failures": sorted(set(self.failed)),
            "turns_per_second": round(self.turns_per_second, 2),
            "first_token_ms": spread(r.first_ms for r in self.readings if r.first_at),
            "token_lag_ms": spread(lags_ms(self.readings)),
            "lost": sum(r.lost for r in self.readings),
            "doubled": sum(r.doubled for r in self.readings),
            "misplaced": sum(r.misplaced for r in self.readings),
        }


async def closed_loop(clients: Sequence[Client], prompt: Prompt, rounds: int) -> Loaded:
    """Let every client run `rounds` turns without a pause; the rate is the sum of the clients' rates."""

    async def play(client: Client) -> tuple[list[Reading], float]:
        began = now()
        readings = [await client.play(prompt) for _ in range(rounds)]
        return readings, rounds / ((now() - began) / 1e9)

    played = await asyncio.gather(*(play(client) for client in clients))
    return Loaded(
        readings=[reading for readings, _ in played for reading in readings],
        turns_per_second=sum(rate for _, rate in played),
    )


async def _measure(options: argparse.Namespace) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    target = Target(options.target.rstrip("/"), headers)
    async with http_session() as http:
        clients = [await _client(options, target, http) for _ in range(options.concurrency)]
        await closed_loop(clients, STANDARD, 1)
        loaded = await closed_loop(clients, STANDARD, options.rounds)
        for client in clients:
            await client.close()
    return loaded.as_detail()


async def _client(options: argparse.Namespace, target: Target, http: aiohttp.ClientSession) -> Client:
    if options.client == "openai":
        return OpenAIClient(target, options.model, http)
    async with http.post(f"{target.url}/api/v1/sessions", json={}, headers=target.headers) as response:
        response.raise_for_status()
        session_id = (await response.json())["id"]
    if options.client == "sse":
        return await SseClient(target, session_id, http).open()
    return await SocketClient(target, session_id).open()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__.splitlines()[0])
    parser.add_argument("--client", choices=("socket", "sse", "openai"), required=True)
    parser.add_argument("--target", required=True, help="base address; for openai with its /v1")
    parser.add_argument("--key", default="", help="bearer token")
    parser.add_argument("--model", default="fake:stamp=1")
    parser.add_argument("--concurrency", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=6)
    import uvloop

    print(json.dumps(uvloop.run(_measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
