"""Compare the standard load with the bare provider: turns per second, token lag, wrong tokens (P16, P17, P18)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.bars import Findings, Measured
from bench.clients import Client, NewChatClient, OpenAIClient, Target, http_session
from bench.load import STANDARD, Loaded, closed_loop
from bench.meters import cpu_seconds
from bench.options import Scale
from bench.readings import lags_ms, percentile
from bench.site import MODEL, Site

CONCURRENCIES = (50, 100)
NEW_SESSION_ROUNDS = 4  # of new sessions


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    shares, lags, wrong, detail = [], [], [], {}
    for concurrency in CONCURRENCIES:
        bare = await measure_bare(site, scale.rounds, concurrency)
        before = cpu_seconds(site)
        loaded = await run_load(await site.clients(range(concurrency)), scale.rounds)
        after = cpu_seconds(site)
        rounds = min(scale.rounds, NEW_SESSION_ROUNDS)
        new = await run_load(await _new_chats(site, concurrency, rounds + 1), rounds)
        shares += [100 * one.turns_per_second / bare.turns_per_second for one in (loaded, new)]
        lags.append(percentile(lags_ms(loaded.readings), 95))
        wrong.append(float(sum(one.wrong + len(one.failed) for one in (loaded, new))))
        used = {name: round(after[name] - before[name], 2) for name in after}
        detail[f"c={concurrency}"] = {
            "bare": bare.as_detail(),
            "ours": loaded.as_detail(),
            "new_sessions": new.as_detail(),
            "cpu_seconds": used,
        }
    findings.lines["P16"] = Measured(tuple(shares), dict(detail))
    findings.lines["P17"] = Measured(tuple(lags))
    findings.lines["P18"] = Measured(tuple(wrong))


async def measure_bare(site: Site, rounds: int, concurrency: int) -> Loaded:
    """Run the same load directly at the provider, with everything else idle."""
    async with http_session() as http:
        clients = [OpenAIClient(Target(site.provider_url), MODEL, http) for _ in range(concurrency)]
        return await run_load(clients, max(3, rounds // 2))


async def _new_chats(site: Site, concurrency: int, rounds: int) -> list[NewChatClient]:
    clients = [
        NewChatClient(site.target(number), site.take_new_sessions(number, rounds))
        for number in range(concurrency)
    ]
    for client in clients:
        await client.open()
    return clients


async def run_load(clients: Sequence[Client], rounds: int) -> Loaded:
    await closed_loop(clients, STANDARD, 1)
    loaded = await closed_loop(clients, STANDARD, rounds)
    for client in clients:
        await client.close()
    return loaded
