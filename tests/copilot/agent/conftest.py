"""Fixtures of the agent: a small context window, and a tool to fill it with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.turn_engine import Errand, Rig


@pytest.fixture
def small_window(rig: Rig) -> Iterator[None]:
    """The demo model's window becomes small enough to be filled by reported usage."""
    from copilot.providers import catalogue
    from tests.support.compaction import WINDOW

    demo = replace(catalogue.DEMO_ENTRY, context_window=WINDOW)
    before = catalogue.get_catalogue()
    catalogue.set_catalogue(
        catalogue.Catalogue(entries=(demo,), tiers=dict.fromkeys(catalogue.TIERS, (demo,)))
    )
    yield
    catalogue.set_catalogue(before)


@pytest.fixture
def fetch(monkeypatch: pytest.MonkeyPatch) -> Errand:
    from tests.support.turn_engine import Errand, add_tools

    errand = Errand("fetch")
    add_tools(monkeypatch, errand)
    return errand
