"""Which parts that turns and files need cannot work in this installation: models, tools, the virus scanner."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from uuid import UUID

from django.conf import settings
from django.db import connection

from copilot import toolset
from copilot.workspace import scanning
from diagnostics.probes.running import Finding, Probe, failure_text

_CLEAN = b"Pilothouse asks whether the scanner answers."


def shipped() -> Finding:
    """An installation may do without some of them: worth a line, not a failure."""
    missing = toolset.unavailable()
    if not missing:
        return Finding(detail="all available")
    named = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in missing.items())
    return Finding(detail=f"not available: {named}")


def models() -> Finding:
    """Rows of the catalogue count as much as keys in the environment."""
    try:
        answering = toolset.models()
    finally:
        connection.close()  # this thread's own
    if answering.real:
        return Finding(detail=", ".join(answering.real[:5]))
    if answering.demo:
        detail = "no model is configured: a scripted demo answers"
        return Finding(
            detail=f"{detail} (fine outside production)" if settings.ENVIRONMENT != "production" else detail
        )
    return Finding(
        status="fail",
        detail="no model is configured, so nobody gets an answer",
        next_step="Set OPENAI_API_KEY or ANTHROPIC_API_KEY, or add a model in the admin.",
    )


def scanner() -> Finding:
    """A harmless text goes the way of every upload; without a verdict no file is ever released."""
    if not scanning.is_on():
        return Finding(status="skip", detail="no virus scanner is configured")
    about = scanning.Meta(
        file_id=UUID(int=0),
        name="doctor.txt",
        mime="text/plain",
        size_bytes=len(_CLEAN),
        sha256=hashlib.sha256(_CLEAN).hexdigest(),
    )
    where = f" at {settings.CLAMD_ADDRESS}" if "clamav" in settings.WORKSPACE_SCAN_HOOK else ""
    try:
        verdict = scanning.judge(io.BytesIO(_CLEAN), about)
    except Exception as problem:  # noqa: BLE001 - the hook is somebody else's code
        return Finding(
            status="fail",
            detail=f"the virus scanner{where} gives no verdict ({failure_text(problem)}), so uploads stay locked",
            next_step="Start it, or correct WORKSPACE_SCAN_HOOK and CLAMD_ADDRESS.",
        )
    if verdict != "clean":
        return Finding(
            status="fail",
            detail=f"the virus scanner{where} calls a harmless text infected",
            next_step="Update its signatures.",
        )
    return Finding(detail="answers")


CHECKS: Mapping[str, Probe] = {"tools": shipped, "tools.models": models, "tools.scanner": scanner}
