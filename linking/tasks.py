"""Celery tasks of linking and the functions that enqueue them."""

from __future__ import annotations

from uuid import UUID

import structlog
from celery import shared_task
from django.db import close_old_connections, transaction
from kombu.exceptions import OperationalError

from linking import emails
from linking.caps import reservations
from linking.conversations import idempotency
from linking.conversations import services as conversations
from linking.inbound import messages, update_handler, updates
from linking.inbound.server_throttle import ServerThrottle, make_server_key
from linking.links import services as links
from linking.models import LinkToken
from linking.outbound import notices, worker
from linking.platforms.base import IncomingUpdate
from linking.webhook_deliveries import outbox, sender

log = structlog.get_logger(__name__)


@shared_task(name="linking.tasks.tell_of_link", ignore_result=True)
def tell_of_link(token_id: str) -> None:
    """Announce a confirmed link by mail to its owner and in the chat that requested it."""
    if (token := _email_link_owner(token_id)) is not None:
        update_handler.send_linked_notice(token)


def _email_link_owner(token_id: str) -> LinkToken | None:
    token = LinkToken.objects.select_related("used_by").filter(pk=token_id).first()
    if token is None or token.used_by is None:
        return None
    emails.send_linked_email(token, token.used_by)
    return token


def enqueue_link_notification(token_id: UUID, **kwargs: object) -> None:
    """Receive `signals.link_confirmed`."""
    try:
        tell_of_link.apply_async(args=(str(token_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("task_enqueue_failed", task=tell_of_link.name, error=type(problem).__name__)
        # The mail goes out in any case, so that an owner learns of a link that somebody else confirmed.
        _email_link_owner(str(token_id))


@shared_task(name="linking.tasks.deliver", ignore_result=True)
def deliver() -> None:
    """Send due webhook deliveries; runs every few seconds and whenever new ones are recorded."""
    sender.send_due_deliveries()


def enqueue_deliveries(**kwargs: object) -> None:
    """Receive `signals.deliveries_recorded`."""
    try:
        deliver.apply_async(retry=False, expires=10)
    except (OperationalError, OSError) as problem:
        log.warning("task_enqueue_failed", task=deliver.name, error=type(problem).__name__)


@shared_task(name="linking.tasks.tend", ignore_result=True)
def tend() -> None:
    """Settle what crashes left open and purge old rows; runs every minute."""
    reservations.settle_stale_reservations()
    reservations.purge_reservations()
    links.purge_link_tokens()
    idempotency.purge_idempotency_keys()
    conversations.purge_buttons()
    outbox.record_missed_deliveries()
    sender.purge_deliveries()
    updates.purge_updates()


@shared_task(name="linking.tasks.announce_waiting", ignore_result=True)
def announce_waiting() -> None:
    """Notify people of approvals that have waited for a while; runs every minute."""
    for turn_id in notices.claim_turns_to_notify():
        try:
            announce.apply_async(args=(str(turn_id),), retry=False)
        except (OperationalError, OSError) as problem:
            log.warning(
                "task_enqueue_failed", task=announce.name, turn_id=turn_id, error=type(problem).__name__
            )


@shared_task(name="linking.tasks.announce", ignore_result=True)
def announce(turn_id: str) -> None:
    notices.notify_waiting_turn(UUID(turn_id))


# --- Updates and answers of our own bots ---


def receive_update(platform: str, bot_account: str, incoming: IncomingUpdate) -> None:
    """Store an update and enqueue its handling; duplicates are dropped."""
    update_id = updates.store_update(platform, bot_account, incoming)
    if update_id is not None:
        server_key = make_server_key(platform, incoming.place.server_id)
        throttled = updates.is_throttled(incoming.what)
        transaction.on_commit(lambda: enqueue_update(update_id, server_key, throttled=throttled))


@shared_task(name="linking.tasks.handle_update", ignore_result=True)
def handle_update(update_id: int, crowd: str = "", in_line: bool = True) -> None:
    """Handle an update now, or when the server throttle allows it. `crowd` is the server's key."""
    if not crowd:
        updates.handle_place_updates(update_id, _handle_update_safely)
    elif not in_line:
        if not updates.handle_updates_until(update_id, _handle_update_safely):
            SERVER_THROTTLE.enqueue("", update_id)
    elif SERVER_THROTTLE.try_pass(crowd, update_id) and not updates.handle_updates_until(
        update_id, _handle_update_safely
    ):
        SERVER_THROTTLE.enqueue(crowd, update_id)


def _handle_throttled(update_id: int) -> bool:
    """Handle an update in the throttle's thread, which must not die; the sweep finds a failed update again."""
    try:
        close_old_connections()
        return updates.handle_updates_until(update_id, _handle_update_safely)
    except Exception:
        log.exception("update_handling_failed", update_id=update_id)
        return True


SERVER_THROTTLE = ServerThrottle(_handle_throttled)


def _handle_update_safely(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
    """Turn unforeseen errors into UpdateHandlerFailed, so that they do not stop the updates behind this one."""
    try:
        return update_handler.handle_platform_update(platform, bot_account, incoming)
    except updates.TRANSIENT_ERRORS:
        raise
    except Exception as problem:
        raise updates.UpdateHandlerFailed(type(problem).__name__) from problem


def enqueue_update(update_id: int, server_key: str = "", *, throttled: bool = True) -> None:
    """Enqueue the handling of an update; if the broker is down, the sweep does it later."""
    try:
        handle_update.apply_async(args=(update_id, server_key, throttled), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning(
            "task_enqueue_failed",
            task=handle_update.name,
            update_id=update_id,
            error=type(problem).__name__,
        )


@shared_task(name="linking.tasks.carry", ignore_result=True)
def carry(turn_id: str) -> None:
    """Deliver a turn's answer to its chat on this process's outbound worker."""
    worker.get_worker().deliver_turn(UUID(turn_id))


def enqueue_turn_delivery(turn_id: UUID, **_signal: object) -> None:
    """Enqueue the delivery of a turn's answer; receives every signal of turns."""
    if messages.is_starting_turn() or not worker.get_own_accounts():
        return  # the submitting thread delivers it itself, or there are no bots of our own
    try:
        carry.apply_async(args=(str(turn_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("task_enqueue_failed", task=carry.name, turn_id=turn_id, error=type(problem).__name__)


@shared_task(name="linking.tasks.sweep", ignore_result=True, time_limit=50)
def sweep() -> None:
    """Enqueue overdue updates and undelivered answers; runs every ten seconds."""
    for update_id, server_key in updates.find_overdue_updates():
        enqueue_update(update_id, server_key)
    for turn_id in worker.find_undelivered_turns():
        enqueue_turn_delivery(turn_id)
