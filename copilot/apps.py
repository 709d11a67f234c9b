"""Boots copilot: the model catalogue, the secrets to redact, and the ports that lower modules call."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


class CopilotConfig(AppConfig):
    name = "copilot"
    verbose_name = "Conversations"

    def ready(self) -> None:
        from copilot import (  # noqa: F401 - checks register themselves
            checks,
            commands,
            dispatch,
            offering,
            ports,
            redaction,
            tasks,
        )
        from copilot.accounts import audit_signals, devices
        from copilot.providers import caching, catalogue

        audit_signals.connect()
        devices.connect()

        ports.bind(
            follow=dispatch.follow,
            send_turn=tasks.send,
            say=dispatch.say,
            unsay=dispatch.unsay,
            stop_turn=dispatch.stop_turn,
            send_errand=tasks.send_errand,
            compact_after=dispatch.compact_after,
            send_scan=tasks.send_scan,
            send_job=tasks.send_job,
            halt=dispatch.halt,
        )

        for name in filter(str.isupper, dir(settings)):
            redaction.register(redaction.secrets_in(name, getattr(settings, name)))
        try:
            catalogue.configure(catalogue.build_from(settings))
        except ValueError as problem:  # the providers know no framework
            raise ImproperlyConfigured(str(problem)) from problem
        if settings.FOLLOW_CATALOGUE:
            offering.follow()
        caching.configure_from(settings)
        commands.configure_from(settings)
