"""People who chat while everything breaks: they send, queue, stop and watch, and remember what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count

import aiohttp
import msgspec

from copilot.realtime import events
from tests.support import event_reducer

PATIENCE = aiohttp.ClientTimeout(total=20)
_numbers = count(1)
TOOL = '{"tools": [{"name": "current_time", "arguments": "{}"}], "tokens": 40}'


@dataclass
class Person:
    """Owns one chat."""

    name: str
    token: str
    session_id: str
    stops: bool  # half of them never do, so that the order of their messages can be checked strictly
    accepted: dict[str, str] = field(default_factory=dict)  # message id → text
    doubtful: set[str] = field(default_factory=set)  # texts sent without an answer: there or not, never twice
    refused: set[str] = field(default_factory=set)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}


class Crowd:
    """All of them, until told to stop."""

    def __init__(self, people: list[Person], urls: list[str], seed: int) -> None:
        self.people = people
        self.watchers = [Watcher(person, urls) for person in people]
        self._urls = urls
        self._chance = random.Random(seed)
        self._over = asyncio.Event()
        self._talking: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def chatting(self) -> AsyncIterator[None]:
        """They watch all the time, and talk until `hush`."""
        async with aiohttp.ClientSession(timeout=PATIENCE) as http:
            watching = [asyncio.create_task(watcher.watch(http)) for watcher in self.watchers]
            self._talking = [asyncio.create_task(self._talk(http, person)) for person in self.people]
            try:
                yield
            finally:
                for task in (*watching, *self._talking):
                    task.cancel()
                await asyncio.gather(*watching, *self._talking, return_exceptions=True)

    async def hush(self) -> None:
        """Let running turns finish; then every chat sends a last message, which brings along what a stop left behind."""
        self._over.set()
        await asyncio.gather(*self._talking)
        await self.close()

    async def close(self) -> None:
        """A last word in every chat, so that chips kept by a stop enter the conversation too."""
        async with aiohttp.ClientSession(timeout=PATIENCE) as http:
            await asyncio.gather(*(self._insist(http, person) for person in self.people))

    async def _insist(self, http: aiohttp.ClientSession, person: Person) -> None:
        text = f"{person.name}: the last word"
        while text not in person.accepted.values():
            person.refused.discard(text)
            await self._send(http, person, text, run_id=None)
            await asyncio.sleep(0.5)

    async def _talk(self, http: aiohttp.ClientSession, person: Person) -> None:
        chance = random.Random(self._chance.random())
        while not self._over.is_set():
            for _ in range(chance.choice((1, 1, 2, 3))):
                await self._say_something(http, person, chance)
            if person.stops and chance.random() < 0.3:
                await self._pause(chance.uniform(0, 1.5))
                await self._stop(http, person)
            await self._pause(chance.uniform(1.0, 5.0))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    async def _say_something(
        self, http: aiohttp.ClientSession, person: Person, chance: random.Random
    ) -> None:
        number = next(_numbers)
        text = f"{person.name}: message {number}"
        if chance.random() < 0.25:
            text += f" fake:{TOOL}"
        run_id = f"run-{number}" if chance.random() < 0.3 else None
        await self._send(http, person, text, run_id=run_id)

    async def _send(
        self, http: aiohttp.ClientSession, person: Person, text: str, *, run_id: str | None
    ) -> None:
        """A message with a run_id is sent until its fate is known; without one, no answer means doubt."""
        body = {"text": text} | ({"run_id": run_id} if run_id else {})
        for _ in range(60 if run_id else 1):
            url = self._chance.choice(self._urls)
            try:
                async with http.post(
                    f"{url}/api/v1/sessions/{person.session_id}/messages", json=body, headers=person.headers
                ) as response:
                    answer = await response.json()
                    if response.status in (201, 202):
                        person.accepted[answer["message_id"]] = text
                        person.doubtful.discard(text)
                        return
                    if response.status in (429, 503):
                        person.refused.add(text)
                        if not run_id:
                            return
                    else:
                        person.doubtful.add(text)
            except (aiohttp.ClientError, TimeoutError, ValueError):
                person.doubtful.add(text)
            await asyncio.sleep(0.5)

    async def _stop(self, http: aiohttp.ClientSession, person: Person) -> None:
        url = self._chance.choice(self._urls)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with http.post(
                f"{url}/api/v1/sessions/{person.session_id}/stop", json={}, headers=person.headers
            ):
                pass


class Watcher:
    """A browser tab: follows one session over sockets that break, from its cursor."""

    def __init__(self, person: Person, urls: list[str]) -> None:
        self.person = person
        self.page = event_reducer.ReducedTranscript()
        self.cursor: str | None = None
        self.endings: dict[str, list[str]] = {}  # turn → cursors of its ending events
        self.resets = 0
        self.reconnects = 0
        self._urls = urls

    async def watch(self, http: aiohttp.ClientSession) -> None:
        while True:
            url = self._urls[self.reconnects % len(self._urls)]
            self.reconnects += 1
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
                async with http.ws_connect(f"{url}/ws/", headers=self.person.headers, heartbeat=5) as socket:
                    subscribe = {"kind": "session.subscribe", "session_id": self.person.session_id}
                    await socket.send_json(subscribe | ({"cursor": self.cursor} if self.cursor else {}))
                    async for message in socket:
                        if message.type == aiohttp.WSMsgType.TEXT and not self._see(message.data):
                            break
            await asyncio.sleep(0.3)

    def _see(self, text: str) -> bool:
        """False: this subscription was refused, try again."""
        frame = msgspec.json.decode(text)
        kind = frame["kind"]
        if kind not in events.EVENT_CLASSES:
            return bool(kind == "ack")
        self.cursor = frame["cursor"]
        self.resets += kind == "session.snapshot"
        turn_id = frame.get("turn_id")
        if kind in events.ENDING_KINDS:
            seen = self.endings.setdefault(turn_id, [])
            if self.cursor not in seen:
                seen.append(self.cursor)
        self.page = event_reducer.reduce_event(self.page, events.decode_event(text), turn_id)
        return True
