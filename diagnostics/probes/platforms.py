"""Do the chat platforms take our bots' tokens, and do they call this site (D17)."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings

from diagnostics.probes.asking import ask, judged
from diagnostics.probes.running import Finding, Probe

OFF = Finding(status="skip", detail="not configured")
REVOKED = ("token_revoked", "token_expired", "account_inactive")  # Slack's words


def telegram() -> Finding:
    if not settings.TELEGRAM_BOT_TOKEN:
        return OFF
    refusals = (401, 403, 404)  # the last is its word for what does not look like a token
    return judged(ask(_telegram("getMe"), {}), variable="TELEGRAM_BOT_TOKEN", refusals=refusals)


def discord() -> Finding:
    token = settings.DISCORD_BOT_TOKEN
    if not token:
        return OFF
    headers = {"Authorization": f"Bot {token}", "User-Agent": "DiscordBot (pilothouse, 1)"}
    return judged(ask(f"{settings.DISCORD_API_URL}/users/@me", headers), variable="DISCORD_BOT_TOKEN")


def slack() -> Finding:
    """Slack answers 200 to everybody, and says inside what it thinks of the token."""
    token = settings.SLACK_BOT_TOKEN
    if not token:
        return OFF
    answer = ask(f"{settings.SLACK_API_URL}/auth.test", {"Authorization": f"Bearer {token}"}, post=True)
    if answer.well and answer.body.get("ok") is not True:
        revoked = answer.body.get("error") in REVOKED
        return Finding(
            status="fail",
            detail="the token was revoked" if revoked else "the key was refused",
            next_step="Install the app again, and set its new SLACK_BOT_TOKEN."
            if revoked
            else "Set a valid SLACK_BOT_TOKEN.",
        )
    return judged(answer, variable="SLACK_BOT_TOKEN")


def telegram_webhook() -> Finding:
    """None is registered where a runner polls: then nothing is wrong."""
    if not settings.TELEGRAM_BOT_TOKEN:
        return OFF
    told = ask(_telegram("getWebhookInfo"), {}).body.get("result")
    if not isinstance(told, dict):
        return Finding(status="skip", detail="Telegram did not say")
    url = str(told.get("url") or "")
    if not url:
        return Finding(
            detail="none is registered: updates come by `run_bot telegram`, if one runs",
        )
    if not url.startswith(f"{settings.SITE_URL}/"):
        return Finding(
            status="warn",
            detail="Telegram calls another site",
            next_step="Run `python manage.py telegram_webhook set`, or leave this bot to the other site.",
        )
    if told.get("last_error_message"):
        return Finding(
            status="warn",
            detail="registered; Telegram's last call failed",
            next_step="Is the site reachable from outside, with a valid certificate?",
        )
    return Finding(detail="registered")


def _telegram(method: str) -> str:
    return f"{settings.TELEGRAM_API_URL}/bot{settings.TELEGRAM_BOT_TOKEN}/{method}"


CHECKS: Mapping[str, Probe] = {
    "platforms.telegram": telegram,
    "platforms.discord": discord,
    "platforms.slack": slack,
}
WEBHOOKS: Mapping[str, Probe] = {"webhooks.telegram": telegram_webhook}
