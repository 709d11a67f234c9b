"""Boots linking, and binds the ports that lower modules call."""

from __future__ import annotations

from django.apps import AppConfig


class LinkingConfig(AppConfig):
    name = "linking"
    verbose_name = "Chat platforms and bots"

    def ready(self) -> None:
        from linking import checks, ports, tasks  # noqa: F401 - checks register themselves

        ports.bind(tell_linked=tasks.send_news_of_link, deliver=tasks.send_deliver)
