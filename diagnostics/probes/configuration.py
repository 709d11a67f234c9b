"""Judges the settings of this installation without showing their values (D17)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from django.conf import settings
from django.core import checks

from diagnostics.probes.running import Finding, Probe

SHORTEST_KEY = 50
FEWEST_CHARACTERS = 5


def _production_only(problem: str, next_step: str) -> Finding:
    """A laptop may do what an installation for others may not."""
    if settings.ENVIRONMENT == "production":
        return Finding(status="fail", detail=problem, next_step=next_step)
    return Finding(detail=f"{problem} (fine outside production)")


def system_checks() -> Finding:
    found = [message for message in checks.run_checks() if message.level >= checks.ERROR]
    if found:
        return Finding(
            status="fail",
            detail=", ".join(sorted(str(message.id) for message in found)),
            next_step="Run `python manage.py check`.",
        )
    return Finding(detail="no contradictions")


def secret_key() -> Finding:
    key = settings.SECRET_KEY
    if len(key) < SHORTEST_KEY or len(set(key)) < FEWEST_CHARACTERS or "insecure" in key:
        return _production_only("SECRET_KEY is weak", "Set 50 or more random characters.")
    return Finding(detail="strong")


def debug() -> Finding:
    return _production_only("DEBUG is on", "Set DEBUG=false.") if settings.DEBUG else Finding(detail="off")


def hosts() -> Finding:
    if "*" in settings.ALLOWED_HOSTS:
        return _production_only("ALLOWED_HOSTS allows every host", "List the names this site answers to.")
    return Finding(detail=f"{len(settings.ALLOWED_HOSTS)} allowed")


def https() -> Finding:
    if settings.SITE_URL.startswith("https://"):
        return Finding(detail="on")
    if settings.ENVIRONMENT == "production":
        return Finding(
            status="warn",
            detail="SITE_URL is not https",
            next_step="Serve over https and set SITE_URL to it.",
        )
    return Finding(detail="off (fine outside production)")


def metrics() -> Finding:
    """Figures of the workers reach a scraper through a directory they share, or through a port of their own."""
    if not settings.METRICS_TOKEN and not settings.METRICS_ALLOWED_CIDRS:
        return Finding(status="skip", detail="nobody may scrape")
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR") or settings.METRICS_PORT:
        return Finding(detail="all processes are counted")
    return Finding(
        status="warn",
        detail="the figures of workers are seen by nobody",
        next_step="Set PROMETHEUS_MULTIPROC_DIR for all processes of a host, or METRICS_PORT for workers.",
    )


CHECKS: Mapping[str, Probe] = {
    "config.checks": system_checks,
    "config.secret_key": secret_key,
    "config.debug": debug,
    "config.hosts": hosts,
    "config.https": https,
    "config.metrics": metrics,
}
