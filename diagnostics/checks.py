"""System checks for the settings of diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as CheckWarning

from diagnostics.probes import configuration


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
            configuration.probe_variable_names,
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
