"""Check the settings of this installation without showing their values."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from email.utils import parseaddr
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.core import checks
from django.db import connection
from django.http.request import split_domain_port, validate_host

from copilot.files import virus_scan
from copilot.tools import availability
from diagnostics.probes.runner import Probe, ProbeFinding, describe_failure

MIN_SECRET_KEY_LENGTH = 50
MIN_DISTINCT_CHARACTERS = 5


def _fail_in_production(problem: str, next_step: str) -> ProbeFinding:
    """Fail in production only: a laptop may do what a public installation must not."""
    if settings.ENVIRONMENT == "production":
        return ProbeFinding(status="fail", detail=problem, next_step=next_step)
    return ProbeFinding(detail=f"{problem} (fine outside production)")


def probe_system_checks() -> ProbeFinding:
    found = [message for message in checks.run_checks() if message.level >= checks.ERROR]
    if found:
        return ProbeFinding(
            status="fail",
            detail="; ".join(sorted(str(message.msg).rstrip(".") for message in found))[:1000],
            next_step="Change the settings named above.",
        )
    return ProbeFinding(detail="no contradictions")


def probe_variable_names() -> ProbeFinding:
    """Find misspelt variables, and those that were settings of an earlier release."""
    if not settings.UNREAD_VARIABLES:
        return ProbeFinding(detail="all variables are known")
    told = [
        f"{name} (did you mean {meant}?)" if meant else name
        for name, meant in settings.UNREAD_VARIABLES.items()
    ]
    return ProbeFinding(
        status="warn",
        detail=f"nothing reads {', '.join(told)}"[:1000],
        next_step="Correct or remove these variables; docs/reference/settings.md lists all that are read.",
    )


def probe_secret_key() -> ProbeFinding:
    key = settings.SECRET_KEY
    if len(key) < MIN_SECRET_KEY_LENGTH or len(set(key)) < MIN_DISTINCT_CHARACTERS or "insecure" in key:
        return _fail_in_production("SECRET_KEY is weak", "Set 50 or more random characters.")
    return ProbeFinding(detail="strong")


def probe_debug() -> ProbeFinding:
    return (
        _fail_in_production("DEBUG is on", "Set DEBUG=false.")
        if settings.DEBUG
        else ProbeFinding(detail="off")
    )


def probe_allowed_hosts() -> ProbeFinding:
    if "*" in settings.ALLOWED_HOSTS:
        return _fail_in_production("ALLOWED_HOSTS allows every host", "List the names this site answers to.")
    odd = [host for host in settings.ALLOWED_HOSTS if "/" in host or re.search(r":[0-9]+$", host)]
    if odd:
        return ProbeFinding(
            status="fail",
            detail=f"ALLOWED_HOSTS contains {odd[0]!r}, which matches nothing",
            next_step="List bare names, without https:// and without a port.",
        )
    host = urlsplit(settings.SITE_URL).netloc.rpartition("@")[2]
    name, _ = split_domain_port(host)
    if not validate_host(name, settings.ALLOWED_HOSTS):
        return ProbeFinding(
            status="fail",
            detail=f"ALLOWED_HOSTS does not contain {name}, so every page of SITE_URL answers 400",
            next_step=f"Add {name} to ALLOWED_HOSTS.",
        )
    return ProbeFinding(detail=f"{len(settings.ALLOWED_HOSTS)} allowed")


def probe_static_files() -> ProbeFinding:
    """Check collected static files: in production, pages name files by hashes that are known only then."""
    if settings.ENVIRONMENT != "production":
        return ProbeFinding(detail="served as they are (fine outside production)")
    collect = "Run `python manage.py collectstatic --no-input`."
    try:
        paths = json.loads((Path(settings.STATIC_ROOT) / "staticfiles.json").read_bytes())["paths"]
    except FileNotFoundError:
        return ProbeFinding(
            status="fail",
            detail=f"static files are not collected in {settings.STATIC_ROOT}, so pages fail",
            next_step=collect,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ProbeFinding(
            status="fail",
            detail=f"the list of static files in {settings.STATIC_ROOT} cannot be read",
            next_step=collect,
        )
    missing = sorted(_list_static_sources() - set(paths))
    if missing:
        return ProbeFinding(
            status="fail",
            detail=f"{len(missing)} static files of this release are not collected, first {missing[0]}",
            next_step=collect,
        )
    gone = next((name for name in paths.values() if not (Path(settings.STATIC_ROOT) / name).exists()), None)
    if gone is not None:
        return ProbeFinding(
            status="fail", detail=f"{gone} is missing in {settings.STATIC_ROOT}", next_step=collect
        )
    return ProbeFinding(detail=f"{len(paths)} collected")


def _list_static_sources() -> set[str]:
    """List our own files; the same command collects those of packages."""
    roots = [Path(root) for root in settings.STATICFILES_DIRS]
    return {path.relative_to(root).as_posix() for root in roots for path in root.rglob("*") if path.is_file()}


def probe_https() -> ProbeFinding:
    if settings.SITE_URL.startswith("https://"):
        return ProbeFinding(detail="on")
    if settings.ENVIRONMENT == "production":
        return ProbeFinding(
            status="warn",
            detail="SITE_URL is not https",
            next_step="Serve over https and set SITE_URL to it.",
        )
    return ProbeFinding(detail="off (fine outside production)")


def probe_proxies() -> ProbeFinding:
    if not settings.TRUST_PROXY:
        if os.environ.get("FORWARDED_ALLOW_IPS"):
            return ProbeFinding(
                status="warn",
                detail="FORWARDED_ALLOW_IPS is set, but TRUST_PROXY is off, so no proxy is believed",
                next_step="Set TRUST_PROXY=true, or remove FORWARDED_ALLOW_IPS.",
            )
        return ProbeFinding(detail="no proxy is trusted")
    if settings.TRUSTED_PROXIES != "*":
        return ProbeFinding(detail=f"{settings.TRUSTED_PROXIES} trusted")
    if settings.ENVIRONMENT != "production":
        return ProbeFinding(detail="FORWARDED_ALLOW_IPS trusts every peer (fine outside production)")
    return ProbeFinding(
        detail="FORWARDED_ALLOW_IPS trusts every peer: let nothing but the proxy reach the web port"
    )


def probe_mail_sender() -> ProbeFinding:
    """Check the sender: other mail servers discard mail from a domain that does not exist."""
    if not settings.MAIL_WORKS:
        return ProbeFinding(status="skip", detail="no mail is sent")
    domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2]
    if domain in {"localhost", "localhost.localdomain", "example.com", "example.org"}:
        return _fail_in_production(
            f"DEFAULT_FROM_EMAIL ends in @{domain}, so other mail servers discard what this site sends",
            "Set it to an address of your own domain.",
        )
    return ProbeFinding(detail=f"mail comes from @{domain}")


def probe_traces() -> ProbeFinding:
    if not settings.TRACES:
        return ProbeFinding(status="skip", detail="no collector is configured")
    try:
        is_installed = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # a parent package is missing
        is_installed = False
    if is_installed:
        return ProbeFinding(detail="sent to the collector")
    return _fail_in_production(
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the packages that send traces are not installed",
        "Install the extra `tracing`, or remove the variable.",
    )


def probe_metrics() -> ProbeFinding:
    """Check that the workers' metrics are scraped, through a shared directory or a port of their own."""
    if not settings.METRICS_TOKEN and not settings.METRICS_ALLOWED_CIDRS:
        return ProbeFinding(status="skip", detail="nobody may scrape")
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR") or settings.METRICS_PORT:
        return ProbeFinding(detail="all processes are counted")
    return ProbeFinding(
        status="warn",
        detail="the metrics of workers are not scraped",
        next_step="Set PROMETHEUS_MULTIPROC_DIR for all processes of a host, or METRICS_PORT for workers.",
    )


CONFIGURATION_PROBES: Mapping[str, Probe] = {
    "config.checks": probe_system_checks,
    "config.variables": probe_variable_names,
    "config.secret_key": probe_secret_key,
    "config.debug": probe_debug,
    "config.hosts": probe_allowed_hosts,
    "config.static": probe_static_files,
    "config.https": probe_https,
    "config.proxies": probe_proxies,
    "config.mail_sender": probe_mail_sender,
    "config.traces": probe_traces,
    "config.metrics": probe_metrics,
}


_HARMLESS_CONTENT = b"Pilothouse asks whether the scanner answers."


def probe_tools() -> ProbeFinding:
    """List unavailable tools, which are no failure: an installation may do without some."""
    missing = availability.list_unavailable_tools()
    if not missing:
        return ProbeFinding(detail="all available")
    named = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in missing.items())
    return ProbeFinding(detail=f"not available: {named}")


def probe_models() -> ProbeFinding:
    """Check that a model can answer, from the catalogue or from keys in the environment."""
    try:
        answering = availability.list_answering_models()
    finally:
        connection.close()  # the connection of this thread
    if answering.real:
        return ProbeFinding(detail=", ".join(answering.real[:5]))
    if answering.demo:
        detail = "no model is configured: a scripted demo answers"
        return ProbeFinding(
            detail=f"{detail} (fine outside production)" if settings.ENVIRONMENT != "production" else detail
        )
    return ProbeFinding(
        status="fail",
        detail="no model is configured, so nobody gets an answer",
        next_step="Set OPENAI_API_KEY or ANTHROPIC_API_KEY, or add a model in the admin.",
    )


def probe_scanner() -> ProbeFinding:
    """Scan a harmless text like every upload; without a verdict no file is ever released."""
    if not virus_scan.is_scan_enabled():
        return ProbeFinding(status="skip", detail="no virus scanner is configured")
    about = virus_scan.ScannedFile(
        file_id=UUID(int=0),
        name="doctor.txt",
        mime="text/plain",
        size_bytes=len(_HARMLESS_CONTENT),
        sha256=hashlib.sha256(_HARMLESS_CONTENT).hexdigest(),
    )
    where = f" at {settings.CLAMD_ADDRESS}" if "clamav" in settings.WORKSPACE_SCAN_HOOK else ""
    try:
        verdict = virus_scan.run_hook(io.BytesIO(_HARMLESS_CONTENT), about)
    except Exception as problem:  # noqa: BLE001 - the hook is somebody else's code
        return ProbeFinding(
            status="fail",
            detail=f"the virus scanner{where} does not work ({describe_failure(problem)}), so uploads stay locked",
            next_step="Start it, or correct WORKSPACE_SCAN_HOOK and CLAMD_ADDRESS.",
        )
    if verdict != "clean":
        return ProbeFinding(
            status="fail",
            detail=f"the virus scanner{where} reports a harmless text as infected",
            next_step="Update its signatures.",
        )
    return ProbeFinding(detail="answers")


TOOL_PROBES: Mapping[str, Probe] = {
    "tools": probe_tools,
    "tools.models": probe_models,
    "tools.scanner": probe_scanner,
}
