"""Boots diagnostics."""

from __future__ import annotations

from django.apps import AppConfig


class DiagnosticsConfig(AppConfig):
    name = "diagnostics"
    verbose_name = "Diagnostics"

    def ready(self) -> None:
        from diagnostics import checks  # noqa: F401 - checks register themselves
