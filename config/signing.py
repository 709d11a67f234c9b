"""Who may vouch for people besides their password, as the environment says (W1.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from config import env


@dataclass(frozen=True)
class Vouchers:
    """allauth's settings, and the origins that a sign-in form is sent on to."""

    providers: dict[str, dict[str, object]] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)


def vouchers() -> Vouchers:
    """Each is off until both its settings stand."""
    found = Vouchers()
    if google := _pair("GOOGLE_CLIENT_ID", "GOOGLE_CLIENT_SECRET"):
        _add(
            found, "google", {"APPS": [google], "SCOPE": ["profile", "email"]}, "https://accounts.google.com"
        )
    if github := _pair("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET"):
        _add(found, "github", {"APPS": [github], "SCOPE": ["read:user", "user:email"]}, "https://github.com")
    if client := _pair("OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET"):
        server = _server()
        app = {
            **client,
            "provider_id": "sso",
            "name": env.text("OIDC_NAME", "Single sign-on"),
            "settings": {"server_url": server},
        }
        parts = urlsplit(server)
        _add(found, "openid_connect", {"APPS": [app]}, f"{parts.scheme}://{parts.netloc}")
    elif env.text("OIDC_SERVER_URL"):
        raise ImproperlyConfigured("OIDC_SERVER_URL needs OIDC_CLIENT_ID and OIDC_CLIENT_SECRET")
    return found


def _add(found: Vouchers, name: str, options: dict[str, object], origin: str) -> None:
    found.providers[name] = options
    found.origins.append(origin)


def _pair(identity: str, secret: str) -> dict[str, str]:
    client_id, client_secret = env.text(identity), env.text(secret)
    if bool(client_id) != bool(client_secret):
        raise ImproperlyConfigured(f"{identity} and {secret} go together: only one of them is set")
    return {"client_id": client_id, "secret": client_secret} if client_id else {}


def _server() -> str:
    url = env.text("OIDC_SERVER_URL").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.netloc:
        raise ImproperlyConfigured(
            f"OIDC_SERVER_URL must be the http(s) address of the identity provider, not {url!r}"
        )
    return url
