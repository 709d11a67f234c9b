"""Sign-in through other providers, as configured by the variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from config import variables


@dataclass(frozen=True)
class SocialProviders:
    """allauth's settings, and the origins that sign-in forms redirect to."""

    providers: dict[str, dict[str, object]] = field(default_factory=dict)
    origins: list[str] = field(default_factory=list)


def build_social_providers() -> SocialProviders:
    """Build the providers; each is off until both of its settings are given."""
    found = SocialProviders()
    if google := _build_client("GOOGLE_CLIENT_ID", "GOOGLE_CLIENT_SECRET"):
        _add_provider(
            found, "google", {"APPS": [google], "SCOPE": ["profile", "email"]}, "https://accounts.google.com"
        )
    if github := _build_client("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET"):
        _add_provider(
            found, "github", {"APPS": [github], "SCOPE": ["read:user", "user:email"]}, "https://github.com"
        )
    if client := _build_client("OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET"):
        server = variables.OIDC_SERVER_URL
        if not server:
            raise ImproperlyConfigured(
                "OIDC_CLIENT_ID needs OIDC_SERVER_URL, the address of the identity provider"
            )
        app = {
            **client,
            "provider_id": "sso",
            "name": variables.OIDC_NAME,
            "settings": {"server_url": server},
        }
        parts = urlsplit(server)
        _add_provider(found, "openid_connect", {"APPS": [app]}, f"{parts.scheme}://{parts.netloc}")
    elif variables.OIDC_SERVER_URL:
        raise ImproperlyConfigured("OIDC_SERVER_URL needs OIDC_CLIENT_ID and OIDC_CLIENT_SECRET")
    return found


def _add_provider(found: SocialProviders, name: str, options: dict[str, object], origin: str) -> None:
    found.providers[name] = options
    found.origins.append(origin)


def _build_client(identity: str, secret: str) -> dict[str, str]:
    client_id, client_secret = getattr(variables, identity), getattr(variables, secret)
    if bool(client_id) != bool(client_secret):
        raise ImproperlyConfigured(f"{identity} and {secret} go together: only one of them is set")
    return {"client_id": client_id, "secret": client_secret} if client_id else {}
