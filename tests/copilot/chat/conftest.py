"""Fixtures of chats: a model that judges goals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.turn_engine import Model


@pytest.fixture
def judge(small: Model) -> Model:
    """The small model, which is asked nothing else here."""
    from copilot.providers.scripted import ScriptedText

    small.always(ScriptedText("{}"))
    return small
