"""Probe what turns and files need: models, tools and the virus scanner."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from uuid import UUID

from django.conf import settings
from django.db import connection

from copilot.files import virus_scan
from copilot.tools import availability
from diagnostics.probes.runner import Probe, ProbeFinding, describe_failure

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
