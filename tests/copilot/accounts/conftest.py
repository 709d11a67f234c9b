"""Fixtures of accounts: an identity provider to sign in with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def sso(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an OpenID Connect provider that vouches for Grace."""
    from config import social_auth, variables
    from tests.support.identity_provider import identity_provider

    with identity_provider({"sub": "7", "email": "grace@example.com", "email_verified": True}) as url:
        for name, value in {
            "OIDC_SERVER_URL": url,
            "OIDC_CLIENT_ID": "pilothouse",
            "OIDC_CLIENT_SECRET": "secret",
        }.items():
            monkeypatch.setattr(variables, name, value)
        settings.SOCIALACCOUNT_PROVIDERS = social_auth.build_social_providers().providers
        yield url
