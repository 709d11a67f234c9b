"""Run the standard load through every API: its rate compared with the socket's, and its first token (P20, P21)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import aiohttp

from bench.bars import Findings, Measured
from bench.clients import AiSdkClient, Client, OpenAIClient, ResponsesClient, SseClient, Target, http_session
from bench.load import STANDARD, Loaded, closed_loop
from bench.measures.standard import CONCURRENCIES, measure_bare
from bench.options import Scale
from bench.readings import percentile
from bench.site import Site

OpenClient = Callable[[Site, int, aiohttp.ClientSession], Awaitable[Client]]


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    rates: dict[tuple[str, int], float] = {}
    firsts: dict[tuple[str, int], float] = {}
    detail: dict[str, object] = {}
    for concurrency in CONCURRENCIES:
        bare = await measure_bare(site, scale.api_rounds, concurrency)
        for name, open_client in APIS.items():
            loaded = await _load(site, open_client, concurrency, scale.api_rounds)
            rates[name, concurrency] = loaded.turns_per_second
            firsts[name, concurrency] = _first_token_ms(loaded) - _first_token_ms(bare)
            detail[f"{name}, c={concurrency}"] = loaded.as_detail()
    others = [name for name in APIS if name != "socket"]
    shares = tuple(100 * rates[name, 50] / rates["socket", 50] for name in others)
    findings.lines["P20"] = Measured(shares, detail)
    worst = tuple(max(firsts[name, concurrency] for name in APIS) for concurrency in CONCURRENCIES)
    findings.lines["P21"] = Measured(
        worst, {f"{name}, c={concurrency}": round(ms, 1) for (name, concurrency), ms in firsts.items()}
    )


async def _load(site: Site, open_client: OpenClient, concurrency: int, rounds: int) -> Loaded:
    async with http_session() as http:
        clients = [await open_client(site, number, http) for number in range(concurrency)]
        await closed_loop(clients, STANDARD, 1)
        loaded = await closed_loop(clients, STANDARD, rounds)
        for client in clients:
            await client.close()
    return loaded


def _first_token_ms(loaded: Loaded) -> float:
    return percentile([reading.first_ms for reading in loaded.readings if reading.first_at], 50)


async def _open_socket(site: Site, number: int, http: aiohttp.ClientSession) -> Client:
    return await site.client(number).open()


async def _open_sse(site: Site, number: int, http: aiohttp.ClientSession) -> Client:
    return await SseClient(site.api_target(number), site.seeded.sessions[number], http).open()


async def _open_completions(site: Site, number: int, http: aiohttp.ClientSession) -> Client:
    target = site.api_target(number)
    return OpenAIClient(Target(f"{target.url}/v1", target.headers), "standard", http)


async def _open_responses(site: Site, number: int, http: aiohttp.ClientSession) -> Client:
    return ResponsesClient(site.api_target(number), http)


async def _open_ai_sdk(site: Site, number: int, http: aiohttp.ClientSession) -> Client:
    return AiSdkClient(site.api_target(number), site.seeded.sessions[number], http)


APIS: dict[str, OpenClient] = {
    "socket": _open_socket,
    "sse": _open_sse,
    "completions": _open_completions,
    "responses": _open_responses,
    "ai_sdk": _open_ai_sdk,
}
