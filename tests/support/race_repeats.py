"""How often a race is run: a few times with every change, its full number by `make slow`."""

from __future__ import annotations

import pytest


def rounds(few: int, all_of_them: int) -> pytest.MarkDecorator:
    """The test takes `rounds`; a race that is lost once in a hundred is looked for at night."""
    return pytest.mark.parametrize("rounds", [few, pytest.param(all_of_them, marks=pytest.mark.slow)])
