"""Catalogues of models for tests."""

from __future__ import annotations

from copilot.providers.base import CatalogueEntry

STANDARD = CatalogueEntry(name="Standard", provider="scripted", model="standard", max_output_tokens=4_096)
SMALL = CatalogueEntry(name="Small", provider="scripted", model="small", max_output_tokens=4_096)
