"""Fixtures of the copilot: a second model beside the one that answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.turn_engine import Model, Rig


@pytest.fixture
def small(rig: Rig) -> Iterator[Model]:
    """The model of the tier `small`, which titles ask first; the rig's own model is the standard one."""
    from copilot.providers import catalogue, scripted
    from tests.support.catalogues import SMALL, STANDARD
    from tests.support.turn_engine import Model

    small = Model()
    before = catalogue.get_catalogue()
    scripted.install_script("standard", rig.model)
    scripted.install_script("small", small)
    catalogue.set_catalogue(
        catalogue.Catalogue(
            entries=(STANDARD, SMALL),
            tiers={"standard": (STANDARD,), "advanced": (STANDARD,), "small": (SMALL,)},
        )
    )
    yield small
    catalogue.set_catalogue(before)
    scripted.uninstall_script("standard")
    scripted.uninstall_script("small")
