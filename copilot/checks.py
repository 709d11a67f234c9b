"""What must hold of the settings before anything starts; a contradiction names both of its sides (A0.7)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from copilot.providers import caching
from copilot.workers import BEAT_LIFE_SECONDS, BEAT_SECONDS

_ORIGIN = re.compile(r"https://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
SWEEP_SECONDS = 2.0  # the reaper's tick (D10)


@register
def limits_agree(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    visibility = settings.BROKER_VISIBILITY_SECONDS
    if visibility <= settings.TURN_MAX_SECONDS:
        found.append(
            Error(
                f"TURN_MAX_SECONDS ({settings.TURN_MAX_SECONDS:g}) must be below the broker's visibility timeout "
                f"({visibility}), or long turns would be delivered twice.",
                id="copilot.E001",
            )
        )
    if settings.HEARTBEAT_SECONDS >= settings.STREAM_IDLE_SECONDS:
        found.append(
            Error(
                f"HEARTBEAT_SECONDS ({settings.HEARTBEAT_SECONDS:g}) must be below twice MAX_TOOL_WAIT_SECONDS "
                f"({settings.STREAM_IDLE_SECONDS:g}), after which a silent turn ends.",
                id="copilot.E002",
            )
        )
    return found


@register
def cached_prefixes_outlive_messages(
    app_configs: Sequence[AppConfig] | None, **kwargs: object
) -> list[CheckMessage]:
    """Anthropic refuses a request in which a short mark stands before a long one (A15.8)."""
    prefix, messages = settings.PROMPT_CACHE_PREFIX_LIFE, settings.PROMPT_CACHE_MESSAGES_LIFE
    if caching.LIVES.index(prefix) >= caching.LIVES.index(messages):
        return []
    return [
        Error(
            f"PROMPT_CACHE_PREFIX_LIFE ({prefix}) must not be shorter than PROMPT_CACHE_MESSAGES_LIFE ({messages}).",
            id="copilot.E003",
        )
    ]


@register
def script_hosts_are_origins(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    """They go into a policy word by word: anything else could loosen it (S14)."""
    odd = [host for host in settings.ARTIFACT_SCRIPT_HOSTS if not _ORIGIN.fullmatch(host)]
    return [
        Error(f"ARTIFACT_SCRIPT_HOSTS holds https://host[:port] origins, not {host!r}.", id="copilot.E010")
        for host in odd
    ]


@register
def beats_outlive_sweeps(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    """Five of the fifteen seconds are left for the first continued token (D2)."""
    if BEAT_LIFE_SECONDS >= 3 * BEAT_SECONDS and BEAT_LIFE_SECONDS + 2 * SWEEP_SECONDS <= 10:
        return []
    return [
        Error("A beat must live three periods, and with two sweeps at most 10 s.", id="diagnostics.E001"),
    ]
