"""The Celery door of linking: ids in, one call out."""

from __future__ import annotations

import logging
from uuid import UUID

from celery import shared_task
from kombu.exceptions import OperationalError

from linking import caps, conversations, deliveries, links, mails
from linking.models import LinkToken

log = logging.getLogger(__name__)


@shared_task(name="linking.tasks.tell_of_link", ignore_result=True)
def tell_of_link(token_id: str) -> None:
    """A confirmed token: a mail to the account."""
    token = LinkToken.objects.select_related("used_by").filter(pk=token_id).first()
    if token is not None and token.used_by is not None:
        mails.say_linked(token, token.used_by)


def send_news_of_link(token_id: UUID) -> None:
    try:
        tell_of_link.apply_async(args=(str(token_id),), retry=False)
    except (OperationalError, OSError) as problem:
        log.warning("the broker is unreachable, a link is not told of: %s", type(problem).__name__)


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
