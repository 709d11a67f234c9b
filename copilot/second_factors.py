"""Secrets of authenticator apps and recovery codes, encrypted at rest."""

from __future__ import annotations

from allauth.mfa.adapter import DefaultMFAAdapter

from copilot import sealing


class SealedAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth ships no types
    def encrypt(self, text: str) -> str:
        return sealing.seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        return sealing.unseal(encrypted_text)
