"""Boots linking."""

from __future__ import annotations

from django.apps import AppConfig


class LinkingConfig(AppConfig):
    name = "linking"
    verbose_name = "Chat platforms and bots"
