"""Send single messages outside of turns (notices, link buttons, answers to presses) and make other platform calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.contrib.auth.models import User
from django.urls import reverse

from config.core import db, rate_limits
from copilot.chat import selectors as chat_selectors
from copilot.chat import serializers as chat_serializers
from copilot.chat import turn_details
from linking import bot_messages, emails
from linking.conversations import reachability
from linking.outbound import worker
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


# --- Approvals that wait -----------------------------------------------------------------------------


NOTIFY_WINDOW_SECONDS = (
    600  # an approval that waits longer was notified, or could not be; it is not notified again
)
NOTIFY_ONCE_SECONDS = 3_600


def claim_turns_to_notify() -> list[UUID]:
    """Claim turns whose approvals have waited for a while, each once. People who are present decide earlier."""
    after = settings.APPROVAL_ANNOUNCE_SECONDS
    if not after:
        return []
    found = turn_details.list_turns_waiting_since(seconds=after, within=NOTIFY_WINDOW_SECONDS)
    return [
        turn_id
        for turn_id in found
        if rate_limits.is_first_in_window("announced", str(turn_id), seconds=NOTIFY_ONCE_SECONDS)
    ]


def notify_waiting_turn(turn_id: UUID) -> None:
    standing = turn_details.get_turn_details(turn_id)
    if standing is None or standing.is_session_deleted or standing.status != "waiting":
        return
    tools = [
        one.tool.replace("_", " ").capitalize()
        for one in chat_serializers.list_open_approvals(standing.session_id)
        if one.turn_id == str(turn_id)
    ]
    if not tools:
        return
    title = chat_selectors.get_session(standing.owner_id, standing.session_id).title
    url = settings.SITE_URL + reverse("chat_session", args=[standing.session_id])
    own = standing.reply.conversation_id if standing.reply else ""
    places = [
        place
        for place in reachability.list_direct_message_places(standing.owner_id, worker.get_own_accounts())
        if str(place.conversation_id) != own
    ]
    text, open_chat = (
        bot_messages.format_waiting(tools, title),
        MessageButton(label=bot_messages.OPEN_CHAT_LABEL, url=url),
    )
    shown_there = standing.reply is not None and standing.reply.of_payer
    by_mail = None if shown_there else partial(_email_owner, standing.owner_id, tools, title, url)
    if places:
        notes = [(place.platform, _build_notice(place.container_id, text, open_chat)) for place in places]
        send_to_all(notes, otherwise=by_mail)
    elif by_mail is not None:
        by_mail()


def _build_notice(container_id: str, text: str, button: MessageButton) -> Notice:
    return Notice(to=OutboundAddress(scope="dm", container_id=container_id), text=text, buttons=(button,))


def _email_owner(owner_id: int, tools: list[str], title: str, url: str) -> None:
    emails.send_approval_waiting_email(User.objects.get(pk=owner_id), tools, title, url)
