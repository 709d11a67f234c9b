"""Configure copilot at start: signals, service bindings, secrets to redact and the model catalogue."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


class CopilotConfig(AppConfig):
    name = "copilot"
    verbose_name = "Conversations"

    def ready(self) -> None:
        from config.core import redaction
        from copilot import checks, tasks  # noqa: F401 - checks register themselves
        from copilot.accounts import audit_signals, devices
        from copilot.chat import commands, compaction_requests, next_turn, service_bindings, stop, submission
        from copilot.providers import catalogue, catalogue_store, prompt_cache

        audit_signals.connect_signals()
        devices.connect_signals()

        service_bindings.bind_services(
            start_kept_turn=next_turn.start_kept_turn,
            wake_worker=tasks.wake_worker,
            submit_internal_message=submission.submit_internal_message,
            withdraw_queued_message=submission.withdraw_queued_message,
            stop_child_turn=submission.stop_child_turn,
            enqueue_background_job=tasks.enqueue_background_job,
            compact_after_turn=compaction_requests.compact_after_turn,
            enqueue_scan=tasks.enqueue_scan,
            enqueue_data_job=tasks.enqueue_data_job,
            end_session_activity=stop.end_session_activity,
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
