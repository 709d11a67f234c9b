"""Chats by the hundred and updates by the thousand on real processes: `python -m tests.platform_load` (A-L27.1).

A stand-in of Telegram runs here; everything else is an installation as the run command starts it. It tells how long the
webhook takes, how long it is until a turn has started, beside the web's own, and whether anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import aiohttp
import psutil

from bench.clients import Prompt, SocketClient, http_session
from bench.measures.first_token import SHORT, played
from bench.readings import milliseconds, percentile
from bench.site import Site, running_site
from config.dev.run import CHAT_WORKER
from tests.platform_fakes import recorded
from tests.platform_fakes.telegram import Telegram

SECRET = "door-secret"
GROUP = recorded.GROUP
TOPICS = 100  # of the server: a conversation takes ten messages beside the one it works on
WEB_USERS = 40  # each may send only so much a minute
PATIENCE_SECONDS = 600.0  # a thousand of one server wait in line
AWAY_SECONDS = 4.0  # long enough for every process to notice
QUESTIONS = ("starts", "burst", "chats", "restart")


@dataclass
class Run:
    """One installation with a bot, and what was asked of it."""

    site: Site
    telegram: Telegram
    door: str
    http: aiohttp.ClientSession
    numbers: int = 0
    answered_ms: list[float] = field(default_factory=list)
    sent_away: int = 0

    async def knock(self, update: dict[str, object]) -> float:
        """Return how long the webhook took; after a 503 the update is sent again, as the platform would."""
        headers = {"x-telegram-bot-api-secret-token": SECRET}
        while True:
            began = time.perf_counter()
            async with self.http.post(self.site.url + self.door, json=update, headers=headers) as answer:
                await answer.read()
            if answer.status == 200:
                return (time.perf_counter() - began) * 1000
            assert answer.status == 503, answer.status
            self.sent_away += 1
            await asyncio.sleep(1)

    async def write(self, chat: int, text: str) -> float:
        self.numbers += 1
        number = self.numbers
        return await self.knock(
            recorded.telegram_message(text=text, update_id=number, message_id=number, chat_id=chat)
        )

    async def write_in_group(self, text: str, *, topic: int) -> float:
        self.numbers += 1
        number = self.numbers
        update = recorded.telegram_group_message(
            text=f"@PilotBot {text}",
            offset=0,
            update_id=number,
            message_id=number,
            user_id=5000 + topic,
            topic=topic,
        )
        return await self.knock(update)

    async def handled(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        waiting = "SELECT count(*) FROM linking_platformupdate WHERE done_at IS NULL"
        open_turns = "SELECT count(*) FROM copilot_turn WHERE ended_at IS NULL"
        pending = "SELECT count(*) FROM copilot_message WHERE kind = 'user' AND sequence IS NULL"
        while any(self.site.query(sql)[0][0] for sql in (waiting, open_turns, pending)):
            assert time.monotonic() < deadline, [self.site.query(s) for s in (waiting, open_turns, pending)]
            self.revive()
            await asyncio.sleep(0.5)

    def revive(self) -> None:
        """Whom Redis took along comes back, as under every supervisor: kombu may fail at a connection that is gone."""
        for name, process in list(self.site.processes.items()):
            if (code := process.poll()) is not None:
                print(f"  {name} had left with code {code}, and comes back", flush=True)
                self.site.spawn(name, tuple(cast("Sequence[str]", process.args)))

    async def answered(self) -> None:
        """Until nothing is owed to any chat."""
        owed = """SELECT count(*) FROM copilot_turn t WHERE t.origin = 'telegram' AND NOT EXISTS (
            SELECT 1 FROM linking_outboundmessage o WHERE o.turn_id = t.id AND o.final)"""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.site.query(owed)[0][0]:
            assert time.monotonic() < deadline, self.site.query(owed)
            self.revive()
            await asyncio.sleep(0.5)

    def answers(self) -> Counter[int]:
        """How many messages answer each; that somebody waits in line is no answer."""
        with self.telegram.lock:
            given = [one for one in self.telegram.messages.values() if "in line" not in one.text]
        return Counter(int(one.reply_to) for one in given if one.reply_to)

    def work(self) -> dict[str, float]:
        """Seconds of CPU that each process has taken."""
        times = {name: self.site.process(name).cpu_times() for name in self.site.processes}
        taken = {name: one.user + one.system for name, one in times.items()}
        return taken | {"this one": sum(psutil.Process().cpu_times()[:2])}

    def outcomes(self) -> dict[str, int]:
        return dict(self.site.query("SELECT outcome, count(*) FROM linking_platformupdate GROUP BY outcome"))

    def said(self, prefix: str) -> Counter[str]:
        rows = self.site.query(
            "SELECT content FROM copilot_message WHERE kind = 'user' AND content LIKE %s", f"{prefix}%"
        )
        return Counter(str(content).split(" Please")[0] for (content,) in rows)


async def closed(webs: Sequence[SocketClient]) -> None:
    for web in webs:
        await web.close()


def shown(name: str, taken: Sequence[float]) -> None:
    figures = "  ".join(f"p{share} {percentile(list(taken), share):.1f}" for share in (50, 95, 99))
    print(f"{name:<44} {figures} ms  (n={len(taken)})", flush=True)


# --- the four questions ------------------------------------------------------------------------------


async def started(run: Run, rounds: int) -> None:
    """Update → turn started, beside a message of the web → turn started, in turn."""
    webs = await run.site.clients(range(WEB_USERS))
    own, theirs = [], []
    for number in range(rounds + 5):
        reading = await played(webs[number % WEB_USERS], SHORT)
        began = time.time()
        await run.write(1000, f"start {number} {SHORT.text}")
        await run.handled()
        [(opened,)] = run.site.query(
            "SELECT extract(epoch FROM max(started_at)) FROM copilot_turn WHERE origin = 'telegram'"
        )
        if number >= 5:
            own.append(milliseconds(reading.started_at - reading.asked_at))
            theirs.append((float(opened) - began) * 1000)
    await closed(webs)
    shown("web: sent → turn.started seen", own)
    shown("chat: update → turn started", theirs)
    print(f"{'beyond':<44} p95 {percentile(theirs, 95) - percentile(own, 95):.1f} ms")


async def many_chats(run: Run, chats: int, seconds: int) -> None:
    """Send a message a second in each chat; measure the webhook, and check that each was received once."""
    plan = Prompt(tokens=3, first_ms=5, gap_ms=1).text

    began = time.monotonic()

    async def talk(chat: int) -> None:
        """Each has an instant of its own in every second, and a slow answer does not move it: people know nothing of
        each other."""
        for line in range(seconds):
            await asyncio.sleep(max(0.0, began + line + (chat % chats) / chats - time.monotonic()))
            run.answered_ms.append(await run.write(chat, f"chat {chat} line {line} {plan}"))

    before, work = run.outcomes(), run.work()
    await asyncio.gather(*(talk(2000 + number) for number in range(chats)))
    shown(f"door: {chats} chats × {seconds} s", run.answered_ms)
    await run.handled()
    shown("  and then until it was handled", waits(run, "2___"))
    report(run, "chat ", chats * seconds, before)
    told_work(run, work, chats * seconds)


async def burst(run: Run, updates: int) -> None:
    """A thousand at once from one server: nothing lost or doubled, and the web's first tokens are as before."""
    webs = await run.site.clients(range(WEB_USERS))
    turn = itertools.count()

    async def first_tokens(until: asyncio.Event, least: int) -> list[float]:
        taken: list[float] = []
        while len(taken) < least or not until.is_set():
            taken.append((await played(webs[next(turn) % WEB_USERS], SHORT)).first_ms)
        return taken

    over = asyncio.Event()
    over.set()
    calm = await first_tokens(over, 60)
    over.clear()
    before, work = run.outcomes(), run.work()
    looking = asyncio.create_task(first_tokens(over, 20))
    plan = Prompt(tokens=3, first_ms=5, gap_ms=1).text
    gate = asyncio.Semaphore(50)

    async def one(number: int) -> float:
        async with gate:
            return await run.write_in_group(f"burst {number} {plan}", topic=10 + number % TOPICS)

    doors = await asyncio.gather(*(one(number) for number in range(updates)))
    await run.handled()
    over.set()
    meanwhile = await looking
    await closed(webs)
    shown(f"door: {updates} at once from one server", doors)
    shown("  and then until it was handled", waits(run, str(GROUP)))
    shown("web first token, calm", calm)
    shown("web first token, meanwhile", meanwhile)
    more = percentile(meanwhile, 50) / percentile(calm, 50) - 1
    print(f"{'web first token, change of the median':<44} {more:+.1%}")
    report(run, "burst ", updates, before)
    told_work(run, work, updates)


async def restart(run: Run, chats: int, seconds: int) -> None:
    """Redis is killed mid-run: webhooks keep storing, turns continue, and everybody is answered once (A-L27.2)."""
    plan = Prompt(tokens=40, first_ms=50, gap_ms=25).text  # some are under way whenever it dies
    first = run.numbers + 1
    taken: list[float] = []

    async def talk(chat: int) -> None:
        for line in range(seconds // 2):
            taken.append(await run.write(chat, f"restart {chat} line {line} {plan}"))
            await asyncio.sleep(2)

    before = run.outcomes()
    talking = asyncio.gather(*(talk(2000 + number) for number in range(chats)))
    await asyncio.sleep(seconds / 3)
    valkey = run.site.valkey
    assert valkey.process is not None
    valkey.process.kill()
    valkey.process.wait()
    await asyncio.sleep(AWAY_SECONDS)
    valkey.launch()
    await asyncio.to_thread(valkey.wait_ready)
    await talking
    shown(f"door: {chats} chats × {seconds} s, Redis killed for {AWAY_SECONDS:g} s", taken)
    await run.handled()
    await run.answered()
    report(run, "restart ", chats * (seconds // 2), before)
    numbers = range(first, run.numbers + 1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while unanswered := set(numbers) - run.answers().keys():
        assert time.monotonic() < deadline, f"not answered: {sorted(unanswered)}"
        await asyncio.sleep(1)  # who was sent away is told so when the platform has room for it
    answers = run.answers()
    doubled = {number: answers[number] for number in numbers if answers[number] != 1}
    print(f"  answered once: {len(numbers) - len(doubled)}, more than once: {doubled}")
    assert not doubled, "somebody was answered twice"


def told_work(run: Run, before: dict[str, float], messages: int) -> None:
    spent = {name: 1000 * (now - before[name]) / messages for name, now in run.work().items()}
    print("  CPU per message:", ", ".join(f"{name} {ms:.1f} ms" for name, ms in spent.items()))


def waits(run: Run, platform_ids: str) -> list[float]:
    """How long each update of such a place lay in the inbox until it was handled."""
    rows = run.site.query(
        "SELECT extract(epoch FROM done_at - received_at) FROM linking_platformupdate WHERE container_id LIKE %s",
        platform_ids,
    )
    return [float(seconds) * 1000 for (seconds,) in rows]


def report(run: Run, prefix: str, sent: int, before: dict[str, int]) -> None:
    said = run.said(prefix)
    now = run.outcomes()
    outcomes = {name: count - before.get(name, 0) for name, count in now.items() if count != before.get(name)}
    refused = outcomes.get("refused", 0)
    doubled = sum(count > 1 for count in said.values())
    print(f"  sent {sent}, said {len(said)}, refused in words {refused}, doubled {doubled}; {outcomes}")
    assert doubled == 0, "a message was said twice"
    assert len(said) + refused == sent, "a message was lost"


# --- setting up --------------------------------------------------------------------------------------


async def measure(site: Site, telegram: Telegram, options: argparse.Namespace) -> None:
    chats = [1000, *(2000 + number for number in range(options.chats))]
    door = site.run("tests.platform_load.links", json.dumps(chats), str(GROUP)).decode().split()[-1]
    site.spawn("chats", CHAT_WORKER.command)
    async with http_session() as http:
        run = Run(site, telegram, f"/hooks/telegram/{door}/", http)
        if "starts" in options.only:
            await started(run, options.starts)
        if "burst" in options.only:
            await burst(run, options.burst)
        if "chats" in options.only:
            await many_chats(run, options.chats, options.seconds)
        if "restart" in options.only:
            await restart(run, options.chats, options.seconds)
    print(
        f"asked to send again: {run.sent_away}; rules of the platform broken: {dict(Counter(telegram.refused))}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.platform_load", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--chats", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--burst", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=60)
    parser.add_argument("--only", choices=QUESTIONS, nargs="+", default=QUESTIONS)
    options = parser.parse_args()
    telegram = Telegram()
    telegram.counts_rates = True
    with telegram.running():
        os.environ |= {
            "TELEGRAM_BOT_TOKEN": telegram.token,
            "TELEGRAM_SECRET": SECRET,
            "TELEGRAM_API_URL": telegram.url,
            "LINK_CHANNEL_MESSAGES": "100000",  # how often people may write is not what is measured
        }
        with running_site(users=options.chats + WEB_USERS, sessions=options.chats + WEB_USERS) as site:
            asyncio.run(measure(site, telegram, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
