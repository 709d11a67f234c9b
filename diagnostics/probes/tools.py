"""Which tools cannot work in this installation, and what would bring each of them back (A32.2)."""

from __future__ import annotations

from collections.abc import Mapping

from copilot import toolset
from diagnostics.probes.running import Finding, Probe


def shipped() -> Finding:
    """An installation may do without some of them: worth a line, not a failure."""
    missing = toolset.unavailable()
    if not missing:
        return Finding(detail="all available")
    named = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in missing.items())
    return Finding(detail=f"not available: {named}")


CHECKS: Mapping[str, Probe] = {"tools": shipped}
