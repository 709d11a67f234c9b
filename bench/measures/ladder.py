"""Measure rising numbers of turns at 50 tokens a second: lag, first tokens, memory, CPU, Redis (P2, P3, P6, P13, P15)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.bars import Findings, Growth, Measured
from bench.clients import OpenAIClient, Prompt, SocketClient, Target, http_session
from bench.meters import Window, memory_bytes, watch
from bench.options import Scale
from bench.readings import Reading, lags_ms, percentile, spread
from bench.site import MODEL, Site

GAP_MS = 20
PER_SECOND = 1000 // GAP_MS
PROBE = Prompt(tokens=3, first_ms=20, gap_ms=GAP_MS)
PROBE_SESSIONS = 8  # in addition to the largest step
BEHIND = 1.10  # of the provider's own time
SETTLE_SECONDS = 1.0
PROBED = 200  # larger steps only check that turns keep up; the probe would exceed a worker's limit


@dataclass
class Step:
    """Results with this many turns at once."""

    turns: int
    readings: list[Reading]
    window: Window
    memory: int
    expected_seconds: float
    ours_ms: list[float] = field(default_factory=list)
    direct_ms: list[float] = field(default_factory=list)

    @property
    def behind(self) -> int:
        """Count the turns that failed or lagged behind their provider by more than a tenth."""
        return sum(
            reading.ending != "turn.succeeded"
            or (reading.last_at - reading.first_at) / 1e9 > BEHIND * self.expected_seconds
            for reading in self.readings
        )

    @property
    def lag_p95(self) -> float:
        return percentile(lags_ms(self.readings), 95)

    @property
    def first_token_p95(self) -> float:
        return percentile(self.ours_ms, 95) - percentile(self.direct_ms, 95)

    def as_detail(self) -> dict[str, object]:
        return {
            "turns": self.turns,
            "behind": self.behind,
            "endings": sorted({r.problem or r.ending for r in self.readings}),
            "wrong_tokens": sum(r.wrong for r in self.readings),
            "token_lag_ms": spread(lags_ms(self.readings)),
            "first_token_ms": spread(self.ours_ms),
            "direct_first_token_ms": spread(self.direct_ms),
            "window_seconds": round(self.window.seconds, 2),
            "cpu_seconds": self.window.cpu,
            "tokens": self.window.tokens,
        }


async def measure(site: Site, scale: Scale, findings: Findings) -> None:
    idle = memory_bytes(site, "turns")
    probes = await site.clients(range(max(scale.ladder), max(scale.ladder) + PROBE_SESSIONS))
    clients: list[SocketClient] = []
    steps: list[Step] = []
    for turns in scale.ladder:
        clients += await site.clients(range(len(clients), turns))
        steps.append(await _step(site, scale, clients, probes))
        if steps[-1].behind:
            break  # more turns would only fall further behind
    for client in [*clients, *probes]:
        await client.close()
    _report(findings, steps, idle)


async def _step(
    site: Site, scale: Scale, clients: Sequence[SocketClient], probes: Sequence[SocketClient]
) -> Step:
    ramp = len(clients) / scale.ramp_per_second
    probing = scale.probes * 0.12 if len(clients) <= PROBED else 0.0
    tokens = int((ramp + SETTLE_SECONDS + scale.hold_seconds + probing) * PER_SECOND)
    prompt = Prompt(tokens=tokens, first_ms=GAP_MS, gap_ms=GAP_MS)
    readings = []
    for client in clients:
        readings.append(client.begin(prompt))
        await asyncio.sleep(1 / scale.ramp_per_second)
    await asyncio.sleep(SETTLE_SECONDS)
    window = await watch(site, lambda: sum(reading.tokens for reading in readings), scale.hold_seconds)
    step = Step(
        turns=len(clients),
        readings=readings,
        window=window,
        memory=memory_bytes(site, "turns"),
        expected_seconds=(tokens - 1) * GAP_MS / 1000,
    )
    if probing:
        await _probe(site, scale, step, probes)
    await asyncio.gather(*(client.following.finished() for client in clients))
    return step


async def _probe(site: Site, scale: Scale, step: Step, probes: Sequence[SocketClient]) -> None:
    """Measure first tokens of one more user, from us and from the provider alternately."""
    async with http_session() as http:
        direct = OpenAIClient(Target(site.provider_url), MODEL, http)
        for number in range(scale.probes):
            step.direct_ms.append((await direct.play(PROBE)).first_ms)
            step.ours_ms.append((await probes[number % len(probes)].play(PROBE)).first_ms)


def _report(findings: Findings, steps: Sequence[Step], idle: int) -> None:
    by_size = {step.turns: step for step in steps}
    fine = [step.turns for step in steps if not step.behind]
    findings.lines["P3"] = Measured((max(fine, default=0),), {"steps": [step.as_detail() for step in steps]})
    if (hundred := by_size.get(100)) is not None:
        findings.lines["P2"] = Measured((hundred.lag_p95, hundred.first_token_p95), hundred.as_detail())
    if (fifty := by_size.get(50)) is not None:
        findings.lines["P15"], findings.lines["P13"] = _cpu(fifty.window), _redis(fifty)
    if (many := by_size.get(200)) is not None:
        each = (many.memory - idle) / 200 / 2**20
        findings.lines["P6"] = Measured((each,), {"idle_mb": round(idle / 2**20, 1)})
    first = steps[:3]
    sizes = tuple(step.turns for step in first)
    findings.growths += [
        Growth("P2", "token lag p95, ms", sizes, tuple(round(step.lag_p95, 2) for step in first)),
        Growth("P2", "CPU of the product per second", sizes, tuple(_rate(step) for step in first)),
        Growth("P6", "memory, MB", sizes, tuple(round((s.memory - idle) / 2**20, 2) for s in first)),
    ]


def _rate(step: Step) -> float:
    return round(step.window.product_cpu / step.window.seconds, 3)


def _cpu(window: Window) -> Measured:
    provider = window.cpu["provider"] / window.tokens
    ours = window.product_cpu / window.tokens
    detail: dict[str, object] = {
        "ms_per_token": {name: round(1000 * used / window.tokens, 4) for name, used in window.cpu.items()},
        "product_ms_per_token": round(1000 * ours, 4),
        "tokens": window.tokens,
    }
    return Measured((ours / provider,), detail)


def _redis(step: Step) -> Measured:
    window = step.window
    streamed = step.turns * window.seconds
    commands = {name: round(calls / streamed, 3) for name, calls in window.redis_commands.items()}
    ordered = dict(sorted(commands.items(), key=lambda pair: -pair[1]))
    return Measured((sum(window.redis_commands.values()) / streamed,), {"per_turn_and_second": ordered})
