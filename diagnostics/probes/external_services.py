"""Probe model providers, Stripe and chat platforms by requests that cost nothing."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from django.conf import settings

from diagnostics.probes.runner import SLOW_TIMEOUT_SECONDS, Probe, ProbeFinding

MAX_ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """The answer of a service; status 0 stands for none."""

    status: int  # 0: no answer
    body: Mapping[str, object]

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def send_request(url: str, headers: Mapping[str, str], *, post: bool = False) -> ProbeAnswer:
    """Send a request. Neither URL nor headers are ever shown, because they may hold the key."""
    request = urllib.request.Request(url, headers=dict(headers), data=b"" if post else None)  # noqa: S310 - our settings
    try:
        with urllib.request.urlopen(request, timeout=SLOW_TIMEOUT_SECONDS) as answer:  # noqa: S310 - our settings
            return ProbeAnswer(status=answer.status, body=_decode_json(answer.read(MAX_ANSWER_BYTES)))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return ProbeAnswer(status=refusal.code, body={})
    except (urllib.error.URLError, TimeoutError, OSError):
        return ProbeAnswer(status=0, body={})


def judge_answer(
    answer: ProbeAnswer, *, variable: str, refusals: Collection[int] = (401, 403)
) -> ProbeFinding:
    """Judge an answer by what can go wrong everywhere: unreachable, key refused, missing permissions, other errors."""
    if answer.is_success:
        return ProbeFinding(detail="reachable, key accepted")
    if not answer.status:
        return ProbeFinding(
            status="fail", detail="cannot be reached", next_step="Check the network and its address."
        )
    if answer.status == 403 and 403 in refusals:
        return ProbeFinding(
            status="fail",
            detail="the key is valid but lacks permissions",
            next_step=f"Grant the key of {variable} the permissions it needs, or set another.",
        )
    if answer.status in refusals:
        return ProbeFinding(status="fail", detail="the key was refused", next_step=f"Set a valid {variable}.")
    return ProbeFinding(
        status="warn",
        detail=f"answered {answer.status}",
        next_step="Try again, then check its status page.",
    )


def _decode_json(text: bytes) -> Mapping[str, object]:
    try:
        body = json.loads(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2023-06-01"
PROVIDER_NOT_CONFIGURED = ProbeFinding(status="skip", detail="not configured")


def probe_openai() -> ProbeFinding:
    if not settings.OPENAI_API_KEY and not settings.OPENAI_BASE_URL:
        return PROVIDER_NOT_CONFIGURED
    base = settings.OPENAI_BASE_URL or OPENAI_URL
    headers = {"Authorization": f"Bearer {settings.OPENAI_API_KEY}"}
    return _probe_model_list(f"{base.rstrip('/')}/models", headers, variable="OPENAI_API_KEY")


def probe_anthropic() -> ProbeFinding:
    if not settings.ANTHROPIC_API_KEY:
        return PROVIDER_NOT_CONFIGURED
    base = settings.ANTHROPIC_BASE_URL or ANTHROPIC_URL
    headers = {"x-api-key": settings.ANTHROPIC_API_KEY, "anthropic-version": ANTHROPIC_VERSION}
    return _probe_model_list(f"{base.rstrip('/')}/v1/models", headers, variable="ANTHROPIC_API_KEY")


def _probe_model_list(url: str, headers: Mapping[str, str], *, variable: str) -> ProbeFinding:
    if not url.startswith(("https://", "http://")):
        return ProbeFinding(
            status="fail", detail="the base URL is not http", next_step="Check the *_BASE_URL variable."
        )
    return judge_answer(send_request(url, headers), variable=variable)


PROVIDER_PROBES: Mapping[str, Probe] = {
    "providers.openai": probe_openai,
    "providers.anthropic": probe_anthropic,
}


# --- Payments ---

STRIPE_WEBHOOK_PATH = "/api/v1/billing/stripe/webhook"
PAYMENTS_NOT_CONFIGURED = ProbeFinding(
    status="skip", detail="not configured: everything except payments works"
)


def probe_stripe() -> ProbeFinding:
    """Read the balance, which is free and needs a valid key."""
    if not settings.STRIPE_SECRET_KEY:
        return PAYMENTS_NOT_CONFIGURED
    return judge_answer(
        send_request(f"{settings.STRIPE_API_BASE}/v1/balance", _stripe_headers()),
        variable="STRIPE_SECRET_KEY",
    )


def probe_stripe_webhook() -> ProbeFinding:
    if not settings.STRIPE_SECRET_KEY:
        return PAYMENTS_NOT_CONFIGURED
    answer = send_request(f"{settings.STRIPE_API_BASE}/v1/webhook_endpoints?limit=100", _stripe_headers())
    if not answer.is_success:
        return ProbeFinding(status="skip", detail="the list of webhooks could not be read")
    ours = f"{settings.SITE_URL}{STRIPE_WEBHOOK_PATH}"
    if ours in _iter_enabled_webhooks(answer.body):
        return ProbeFinding(detail="registered")
    return ProbeFinding(
        status="warn",
        detail="this site's webhook is not registered with Stripe, so purchases do not arrive",
        next_step=f"Add an endpoint for {ours} in Stripe's dashboard.",
    )


def _iter_enabled_webhooks(body: Mapping[str, object]) -> Iterator[object]:
    listed = body.get("data")
    for endpoint in listed if isinstance(listed, list) else ():
        if isinstance(endpoint, dict) and endpoint.get("status") == "enabled":
            yield endpoint.get("url")


def _stripe_headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {settings.STRIPE_SECRET_KEY}"}


PAYMENT_PROBES: Mapping[str, Probe] = {"payments.stripe": probe_stripe}
PAYMENT_WEBHOOK_PROBES: Mapping[str, Probe] = {"webhooks.stripe": probe_stripe_webhook}


# --- Chat platforms ---

PLATFORM_NOT_CONFIGURED = ProbeFinding(status="skip", detail="not configured")
SLACK_REVOKED_CODES = ("token_revoked", "token_expired", "account_inactive")  # as Slack names them


def probe_telegram() -> ProbeFinding:
    if not settings.TELEGRAM_BOT_TOKEN:
        return PLATFORM_NOT_CONFIGURED
    refusals = (401, 403, 404)  # 404 is its answer to malformed tokens
    return judge_answer(
        send_request(_telegram_url("getMe"), {}), variable="TELEGRAM_BOT_TOKEN", refusals=refusals
    )


def probe_discord() -> ProbeFinding:
    token = settings.DISCORD_BOT_TOKEN
    if not token:
        return PLATFORM_NOT_CONFIGURED
    headers = {"Authorization": f"Bot {token}", "User-Agent": "DiscordBot (pilothouse, 1)"}
    return judge_answer(
        send_request(f"{settings.DISCORD_API_URL}/users/@me", headers), variable="DISCORD_BOT_TOKEN"
    )


def probe_slack() -> ProbeFinding:
    """Slack always answers 200 and reports errors in the body."""
    token = settings.SLACK_BOT_TOKEN
    if not token:
        return PLATFORM_NOT_CONFIGURED
    answer = send_request(
        f"{settings.SLACK_API_URL}/auth.test", {"Authorization": f"Bearer {token}"}, post=True
    )
    if answer.is_success and answer.body.get("ok") is not True:
        revoked = answer.body.get("error") in SLACK_REVOKED_CODES
        return ProbeFinding(
            status="fail",
            detail="the token was revoked" if revoked else "the key was refused",
            next_step="Install the app again, and set its new SLACK_BOT_TOKEN."
            if revoked
            else "Set a valid SLACK_BOT_TOKEN.",
        )
    return judge_answer(answer, variable="SLACK_BOT_TOKEN")


def probe_telegram_webhook() -> ProbeFinding:
    """Check the webhook; none is registered where a runner polls, and that is fine."""
    if not settings.TELEGRAM_BOT_TOKEN:
        return PLATFORM_NOT_CONFIGURED
    info = send_request(_telegram_url("getWebhookInfo"), {}).body.get("result")
    if not isinstance(info, dict):
        return ProbeFinding(status="skip", detail="Telegram did not say")
    url = str(info.get("url") or "")
    if not url:
        return ProbeFinding(
            detail="none is registered: updates come by `run_bot telegram`, if one runs",
        )
    if not url.startswith(f"{settings.SITE_URL}/"):
        return ProbeFinding(
            status="warn",
            detail="Telegram's webhook points to another site",
            next_step="Run `python manage.py telegram_webhook set`, or leave this bot to the other site.",
        )
    if info.get("last_error_message"):
        return ProbeFinding(
            status="warn",
            detail="registered; Telegram's last call failed",
            next_step="Check that the site is reachable from outside with a valid certificate.",
        )
    return ProbeFinding(detail="registered")


def _telegram_url(method: str) -> str:
    return f"{settings.TELEGRAM_API_URL}/bot{settings.TELEGRAM_BOT_TOKEN}/{method}"


PLATFORM_PROBES: Mapping[str, Probe] = {
    "platforms.telegram": probe_telegram,
    "platforms.discord": probe_discord,
    "platforms.slack": probe_slack,
}
PLATFORM_WEBHOOK_PROBES: Mapping[str, Probe] = {"webhooks.telegram": probe_telegram_webhook}
