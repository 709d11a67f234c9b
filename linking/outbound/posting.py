"""Single messages that belong to no turn: notices, link buttons, answers to a press (L4, L8, L14)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from copilot.queries import readers
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
PATIENCE_SECONDS = 300.0  # for a platform that asks us to wait: what comes later helps nobody
LEAST_WAIT_SECONDS = 0.1
TRIES = 3
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Note:
    """One message. `only_for`: a person, to whose eyes alone it goes. `may` is asked before it is said."""

    to: Address
    text: str
    buttons: tuple[Button, ...] = ()
    only_for: str = ""
    may: Callable[[], bool] | None = None

    async def go(self, adapter: Adapter) -> None:
        message = Outgoing(body=adapter.render(self.text), buttons=self.buttons, opens=True)
        if self.only_for:
            await adapter.whisper(self.to, self.only_for, message)
        else:
            await adapter.send(self.to, message)


def say(platform: str, *notes: Note) -> None:
    """The first of these that the platform takes, in the order in which it was wanted in that chat.

    Nobody waits for it: a platform that is slow, away or busy would keep other people's updates waiting. What a process
    has not said when it dies is not said; people ask again.
    """
    here, until = courier(), _too_late()

    async def act() -> None:
        async with here.turn_of(_chat(platform, notes[0].to)):
            for note in notes:
                if note.may is not None and not await readers.in_thread(note.may):
                    return
                if await _is_taken(here.adapter(platform), note.go, until):
                    return

    here.spawn(act)


def reach(notes: Sequence[tuple[str, Note]], otherwise: Callable[[], None] | None) -> None:
    """All of these, each on its platform; where not one is taken, something else is done, if there is anything."""
    here, until = courier(), _too_late()

    async def act() -> None:
        each = [_is_taken(here.adapter(platform), note.go, until) for platform, note in notes]
        if not any(await asyncio.gather(*each)) and otherwise is not None:
            await readers.in_thread(otherwise)

    here.spawn(act)


def answer_press(platform: str, to: Address, pressed: Pressed, text: str) -> None:
    """At once, whatever else is being said there."""
    here, until = courier(), _too_late()

    async def act() -> None:
        await _is_taken(
            here.adapter(platform), lambda adapter: adapter.answer_press(to, pressed, text), until
        )

    here.spawn(act)


def show_typing(platform: str, to: Address) -> None:
    """The first sign of life."""
    here = courier()
    here.spawn(lambda: here.adapter(platform).show_typing(to))


def mention(platform: str, to: Address, text: str) -> None:
    """A word that is worth one try, and none where something is being said already."""
    here = courier()

    async def act() -> None:
        turn = here.turn_of(_chat(platform, to))
        if not turn.locked():
            async with turn:
                await Note(to=to, text=text).go(here.adapter(platform))

    here.spawn(act)


def _chat(platform: str, to: Address) -> str:
    return f"{platform}\x1f{to.container_id}"


def _too_late() -> float:
    return time.monotonic() + PATIENCE_SECONDS


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
    except (PlatformProblem, TimeoutError) as problem:
        log.warning("%s did not say who administers a server: %s", platform, type(problem).__name__)
        return False


def server_name(platform: str, place: Place) -> str:
    """Nothing where the platform does not say."""

    async def act(adapter: Adapter) -> str:
        return await adapter.server_name(place)

    try:
        return courier().call(platform, act, seconds=CALL_SECONDS)
    except (PlatformProblem, TimeoutError) as problem:
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
    except TimeoutError:
        raise Away(f"{platform} did not answer in time") from None


async def _is_taken(adapter: Adapter, act: Callable[[Adapter], Awaitable[None]], until: float) -> bool:
    """A few tries where the platform is away; where it has no room, as long as that helps anybody."""
    tries = 0
    while tries < TRIES and time.monotonic() < until:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await act(adapter)
        except Busy as problem:
            if time.monotonic() + problem.retry_after_seconds > until:
                break
            await asyncio.sleep(max(problem.retry_after_seconds, LEAST_WAIT_SECONDS))
        except (Away, TimeoutError):
            tries += 1
        except PlatformProblem as problem:
            log.info("%s did not take a message: %s", adapter.platform, problem)
            return False
        else:
            return True
    log.warning("%s did not take a message in time", adapter.platform)
    return False
