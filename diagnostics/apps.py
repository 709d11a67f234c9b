"""Configure the diagnostics app."""

from __future__ import annotations

from django.apps import AppConfig


class DiagnosticsConfig(AppConfig):
    name = "diagnostics"
    verbose_name = "Diagnostics"

    def ready(self) -> None:
        from config.core.audit import audit_event
        from diagnostics import audit, checks  # noqa: F401 - checks register themselves

        audit_event.connect(audit.write_event, dispatch_uid="diagnostics.audit")
