"""Pages of allowed origins call the APIs with a key; all others find them closed."""

from __future__ import annotations

import httpx
import pytest

from tests.support.asgi_server import served

ORIGIN = "https://app.example.com"
PREFLIGHT = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type, x-stainless-retry-count",
}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def site():
    with served() as url:
        yield url


@pytest.mark.parametrize("path", ["/v1/models", "/api/v1/sessions", "/api/ai/chat", "/api/v1/ws/ticket"])
def test_a_preflight_of_an_allowed_origin_is_answered(site, settings, path):
    """X1.9"""
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    answer = httpx.options(f"{site}{path}", headers=PREFLIGHT)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, ORIGIN)
    assert answer.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_answers_and_errors_are_readable_for_an_allowed_origin(site, settings):
    """X1.9"""
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    answer = httpx.get(f"{site}/v1/models", headers={"Origin": ORIGIN})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, ORIGIN)
    assert "Origin" in answer.headers["vary"]
    other = httpx.get(f"{site}/v1/models", headers={"Origin": "https://evil.example.com"})
    assert "access-control-allow-origin" not in other.headers


def test_any_origin_may_be_allowed_but_never_with_cookies(site, settings):
    """X1.9"""
    settings.CORS_ALLOWED_ORIGINS = ["*"]
    answer = httpx.options(f"{site}/v1/responses", headers=PREFLIGHT)
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


def test_it_is_off_by_default_and_only_for_the_apis(site, settings):
    """X1.9"""
    assert settings.CORS_ALLOWED_ORIGINS == []
    assert "access-control-allow-origin" not in httpx.options(f"{site}/v1/models", headers=PREFLIGHT).headers
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    page = httpx.get(f"{site}/accounts/login/", headers={"Origin": ORIGIN})
    assert "access-control-allow-origin" not in page.headers


def test_header_names_that_are_none_are_not_repeated(site, settings):
    """X1.9"""
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    odd = {**PREFLIGHT, "Access-Control-Request-Headers": "x" * 2000}
    assert "access-control-allow-headers" not in httpx.options(f"{site}/v1/models", headers=odd).headers
