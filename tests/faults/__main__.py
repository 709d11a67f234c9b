"""Kill workers, web processes, Redis and Postgres under load, then look for losses (T9.6).

python -m tests.faults --minutes 10 [--seed N] [--people 12] [--redis durable|volatile] [--engine pgbouncer] [--engine rabbitmq] [--keep]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.installation import keep
from tests.faults.site import Site, running_site

if TYPE_CHECKING:  # the apps are loaded later, with the addresses of the site
    from tests.faults.chaos import Chaos
    from tests.faults.checks import Finding
    from tests.faults.load import Crowd, Person

QUIET_SECONDS = 180.0


def run(
    *,
    seconds: float,
    seed: int,
    people: int,
    redis_is_durable: bool,
    engines: Sequence[str],
    longest_freeze: float,
    kept: bool,
) -> int:
    with running_site(redis_is_durable=redis_is_durable, engines=engines) as site:
        print(
            f"seed {seed}, {people} people, {seconds:.0f} s, Redis {'durable' if redis_is_durable else 'volatile'}"
            + "".join(f", {name}" for name in engines)
        )
        print(f"logs in {site.directory}")
        _enter(site)
        problems = asyncio.run(
            _storm(site, seconds=seconds, seed=seed, people=people, longest_freeze=longest_freeze)
        )
        if kept or problems:
            keep(site.directory)
        return problems


def _enter(site: Site) -> None:
    """This process looks at the same rows and keys."""
    os.environ |= {name: value for name, value in site.environment.items() if os.environ.get(name) != value}
    import django

    django.setup()


async def _storm(site: Site, *, seconds: float, seed: int, people: int, longest_freeze: float) -> int:
    from tests.faults import checks
    from tests.faults.chaos import Chaos
    from tests.faults.load import Crowd

    crowd = Crowd(await asyncio.to_thread(_people, people), site.urls, seed)
    chaos = Chaos(site, seed, longest_freeze=longest_freeze)
    async with crowd.chatting():
        await chaos.rage(seconds)
        await crowd.hush()
        left = await _quiet(site)
        await asyncio.sleep(2)  # the last events reach those who watch
    found = await asyncio.to_thread(checks.broken_promises, crowd)
    await asyncio.to_thread(_tell, chaos, crowd, found, left)
    return 1 if found or left else 0


def _people(number: int) -> list[Person]:
    from django.contrib.auth.models import User

    from bench.seed import _lift_limits
    from copilot.accounts import api_keys
    from copilot.chat import sessions
    from tests.faults.load import Person

    _lift_limits()
    made = []
    for place in range(number):
        user = User.objects.create_user(f"sailor{place}")
        token = api_keys.create_api_key(user).token
        session = sessions.create_session(user.pk)
        made.append(Person(user.username, token, str(session.pk), stops=place % 2 == 1))
    return made


async def _quiet(site: Site) -> int:
    """Wait until nothing runs and nothing waits; how much is left when patience ends."""
    from tests.faults import checks

    deadline = time.monotonic() + QUIET_SECONDS
    while left := await asyncio.to_thread(checks.unfinished):
        if time.monotonic() > deadline:
            return left
        site.revive()
        await asyncio.sleep(0.5)
    while await asyncio.to_thread(checks.leases) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return 0


def _tell(chaos: Chaos, crowd: Crowd, found: list[Finding], left: int) -> None:
    from collections import Counter

    from copilot.models import Turn
    from tests.faults.checks import PROMISES

    accepted = sum(len(person.accepted) for person in crowd.people)
    refused = sum(len(person.refused) for person in crowd.people)
    print("\n".join(chaos.log))
    print("\nfaults    " + ", ".join(f"{times} × {name}" for name, times in chaos.done.items()))
    print(f"messages  {accepted} accepted, {refused} refused for a while")
    print(
        "turns     "
        + ", ".join(f"{n} {s}" for s, n in Counter(Turn.objects.values_list("status", flat=True)).items())
    )
    recovered = Turn.objects.filter(attempts__gt=1).count()
    print(f"          {recovered} taken over, {Turn.objects.filter(handovers__gt=0).count()} handed over")
    resets = sum(watcher.resets for watcher in crowd.watchers)
    print(f"sockets   {sum(watcher.reconnects for watcher in crowd.watchers)} connects, {resets} snapshots")
    print()
    for promise in PROMISES:
        broken = [one for one in found if one.promise == promise]
        print(f"{'BROKEN' if broken else 'kept  '}  {promise}")
        for one in broken[:8]:
            print(f"        {one.what}")
        if len(broken) > 8:
            print(f"        … and {len(broken) - 8} more")
    if left:
        print(f"BROKEN  everything comes to an end: {left} turns and messages still wait")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--people", type=int, default=12)
    parser.add_argument("--redis", choices=("durable", "volatile", "either"), default="either")
    parser.add_argument(
        "--engine",
        action="append",
        choices=("pgbouncer", "rabbitmq"),
        default=[],
        help="put PgBouncer in transaction mode before Postgres, or use RabbitMQ as broker",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the logs of all processes behind, as after a broken promise",
    )
    options = parser.parse_args()
    seed = options.seed or random.SystemRandom().randrange(1, 10**6)
    durable = options.redis == "durable" or (options.redis == "either" and seed % 2 == 0)
    seconds = options.minutes * 60
    longest_freeze = 40.0 if seconds >= 180 else 12.0
    return run(
        seconds=seconds,
        seed=seed,
        people=options.people,
        redis_is_durable=durable,
        engines=options.engine,
        longest_freeze=longest_freeze,
        kept=options.keep,
    )


if __name__ == "__main__":
    sys.exit(main())
