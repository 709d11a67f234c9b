"""Configure copilot at start: signals, secrets to redact and the model catalogue."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


class CopilotConfig(AppConfig):
    name = "copilot"
    verbose_name = "Conversations"

    def ready(self) -> None:
        from billing import signals as billing_signals
        from config.core import redaction
        from copilot import checks  # noqa: F401 - checks register themselves
        from copilot.accounts import audit_signals, devices
        from copilot.chat import commands, next_turn
        from copilot.providers import catalogue, catalogue_store, prompt_cache

        audit_signals.connect_signals()
        devices.connect_signals()
        billing_signals.limit_lifted.connect(
            next_turn.start_after_limit_lifted, dispatch_uid="copilot.start_after_limit_lifted"
        )

        for name in filter(str.isupper, dir(settings)):
            redaction.register_secrets(redaction.find_setting_secrets(name, getattr(settings, name)))
        try:
            catalogue.set_catalogue(catalogue.build_from_settings(settings))
        except ValueError as problem:  # providers do not depend on Django, so its error is raised here
            raise ImproperlyConfigured(str(problem)) from problem
        if settings.FOLLOW_CATALOGUE:
            catalogue_store.follow_catalogue()
        prompt_cache.configure_from_settings(settings)
        commands.configure_message_limits(settings)
