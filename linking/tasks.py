"""The Celery door of linking: ids in, one call out."""

from __future__ import annotations

import logging
from uuid import UUID

from celery import shared_task
from django.db import close_old_connections, transaction
from kombu.exceptions import OperationalError

from linking import approval_notifications, emails
from linking.caps import reservations
from linking.conversations import buttons, idempotency
from linking.inbound import messages, update_handler, updates
from linking.inbound.server_throttle import ServerThrottle, make_server_key
from linking.links import services as links
from linking.models import LinkToken
from linking.outbound import worker
from linking.platforms.base import IncomingUpdate
from linking.webhook_deliveries import outbox, sender

log = logging.getLogger(__name__)


@shared_task(name="linking.tasks.tell_of_link", ignore_result=True)
def tell_of_link(token_id: str) -> None:
    """A confirmed token: a mail to the account, a note where it was asked for."""
    if (token := _email_link_owner(token_id)) is not None:
        update_handler.send_linked_notice(token)


def _email_link_owner(token_id: str) -> LinkToken | None:
    token = LinkToken.objects.select_related("used_by").filter(pk=token_id).first()
    if token is None or token.used_by is None:
        return None
    emails.send_linked_email(token, token.used_by)
    return token


def enqueue_link_notification(token_id: UUID) -> None:
    try:
        tell_of_link.apply_async(args=(str(token_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, a link is told of by mail alone: %s", type(problem).__name__)
        _email_link_owner(str(token_id))  # whoever did not connect it must learn of it


@shared_task(name="linking.tasks.deliver", ignore_result=True)
def deliver() -> None:
    """Every few seconds, and when something was written down: what is due goes out (L17)."""
    sender.send_due_deliveries()


def enqueue_deliveries() -> None:
    try:
        deliver.apply_async(retry=False, expires=10)
    except (OperationalError, OSError) as problem:
        log.warning(
            "the broker is unreachable, a delivery waits for the next round: %s", type(problem).__name__
        )


@shared_task(name="linking.tasks.tend", ignore_result=True)
def tend() -> None:
    """Once a minute: what crashes left open, and what is too old to keep."""
    reservations.settle_stale_reservations()
    reservations.purge_reservations()
    links.purge_link_tokens()
    idempotency.purge_idempotency_keys()
    buttons.purge_buttons()
    outbox.record_missed_deliveries()
    sender.purge_deliveries()
    updates.purge_updates()


@shared_task(name="linking.tasks.announce_waiting", ignore_result=True)
def announce_waiting() -> None:
    """Once a minute: whom a call has waited for a while, is told so elsewhere (A11.12)."""
    for turn_id in approval_notifications.claim_turns_to_notify():
        try:
            announce.apply_async(args=(str(turn_id),), retry=False)
        except (OperationalError, OSError) as problem:
            log.warning("the broker is unreachable, a request is not announced: %s", type(problem).__name__)


@shared_task(name="linking.tasks.announce", ignore_result=True)
def announce(turn_id: str) -> None:
    approval_notifications.notify_waiting_turn(UUID(turn_id))


# --- updates and answers of our own bots -------------------------------------------------------------


def receive_update(platform: str, bot_account: str, incoming: IncomingUpdate) -> None:
    """Keep an update, then have it handled; what comes again is dropped (L18)."""
    number = updates.store_update(platform, bot_account, incoming)
    if number is not None:
        crowd, in_line = (
            make_server_key(platform, incoming.place.server_id),
            updates.is_throttled(incoming.what),
        )
        transaction.on_commit(lambda: enqueue_update(number, crowd, in_line=in_line))


@shared_task(name="linking.tasks.handle_update", ignore_result=True)
def handle_update(update_id: int, crowd: str = "", in_line: bool = True) -> None:
    """At once, or when its turn has come: a server's burst takes nothing from others (L27)."""
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
    """What goes wrong there ends with its update, which the sweep finds again."""
    try:
        close_old_connections()
        return updates.handle_updates_until(update_id, _handle_update_safely)
    except Exception:
        log.exception("update %s could not be handled", update_id)
        return True


SERVER_THROTTLE = ServerThrottle(_handle_throttled)  # of this process


def _handle_update_safely(platform: str, bot_account: str, incoming: IncomingUpdate) -> str:
    """One update's surprise ends with it: those behind it in its place go on (L18)."""
    try:
        return update_handler.handle_platform_update(platform, bot_account, incoming)
    except updates.TRANSIENT_ERRORS:
        raise
    except Exception as problem:
        raise updates.UpdateHandlerFailed(type(problem).__name__) from problem


def enqueue_update(update_id: int, crowd: str = "", *, in_line: bool = True) -> None:
    """Lost on the way, it waits for the sweep."""
    try:
        handle_update.apply_async(args=(update_id, crowd, in_line), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, update %s waits: %s", update_id, type(problem).__name__)


@shared_task(name="linking.tasks.carry", ignore_result=True)
def carry(turn_id: str) -> None:
    """The answer goes to its chat; the process's courier does it, beside many others."""
    worker.get_worker().deliver_turn(UUID(turn_id))


def enqueue_turn_delivery(turn_id: UUID) -> None:
    """A turn started or ended (TURN_HOOKS): if it was asked for in a chat of ours, its answer belongs there."""
    if messages.is_starting_turn() or not worker.get_own_accounts():
        return  # it is being seen to, or all bots are somebody else's
    try:
        carry.apply_async(args=(str(turn_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, turn %s waits: %s", turn_id, type(problem).__name__)


@shared_task(name="linking.tasks.sweep", ignore_result=True, time_limit=50)
def sweep() -> None:
    """Every ten seconds: updates that nobody was told of, answers that a process left (L18, L19)."""
    for update_id, crowd in updates.find_overdue_updates():
        enqueue_update(update_id, crowd)
    for turn_id in worker.find_undelivered_turns():
        enqueue_turn_delivery(turn_id)
