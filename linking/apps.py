"""Boots linking, and binds the ports that lower modules call."""

from __future__ import annotations

from django.apps import AppConfig


class LinkingConfig(AppConfig):
    name = "linking"
    verbose_name = "Chat platforms and bots"

    def ready(self) -> None:
        from linking import checks, task_registry, tasks  # noqa: F401 - checks register themselves

        task_registry.register_tasks(
            tell_linked=tasks.enqueue_link_notification, deliver=tasks.enqueue_deliveries
        )
