"""The settings as every environment gets them."""

from __future__ import annotations

import pytest

from copilot.models import Session
from tests import make


@pytest.mark.django_db
def test_people_and_sessions_can_be_made():
    ada, bob = make.ada(), make.bob()
    mine = make.session(ada)
    make.message(mine, content="hello")
    make.turn(mine, "succeeded")
    assert Session.objects.get() == mine
    assert bob != ada
