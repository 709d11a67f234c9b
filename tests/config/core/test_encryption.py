"""Secrets at rest."""

from __future__ import annotations

import pytest

from config.core import encryption


def test_a_sealed_text_is_unreadable_and_opens_again():
    sealed = encryption.encrypt_text("sk-live-αβγ")
    assert "sk-live" not in sealed
    assert encryption.decrypt_text(sealed) == "sk-live-αβγ"
    assert encryption.encrypt_text("sk-live-αβγ") != sealed


def test_a_former_key_still_opens(settings):
    settings.SECRET_KEY = "the first key"
    sealed = encryption.encrypt_text("text")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the second key", ["the first key"]
    assert encryption.decrypt_text(sealed) == "text"


@pytest.mark.parametrize("damage", [lambda text: text[:-5], lambda text: "", lambda text: text[::-1]])
def test_what_was_not_sealed_here_is_named(damage):
    with pytest.raises(encryption.DecryptionFailed):
        encryption.decrypt_text(damage(encryption.encrypt_text("text")))


def test_another_key_does_not_open(settings):
    settings.SECRET_KEY = "the first key"
    sealed = encryption.encrypt_text("text")
    settings.SECRET_KEY = "the second key"
    with pytest.raises(encryption.DecryptionFailed):
        encryption.decrypt_text(sealed)
