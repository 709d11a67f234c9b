"""Static files under ASGI: in pieces, without a warning, and nothing where nothing changed."""

from __future__ import annotations

import warnings

import pytest
from django.test import AsyncClient

SCRIPT = "/static/js/fold.js"


@pytest.fixture
def found(settings):
    settings.DEBUG = True  # files are looked for where they are written, as in development


async def read(response) -> bytes:
    return b"".join([piece async for piece in response.streaming_content])


async def test_a_file_is_read_in_pieces_and_nothing_warns(found):
    """Django reads a synchronous iterator whole before it sends, and warns of it"""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = await AsyncClient().get(SCRIPT)
        text = await read(response)
    assert (response.status_code, response.is_async) == (200, True)
    assert b"export function fold(" in text


async def test_a_file_that_did_not_change_is_not_sent_again(found):
    first = await AsyncClient().get(SCRIPT)
    await read(first)
    again = await AsyncClient().get(SCRIPT, headers={"If-Modified-Since": first["Last-Modified"]})
    assert again.status_code == 304
