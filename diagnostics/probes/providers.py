"""Can the configured model providers be reached with our key: by listing models, which costs nothing (D17)."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

from django.conf import settings

from diagnostics.probes.running import SLOW_SECONDS, Finding, Probe

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"


def openai() -> Finding:
    if not settings.OPENAI_API_KEY and not settings.OPENAI_BASE_URL:
        return Finding(status="skip", detail="not configured")
    base = settings.OPENAI_BASE_URL or OPENAI_URL
    return _listing(f"{base.rstrip('/')}/models", {"Authorization": f"Bearer {settings.OPENAI_API_KEY}"})


def anthropic() -> Finding:
    if not settings.ANTHROPIC_API_KEY:
        return Finding(status="skip", detail="not configured")
    base = settings.ANTHROPIC_BASE_URL or ANTHROPIC_URL
    headers = {"x-api-key": settings.ANTHROPIC_API_KEY, "anthropic-version": ANTHROPIC_VERSION}
    return _listing(f"{base.rstrip('/')}/v1/models", headers)


def _listing(url: str, headers: dict[str, str]) -> Finding:
    if not url.startswith(("https://", "http://")):
        return Finding(
            status="fail", detail="the base URL is not http", next_step="Check the *_BASE_URL variable."
        )
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SLOW_SECONDS):  # noqa: S310
            return Finding(detail="reachable, key accepted")
    except urllib.error.HTTPError as refusal:
        refusal.close()
        if refusal.code in (401, 403):
            return Finding(status="fail", detail="the key was refused", next_step="Set a valid API key.")
        return Finding(
            status="warn",
            detail=f"answered {refusal.code}",
            next_step="Try again, then check its status page.",
        )
    except (urllib.error.URLError, TimeoutError, OSError):
        return Finding(
            status="fail",
            detail="cannot be reached",
            next_step="Check the network and the *_BASE_URL variable.",
        )


CHECKS: Mapping[str, Probe] = {"providers.openai": openai, "providers.anthropic": anthropic}
