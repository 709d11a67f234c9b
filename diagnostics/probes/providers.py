"""Can the configured model providers be reached with our key: by listing models, which costs nothing (D17)."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings

from diagnostics.probes.asking import ask, judged
from diagnostics.probes.running import Finding, Probe

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"
NOT_CONFIGURED = Finding(status="skip", detail="not configured")


def openai() -> Finding:
    if not settings.OPENAI_API_KEY and not settings.OPENAI_BASE_URL:
        return NOT_CONFIGURED
    base = settings.OPENAI_BASE_URL or OPENAI_URL
    headers = {"Authorization": f"Bearer {settings.OPENAI_API_KEY}"}
    return _listing(f"{base.rstrip('/')}/models", headers, variable="OPENAI_API_KEY")


def anthropic() -> Finding:
    if not settings.ANTHROPIC_API_KEY:
        return NOT_CONFIGURED
    base = settings.ANTHROPIC_BASE_URL or ANTHROPIC_URL
    headers = {"x-api-key": settings.ANTHROPIC_API_KEY, "anthropic-version": ANTHROPIC_VERSION}
    return _listing(f"{base.rstrip('/')}/v1/models", headers, variable="ANTHROPIC_API_KEY")


def _listing(url: str, headers: Mapping[str, str], *, variable: str) -> Finding:
    if not url.startswith(("https://", "http://")):
        return Finding(
            status="fail", detail="the base URL is not http", next_step="Check the *_BASE_URL variable."
        )
    return judged(ask(url, headers), variable=variable)


CHECKS: Mapping[str, Probe] = {"providers.openai": openai, "providers.anthropic": anthropic}
