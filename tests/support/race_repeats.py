"""Choose how often a race runs: a few times by default, the full number with `make slow`."""

from __future__ import annotations

import pytest


def rounds(few: int, all_of_them: int) -> pytest.MarkDecorator:
    """Pass `rounds` to the test; `make slow` finds races that are lost once in a hundred."""
    return pytest.mark.parametrize("rounds", [few, pytest.param(all_of_them, marks=pytest.mark.slow)])
