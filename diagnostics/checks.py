"""System checks for the settings of diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning

from diagnostics.probes import configuration

# A dead turn must continue within 15 seconds, and 5 of them are left for its first token.
MAX_DETECTION_SECONDS = 10


@register
def check_heartbeat_settings(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    beat, life, sweep = (
        settings.WORKER_BEAT_SECONDS,
        settings.WORKER_BEAT_LIFE_SECONDS,
        settings.DIAG_SWEEP_SECONDS,
    )
    found: list[CheckMessage] = []
    if life < 3 * beat:
        found.append(
            Error(
                f"WORKER_BEAT_LIFE_SECONDS ({life:g}) must be at least three times WORKER_BEAT_SECONDS ({beat:g}).",
                id="diagnostics.E001",
            )
        )
    if life + 2 * sweep > MAX_DETECTION_SECONDS:
        found.append(
            Error(
                f"WORKER_BEAT_LIFE_SECONDS ({life:g}) and twice DIAG_SWEEP_SECONDS ({sweep:g}) must not be more than "
                f"{MAX_DETECTION_SECONDS} s together, or dead turns are taken over too late.",
                id="diagnostics.E001",
            )
        )
    return found


@register
def check_threshold_settings(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for smaller, larger, identifier, why in (
        ("DIAG_STUCK_QUEUED_SECONDS", "DIAG_ORPHAN_AGE_SECONDS", "E002", "nothing would ever be stuck"),
        ("DIAG_BULK_MAX", "DIAG_ALL_MAX", "E003", "a repair of all would reach less than one of a list"),
        ("TURN_MAX_SECONDS", "DIAG_LONG_RUNNING_SECONDS", "E004", "ordinary turns would look too long"),
    ):
        less, more = getattr(settings, smaller), getattr(settings, larger)
        if less > more:
            found.append(
                Error(
                    f"{smaller} ({less:g}) must not be above {larger} ({more:g}): {why}.",
                    id=f"diagnostics.{identifier}",
                )
            )
    return found


@register
def check_metrics_networks(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    return [
        Error(
            f"METRICS_ALLOWED_CIDRS: {network!r} is not a network such as 10.0.0.0/8.", id="diagnostics.E005"
        )
        for network in settings.METRICS_ALLOWED_CIDRS
        if not _is_network(network)
    ]


@register
def check_production_values(app_configs: Sequence[AppConfig] | None, **kwargs: object) -> list[CheckMessage]:
    """Warn at start about values that are well formed but cannot work, as the doctor does."""
    found = [
        probe()
        for probe in (
            configuration.probe_proxies,
            configuration.probe_mail_sender,
            configuration.probe_traces,
        )
    ]
    return [
        CheckWarning(f"{finding.detail}. {finding.next_step}", id="diagnostics.W001")
        for finding in found
        if finding.status in ("warn", "fail")
    ]


def _is_network(text: str) -> bool:
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True
