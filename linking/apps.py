"""Configure the linking app and connect its signals to its tasks."""

from __future__ import annotations

from django.apps import AppConfig


class LinkingConfig(AppConfig):
    name = "linking"
    verbose_name = "Chat platforms and bots"

    def ready(self) -> None:
        from linking import checks, signals, tasks  # noqa: F401 - checks register themselves

        signals.link_confirmed.connect(
            tasks.enqueue_link_notification, dispatch_uid="linking.enqueue_link_notification"
        )
        signals.deliveries_recorded.connect(
            tasks.enqueue_deliveries, dispatch_uid="linking.enqueue_deliveries"
        )
