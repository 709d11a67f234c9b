"""What lower modules may ask of those above them; bound at boot, so that nothing imports upwards."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID


class LinkNotificationTask(Protocol):
    def __call__(self, token_id: UUID) -> None: ...


class DeliveryTask(Protocol):
    def __call__(self) -> None: ...


class _RegisteredTasks:
    enqueue_link_notification: LinkNotificationTask
    enqueue_deliveries: DeliveryTask


def register_tasks(*, tell_linked: LinkNotificationTask, deliver: DeliveryTask) -> None:
    _RegisteredTasks.enqueue_link_notification = staticmethod(tell_linked)
    _RegisteredTasks.enqueue_deliveries = staticmethod(deliver)


def enqueue_link_notification(token_id: UUID) -> None:
    """A token was confirmed: its owner gets a mail, the chat that asked a note (tasks)."""
    _RegisteredTasks.enqueue_link_notification(token_id)


def enqueue_deliveries() -> None:
    """Something was written down for a bot: have it sent (tasks)."""
    _RegisteredTasks.enqueue_deliveries()
