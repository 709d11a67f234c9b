"""Single messages that belong to no turn: notices, link buttons, answers to a press (L4, L8, L14)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as NotInTime
from typing import TypeVar

from linking import platforms
from linking.outbound.couriers import courier
from linking.platforms.base import (
    Adapter,
    Address,
    Away,
    Busy,
    Button,
    Identity,
    Outgoing,
    Place,
    PlatformProblem,
    Pressed,
    Said,
    SentFile,
)

log = logging.getLogger(__name__)

CALL_SECONDS = 20.0
FILE_SECONDS = 60.0
PATIENCE_SECONDS = 30.0  # for a platform that asks us to wait: a notice that comes later helps nobody
TRIES = 3
T = TypeVar("T")


def post(platform: str, to: Address, text: str, buttons: tuple[Button, ...] = ()) -> bool:
    """For everybody there to see; whether it went out."""

    async def act(adapter: Adapter) -> None:
        await adapter.send(to, _outgoing(adapter, text, buttons))

    return _done(platform, act)


def whisper(platform: str, to: Address, user_id: str, text: str, buttons: tuple[Button, ...] = ()) -> bool:
    """For one person alone; False where the platform gives no way to do so."""

    async def act(adapter: Adapter) -> None:
        await adapter.whisper(to, user_id, _outgoing(adapter, text, buttons))

    return _done(platform, act)


def answer_press(platform: str, to: Address, pressed: Pressed, text: str) -> bool:
    async def act(adapter: Adapter) -> None:
        await adapter.answer_press(to, pressed, text)

    return _done(platform, act)


def show_typing(platform: str, to: Address) -> None:
    """The first sign of life; nobody waits for it."""
    courier().spawn(platform, lambda adapter: adapter.show_typing(to))


def mention(platform: str, to: Address, text: str) -> None:
    """A word that is worth one try, and that nobody waits for."""

    async def act(adapter: Adapter) -> None:
        await adapter.send(to, _outgoing(adapter, text, ()))

    courier().spawn(platform, act)


def recognised(platform: str, said: Said) -> Said:
    """Words as they are meant for our bot; what an update does not say is asked of the platform once."""
    ours = platforms.build(platform)
    if ours is None or not ours.is_incomplete(said):
        return said if ours is None else ours.recognise(said, Identity(account=ours.bot_account))

    async def act(adapter: Adapter) -> Said:
        return await adapter.complete(said)

    return _asked(platform, act, CALL_SECONDS)


def is_admin(platform: str, place: Place, user_id: str) -> bool:
    """Unknown is no."""

    async def act(adapter: Adapter) -> bool:
        return await adapter.is_admin(place, user_id)

    try:
        return courier().call(platform, act, seconds=CALL_SECONDS)
    except (PlatformProblem, NotInTime) as problem:
        log.warning("%s did not say who administers a server: %s", platform, type(problem).__name__)
        return False


def server_name(platform: str, place: Place) -> str:
    """Nothing where the platform does not say."""

    async def act(adapter: Adapter) -> str:
        return await adapter.server_name(place)

    try:
        return courier().call(platform, act, seconds=CALL_SECONDS)
    except (PlatformProblem, NotInTime) as problem:
        log.info("%s did not say what a server is called: %s", platform, type(problem).__name__)
        return ""


def fetch_file(platform: str, file: SentFile) -> bytes:
    async def act(adapter: Adapter) -> bytes:
        return await adapter.fetch_file(file)

    return _asked(platform, act, FILE_SECONDS)


def _asked(platform: str, act: Callable[[Adapter], Awaitable[T]], seconds: float) -> T:
    """What is needed to go on; raises what the platform made of it."""
    try:
        return courier().call(platform, act, seconds=seconds)
    except NotInTime:
        raise Away(f"{platform} did not answer in time") from None


def _done(platform: str, act: Callable[[Adapter], Awaitable[None]]) -> bool:
    """A few tries, as far as that helps anybody; never before the platform would have it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    for _ in range(TRIES):
        try:
            courier().call(platform, act, seconds=CALL_SECONDS)
        except Busy as problem:
            if time.monotonic() + problem.retry_after_seconds > deadline:
                break
            time.sleep(problem.retry_after_seconds)
        except (Away, NotInTime):
            continue
        except PlatformProblem as problem:
            log.info("%s did not take a message: %s", platform, problem)
            return False
        else:
            return True
    log.warning("%s did not take a message in time", platform)
    return False


def _outgoing(adapter: Adapter, text: str, buttons: tuple[Button, ...]) -> Outgoing:
    return Outgoing(body=adapter.render(text), buttons=buttons, opens=True)
