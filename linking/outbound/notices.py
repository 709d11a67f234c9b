"""Single messages that belong to no turn: notices, link buttons, answers to a press (L4, L8, L14)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from config.core import db
from linking.outbound.worker import get_worker
from linking.platforms import registry
from linking.platforms.base import (
    AttachedFile,
    BotIdentity,
    ButtonPressed,
    MessageButton,
    MessageReceived,
    OutboundAddress,
    OutgoingMessage,
    PlatformAdapter,
    PlatformBusy,
    PlatformError,
    PlatformPlace,
    PlatformUnavailable,
)

log = logging.getLogger(__name__)

CALL_TIMEOUT_SECONDS = 20.0
FILE_TIMEOUT_SECONDS = 60.0
NOTICE_DEADLINE_SECONDS = 300.0  # for a platform that asks us to wait: what comes later helps nobody
MIN_RETRY_SECONDS = 0.1
MAX_ATTEMPTS = 3
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One message. `only_for`: a person, to whose eyes alone it goes. `may` is asked before it is said."""

    to: OutboundAddress
    text: str
    buttons: tuple[MessageButton, ...] = ()
    only_for: str = ""
    may: Callable[[], bool] | None = None

    async def send(self, adapter: PlatformAdapter) -> None:
        message = OutgoingMessage(body=adapter.render_text(self.text), buttons=self.buttons, opens=True)
        if self.only_for:
            await adapter.send_private(self.to, self.only_for, message)
        else:
            await adapter.send_message(self.to, message)


def send_first_accepted(platform: str, *notes: Notice) -> None:
    """The first of these that the platform takes, in the order in which it was wanted in that chat.

    Nobody waits for it: a platform that is slow, away or busy would keep other people's updates waiting. What a process
    has not said when it dies is not said; people ask again.
    """
    here, until = get_worker(), _notice_deadline()

    async def act() -> None:
        async with here.get_chat_lock(_chat_key(platform, notes[0].to)):
            for note in notes:
                if note.may is not None and not await db.run_in_thread(note.may):
                    return
                if await _try_send(here.get_adapter(platform), note.send, until):
                    return

    here.spawn(act)


def send_to_all(notes: Sequence[tuple[str, Notice]], otherwise: Callable[[], None] | None) -> None:
    """All of these, each on its platform; where not one is taken, something else is done, if there is anything."""
    here, until = get_worker(), _notice_deadline()

    async def act() -> None:
        each = [_try_send(here.get_adapter(platform), note.send, until) for platform, note in notes]
        if not any(await asyncio.gather(*each)) and otherwise is not None:
            await db.run_in_thread(otherwise)

    here.spawn(act)


def answer_button_press(platform: str, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
    """At once, whatever else is being said there."""
    here, until = get_worker(), _notice_deadline()

    async def act() -> None:
        await _try_send(
            here.get_adapter(platform), lambda adapter: adapter.answer_button_press(to, pressed, text), until
        )

    here.spawn(act)


def send_typing(platform: str, to: OutboundAddress) -> None:
    """The first sign of life."""
    here = get_worker()
    here.spawn(lambda: here.get_adapter(platform).show_typing(to))


def send_if_idle(platform: str, to: OutboundAddress, text: str) -> None:
    """A word that is worth one try, and none where something is being said already."""
    here = get_worker()

    async def act() -> None:
        turn = here.get_chat_lock(_chat_key(platform, to))
        if not turn.locked():
            async with turn:
                await Notice(to=to, text=text).send(here.get_adapter(platform))

    here.spawn(act)


def _chat_key(platform: str, to: OutboundAddress) -> str:
    return f"{platform}\x1f{to.container_id}"


def _notice_deadline() -> float:
    return time.monotonic() + NOTICE_DEADLINE_SECONDS


def resolve_message(platform: str, said: MessageReceived) -> MessageReceived:
    """Words as they are meant for our bot; what an update does not say is asked of the platform once."""
    ours = registry.build_adapter(platform)
    if ours is None or not ours.needs_completion(said):
        return said if ours is None else ours.resolve_mention(said, BotIdentity(account=ours.bot_account))

    async def act(adapter: PlatformAdapter) -> MessageReceived:
        return await adapter.complete_message(said)

    return _call_platform(platform, act, CALL_TIMEOUT_SECONDS)


def is_server_admin(platform: str, place: PlatformPlace, user_id: str) -> bool:
    """Unknown is no."""

    async def act(adapter: PlatformAdapter) -> bool:
        return await adapter.is_server_admin(place, user_id)

    try:
        return get_worker().call(platform, act, seconds=CALL_TIMEOUT_SECONDS)
    except (PlatformError, TimeoutError) as problem:
        log.warning("%s did not say who administers a server: %s", platform, type(problem).__name__)
        return False


def fetch_server_name(platform: str, place: PlatformPlace) -> str:
    """Nothing where the platform does not say."""

    async def act(adapter: PlatformAdapter) -> str:
        return await adapter.fetch_server_name(place)

    try:
        return get_worker().call(platform, act, seconds=CALL_TIMEOUT_SECONDS)
    except (PlatformError, TimeoutError) as problem:
        log.info("%s did not say what a server is called: %s", platform, type(problem).__name__)
        return ""


def fetch_file(platform: str, file: AttachedFile) -> bytes:
    async def act(adapter: PlatformAdapter) -> bytes:
        return await adapter.fetch_file(file)

    return _call_platform(platform, act, FILE_TIMEOUT_SECONDS)


def _call_platform(platform: str, act: Callable[[PlatformAdapter], Awaitable[T]], seconds: float) -> T:
    """What is needed to go on; raises what the platform made of it."""
    try:
        return get_worker().call(platform, act, seconds=seconds)
    except TimeoutError:
        raise PlatformUnavailable(f"{platform} did not answer in time") from None


async def _try_send(
    adapter: PlatformAdapter, act: Callable[[PlatformAdapter], Awaitable[None]], until: float
) -> bool:
    """A few tries where the platform is away; where it has no room, as long as that helps anybody."""
    tries = 0
    while tries < MAX_ATTEMPTS and time.monotonic() < until:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                await act(adapter)
        except PlatformBusy as problem:
            if time.monotonic() + problem.retry_after_seconds > until:
                break
            await asyncio.sleep(max(problem.retry_after_seconds, MIN_RETRY_SECONDS))
        except (PlatformUnavailable, TimeoutError):
            tries += 1
        except PlatformError as problem:
            log.info("%s did not take a message: %s", adapter.platform, problem)
            return False
        else:
            return True
    log.warning("%s did not take a message in time", adapter.platform)
    return False
