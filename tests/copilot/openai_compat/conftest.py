"""A server with the compatible APIs, and OpenAI's own client for Ada."""

from __future__ import annotations

import openai
import pytest


@pytest.fixture(scope="module")
def base_url():
    from tests.support.asgi_server import served  # needs Django's settings

    with served() as site:
        yield f"{site}/v1"


@pytest.fixture
def ada(rig):
    from tests.support import factories

    return factories.ada()


@pytest.fixture
def client(ada, base_url):
    from copilot.accounts import api_keys

    with openai.OpenAI(base_url=base_url, api_key=api_keys.create_api_key(ada).token, timeout=30) as made:
        yield made
