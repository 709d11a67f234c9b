"""The standard load against the bare provider: turns per second, token lag, tokens gone wrong (P16, P17, P18)."""

from __future__ import annotations

from collections.abc import Sequence

from bench.bars import Findings, Measured
from bench.clients import Client, OpenAIClient, Target, http_session
from bench.load import STANDARD, Loaded, closed_loop
from bench.meters import cpu_seconds
from bench.options import Scale
from bench.readings import lags_ms, percentile
from bench.site import MODEL, Site

CONCURRENCIES = (50, 100)


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    shares, lags, wrong, detail = [], [], [], {}
    for concurrency in CONCURRENCIES:
        bare = await _bare(site, scale, concurrency)
        before = cpu_seconds(site)
        sockets = await site.clients(range(concurrency))
        loaded = await _loaded(sockets, scale.rounds)
        after = cpu_seconds(site)
        for socket in sockets:
            await socket.close()
        shares.append(100 * loaded.turns_per_second / bare.turns_per_second)
        lags.append(percentile(lags_ms(loaded.readings), 95))
        wrong.append(float(loaded.wrong + len(loaded.failed)))
        used = {name: round(after[name] - before[name], 2) for name in after}
        detail[f"c={concurrency}"] = {
            "bare": bare.as_detail(),
            "ours": loaded.as_detail(),
            "cpu_seconds": used,
        }
    findings.lines["P16"] = Measured(tuple(shares), dict(detail))
    findings.lines["P17"] = Measured(tuple(lags))
    findings.lines["P18"] = Measured(tuple(wrong))


async def _bare(site: Site, scale: Scale, concurrency: int) -> Loaded:
    """The same load straight at the provider, with everything else idle."""
    async with http_session() as http:
        clients = [OpenAIClient(Target(site.provider_url), MODEL, http) for _ in range(concurrency)]
        return await _loaded(clients, max(3, scale.rounds // 2))


async def _loaded(clients: Sequence[Client], rounds: int) -> Loaded:
    await closed_loop(clients, STANDARD, 1)
    return await closed_loop(clients, STANDARD, rounds)
