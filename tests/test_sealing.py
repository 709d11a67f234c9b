"""Secrets at rest."""

from __future__ import annotations

import pytest

from copilot import sealing


def test_a_sealed_text_is_unreadable_and_opens_again():
    sealed = sealing.seal("sk-live-αβγ")
    assert "sk-live" not in sealed
    assert sealing.unseal(sealed) == "sk-live-αβγ"
    assert sealing.seal("sk-live-αβγ") != sealed


def test_a_former_key_still_opens(settings):
    settings.SECRET_KEY = "the first key"
    sealed = sealing.seal("text")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the second key", ["the first key"]
    assert sealing.unseal(sealed) == "text"


@pytest.mark.parametrize("damage", [lambda text: text[:-5], lambda text: "", lambda text: text[::-1]])
def test_what_was_not_sealed_here_is_named(damage):
    with pytest.raises(sealing.Unreadable):
        sealing.unseal(damage(sealing.seal("text")))


def test_another_key_does_not_open(settings):
    settings.SECRET_KEY = "the first key"
    sealed = sealing.seal("text")
    settings.SECRET_KEY = "the second key"
    with pytest.raises(sealing.Unreadable):
        sealing.unseal(sealed)
