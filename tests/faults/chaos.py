"""Breaks one part after the other, at random but repeatable, and starts it again."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from config.dev.servers import EmbeddedServer
from tests.faults.site import TURNS, WEB, Site, frozen


class Chaos:
    def __init__(self, site: Site, seed: int, *, longest_freeze: float) -> None:
        self.site = site
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self._chance = random.Random(seed)
        self._longest_freeze = longest_freeze
        self._frozen: dict[str, float] = {}  # process → when it is woken
        self._began = time.monotonic()

    async def rage(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        while time.monotonic() < over:
            await asyncio.sleep(self._chance.uniform(1.5, 5.0))
            await asyncio.to_thread(self._break_something)
            await asyncio.sleep(self._chance.uniform(0.5, 2.5))
            await asyncio.to_thread(self.mend)
        await asyncio.to_thread(self.mend, everything=True)

    def mend(self, *, everything: bool = False) -> None:
        for name, wakes_at in list(self._frozen.items()):
            if everything or time.monotonic() >= wakes_at:
                self.site.signal(name, signal.SIGCONT)
                del self._frozen[name]
        self.site.revive()

    def _break_something(self) -> None:
        acts: list[tuple[int, str, Callable[[], None]]] = [
            (6, "worker killed", self._kill_worker),
            (2, "worker frozen", self._freeze_worker),
            (3, "worker told to leave", self._dismiss_worker),
            (3, "web killed", self._kill_web),
            (1, "maintenance killed", self._kill_maintenance),
            (2, "Redis killed", lambda: self.site.kill_server(self.site.valkey)),
            (2, "Postgres killed", lambda: self.site.kill_server(self.site.postgres)),
            (1, "Redis frozen", lambda: self._freeze_server(self.site.valkey)),
            (1, "Postgres frozen", lambda: self._freeze_server(self.site.postgres)),
            *(
                (3, f"{name} killed", partial(self.site.signal, name, signal.SIGKILL))
                for name in self.site.engines
            ),
        ]
        name, act = self._chance.choices(
            [(name, act) for _, name, act in acts], [weight for weight, _, _ in acts]
        )[0]
        act()
        self.done[name] += 1
        self.log.append(f"{time.monotonic() - self._began:6.1f} s  {name}")

    def _kill_worker(self) -> None:
        self.site.signal(self._chance.choice(TURNS), signal.SIGKILL)

    def _freeze_worker(self) -> None:
        if not self._frozen:  # one of two must be there to take over
            name = self._chance.choice(TURNS)
            self.site.signal(name, signal.SIGSTOP)
            self._frozen[name] = time.monotonic() + self._chance.uniform(
                self._longest_freeze / 2, self._longest_freeze
            )

    def _freeze_server(self, server: EmbeddedServer) -> None:
        if server.is_running:
            with frozen(server):
                time.sleep(self._chance.uniform(2.0, self._longest_freeze / 2))

    def _dismiss_worker(self) -> None:
        name = self._chance.choice(TURNS)
        if name not in self._frozen:
            self.site.signal(name, signal.SIGTERM)

    def _kill_web(self) -> None:
        self.site.signal(self._chance.choice(WEB), signal.SIGKILL)

    def _kill_maintenance(self) -> None:
        self.site.signal("maintenance", signal.SIGKILL)
