"""The Celery door of linking: ids in, one call out."""

from __future__ import annotations

import logging
from uuid import UUID

from celery import shared_task
from django.db import close_old_connections, transaction
from kombu.exceptions import OperationalError

from linking import (
    announcing,
    caps,
    conversations,
    deliveries,
    inbound,
    inbox,
    links,
    mails,
    outbound,
    reception,
)
from linking.crowds import Line, crowd_of
from linking.models import LinkToken
from linking.platforms.base import Incoming

log = logging.getLogger(__name__)


@shared_task(name="linking.tasks.tell_of_link", ignore_result=True)
def tell_of_link(token_id: str) -> None:
    """A confirmed token: a mail to the account, a note where it was asked for."""
    if (token := _mailed_of(token_id)) is not None:
        reception.say_linked(token)


def _mailed_of(token_id: str) -> LinkToken | None:
    token = LinkToken.objects.select_related("used_by").filter(pk=token_id).first()
    if token is None or token.used_by is None:
        return None
    mails.say_linked(token, token.used_by)
    return token


def send_news_of_link(token_id: UUID) -> None:
    try:
        tell_of_link.apply_async(args=(str(token_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, a link is told of by mail alone: %s", type(problem).__name__)
        _mailed_of(str(token_id))  # whoever did not connect it must learn of it


@shared_task(name="linking.tasks.deliver", ignore_result=True)
def deliver() -> None:
    """Every few seconds, and when something was written down: what is due goes out (L17)."""
    deliveries.send_due()


def send_deliver() -> None:
    try:
        deliver.apply_async(retry=False, expires=10)
    except (OperationalError, OSError) as problem:
        log.warning(
            "the broker is unreachable, a delivery waits for the next round: %s", type(problem).__name__
        )


@shared_task(name="linking.tasks.tend", ignore_result=True)
def tend() -> None:
    """Once a minute: what crashes left open, and what is too old to keep."""
    caps.settle_forgotten()
    caps.purge()
    links.purge_tokens()
    conversations.purge_started()
    conversations.purge_buttons()
    deliveries.note_missed()
    deliveries.purge_deliveries()
    inbox.purge()


@shared_task(name="linking.tasks.announce_waiting", ignore_result=True)
def announce_waiting() -> None:
    """Once a minute: whom a call has waited for a while, is told so elsewhere (A11.12)."""
    for turn_id in announcing.due():
        try:
            announce.apply_async(args=(str(turn_id),), retry=False)
        except (OperationalError, OSError) as problem:
            log.warning("the broker is unreachable, a request is not announced: %s", type(problem).__name__)


@shared_task(name="linking.tasks.announce", ignore_result=True)
def announce(turn_id: str) -> None:
    announcing.announce(UUID(turn_id))


# --- updates and answers of our own bots -------------------------------------------------------------


def receive(platform: str, bot_account: str, incoming: Incoming) -> None:
    """Keep an update, then have it handled; what comes again is dropped (L18)."""
    number = inbox.store(platform, bot_account, incoming)
    if number is not None:
        crowd, in_line = crowd_of(platform, incoming.place.server_id), inbox.waits_in_line(incoming.what)
        transaction.on_commit(lambda: send_update(number, crowd, in_line=in_line))


@shared_task(name="linking.tasks.handle_update", ignore_result=True)
def handle_update(update_id: int, crowd: str = "", in_line: bool = True) -> None:
    """At once, or when its turn has come: a server's burst takes nothing from others (L27)."""
    if not crowd:
        inbox.work_off(update_id, _attempt)
    elif not in_line:
        if not inbox.work_off_until(update_id, _attempt):
            LINE.line_up("", update_id)
    elif LINE.lets_through(crowd, update_id) and not inbox.work_off_until(update_id, _attempt):
        LINE.line_up(crowd, update_id)


def _handle_in_line(update_id: int) -> bool:
    """What goes wrong there ends with its update, which the sweep finds again."""
    try:
        close_old_connections()
        return inbox.work_off_until(update_id, _attempt)
    except Exception:
        log.exception("update %s could not be handled", update_id)
        return True


LINE = Line(_handle_in_line)  # of this process


def _attempt(platform: str, bot_account: str, incoming: Incoming) -> str:
    """One update's surprise ends with it: those behind it in its place go on (L18)."""
    try:
        return reception.handle(platform, bot_account, incoming)
    except inbox.PASSING:
        raise
    except Exception as problem:
        raise inbox.Failed(type(problem).__name__) from problem


def send_update(update_id: int, crowd: str = "", *, in_line: bool = True) -> None:
    """Lost on the way, it waits for the sweep."""
    try:
        handle_update.apply_async(args=(update_id, crowd, in_line), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, update %s waits: %s", update_id, type(problem).__name__)


@shared_task(name="linking.tasks.carry", ignore_result=True)
def carry(turn_id: str) -> None:
    """The answer goes to its chat; the process's courier does it, beside many others."""
    outbound.courier().take(UUID(turn_id))


def turn_moved(turn_id: UUID) -> None:
    """A turn started or ended (TURN_HOOKS): if it was asked for in a chat of ours, its answer belongs there."""
    if inbound.starts_here() or not outbound.accounts():
        return  # it is being seen to, or all bots are somebody else's
    try:
        carry.apply_async(args=(str(turn_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, turn %s waits: %s", turn_id, type(problem).__name__)


@shared_task(name="linking.tasks.sweep", ignore_result=True, time_limit=50)
def sweep() -> None:
    """Every ten seconds: updates that nobody was told of, answers that a process left (L18, L19)."""
    for update_id, crowd in inbox.left_behind():
        send_update(update_id, crowd)
    for turn_id in outbound.owed():
        turn_moved(turn_id)
