"""Send single messages outside of turns (notices, link buttons, answers to presses) and make other platform calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

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

log = structlog.get_logger(__name__)

CALL_TIMEOUT_SECONDS = 20.0
FILE_TIMEOUT_SECONDS = 60.0
NOTICE_DEADLINE_SECONDS = 300.0  # a notice that would come later is dropped
MIN_RETRY_SECONDS = 0.1
MAX_ATTEMPTS = 3
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Notice:
    to: OutboundAddress
    text: str
    buttons: tuple[MessageButton, ...] = ()
    only_for: str = ""  # user id; the message is visible to this person alone
    may_send: Callable[[], bool] | None = None  # checked right before sending

    async def send(self, adapter: PlatformAdapter) -> None:
        message = OutgoingMessage(body=adapter.render_text(self.text), buttons=self.buttons, opens=True)
        if self.only_for:
            await adapter.send_private(self.to, self.only_for, message)
        else:
            await adapter.send_message(self.to, message)


def send_first_accepted(platform: str, *notices: Notice) -> None:
    """Send the first of these alternatives that the platform accepts, in the order of calls for the same chat.

    The caller does not wait, because a slow platform would hold up other people's updates. A notice that was not sent
    when the process dies is lost; people ask again.
    """
    worker, deadline = get_worker(), _notice_deadline()

    async def act() -> None:
        async with worker.get_chat_lock(_chat_key(platform, notices[0].to)):
            for notice in notices:
                if notice.may_send is not None and not await db.run_in_thread(notice.may_send):
                    return
                if await _try_send(worker.get_adapter(platform), notice.send, deadline):
                    return

    worker.spawn(act)


def send_to_all(notices: Sequence[tuple[str, Notice]], otherwise: Callable[[], None] | None) -> None:
    """Send all notices, each on its platform; call `otherwise` if none of them is accepted."""
    worker, deadline = get_worker(), _notice_deadline()

    async def act() -> None:
        attempts = [
            _try_send(worker.get_adapter(platform), notice.send, deadline) for platform, notice in notices
        ]
        if not any(await asyncio.gather(*attempts)) and otherwise is not None:
            await db.run_in_thread(otherwise)

    worker.spawn(act)


def answer_button_press(platform: str, to: OutboundAddress, pressed: ButtonPressed, text: str) -> None:
    """Acknowledge a press at once, without waiting for other messages to the chat."""
    worker, deadline = get_worker(), _notice_deadline()

    async def act() -> None:
        await _try_send(
            worker.get_adapter(platform),
            lambda adapter: adapter.answer_button_press(to, pressed, text),
            deadline,
        )

    worker.spawn(act)


def send_typing(platform: str, to: OutboundAddress) -> None:
    worker = get_worker()
    worker.spawn(lambda: worker.get_adapter(platform).show_typing(to))


def send_if_idle(platform: str, to: OutboundAddress, text: str) -> None:
    """Try once to send a notice, and skip it if another notice to this chat is being sent."""
    worker = get_worker()

    async def act() -> None:
        lock = worker.get_chat_lock(_chat_key(platform, to))
        if not lock.locked():
            async with lock:
                await Notice(to=to, text=text).send(worker.get_adapter(platform))

    worker.spawn(act)


def _chat_key(platform: str, to: OutboundAddress) -> str:
    return f"{platform}\x1f{to.container_id}"


def _notice_deadline() -> float:
    return time.monotonic() + NOTICE_DEADLINE_SECONDS


def resolve_message(platform: str, message: MessageReceived) -> MessageReceived:
    """Resolve mentions of our bot in a message, asking the platform for what the update does not say."""
    own_adapter = registry.build_adapter(platform)
    if own_adapter is None:
        return message
    if not own_adapter.needs_completion(message):
        return own_adapter.resolve_mention(message, BotIdentity(account=own_adapter.bot_account))

    async def act(adapter: PlatformAdapter) -> MessageReceived:
        return await adapter.complete_message(message)

    return _call_platform(platform, act, CALL_TIMEOUT_SECONDS)


def is_server_admin(platform: str, place: PlatformPlace, user_id: str) -> bool:
    """Return False if the platform does not say."""

    async def act(adapter: PlatformAdapter) -> bool:
        return await adapter.is_server_admin(place, user_id)

    try:
        return get_worker().call(platform, act, seconds=CALL_TIMEOUT_SECONDS)
    except (PlatformError, TimeoutError) as problem:
        log.warning("server_admin_lookup_failed", platform=platform, error=type(problem).__name__)
        return False


def fetch_server_name(platform: str, place: PlatformPlace) -> str:
    """Return "" if the platform does not say."""

    async def act(adapter: PlatformAdapter) -> str:
        return await adapter.fetch_server_name(place)

    try:
        return get_worker().call(platform, act, seconds=CALL_TIMEOUT_SECONDS)
    except (PlatformError, TimeoutError) as problem:
        log.info("server_name_lookup_failed", platform=platform, error=type(problem).__name__)
        return ""


def fetch_file(platform: str, file: AttachedFile) -> bytes:
    async def act(adapter: PlatformAdapter) -> bytes:
        return await adapter.fetch_file(file)

    return _call_platform(platform, act, FILE_TIMEOUT_SECONDS)


def _call_platform(platform: str, act: Callable[[PlatformAdapter], Awaitable[T]], seconds: float) -> T:
    """Call the platform and wait for the result; raise PlatformError if the call fails or takes too long."""
    try:
        return get_worker().call(platform, act, seconds=seconds)
    except TimeoutError:
        raise PlatformUnavailable(f"{platform} did not answer in time") from None


async def _try_send(
    adapter: PlatformAdapter, act: Callable[[PlatformAdapter], Awaitable[None]], deadline: float
) -> bool:
    """Try a few times while the platform is unavailable, and until the deadline while it is busy."""
    attempts = 0
    while attempts < MAX_ATTEMPTS and time.monotonic() < deadline:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_SECONDS):
                await act(adapter)
        except PlatformBusy as problem:
            if time.monotonic() + problem.retry_after_seconds > deadline:
                break
            await asyncio.sleep(max(problem.retry_after_seconds, MIN_RETRY_SECONDS))
        except (PlatformUnavailable, TimeoutError):
            attempts += 1
        except PlatformError as problem:
            log.info("notice_refused", platform=adapter.platform, error=str(problem))
            return False
        else:
            return True
    log.warning("notice_timed_out", platform=adapter.platform)
    return False
