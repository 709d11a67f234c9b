"""Running a turn: one ending always, rows before events, signs of life, and limits (T5, A3)."""

from __future__ import annotations

import threading

from django.db import connection
from django.test.utils import CaptureQueriesContext

from copilot import tasks, turns
from copilot.context import current
from copilot.events import Tokens
from copilot.models import Message, ModelCall, Turn
from copilot.providers.scripted import Call, Fail, Hang, Reasoning, Text, Usage
from tests import make
from tests.engine import (
    Errand,
    add_tools,
    answer,
    assert_same_page,
    cue,
    ended,
    endings,
    folded,
    fresh,
    kinds,
    lease_of,
    log_of,
    notices,
    queue,
    quiet,
    start,
    status,
    told,
    transcript,
    turn_of,
    until,
)
from tests.engine import model_fixture as model_fixture
from tests.engine import rig_fixture as rig_fixture


def test_a_message_is_answered_and_the_session_is_free_again(rig, model):
    """T5, T12"""
    session = make.session()
    model.will(Text("Ahoy, Ada."))
    turn = ended(start(session, "Hello"))
    quiet(session)
    assert turn.status == "succeeded"
    assert transcript(session) == ["Hello", "Ahoy, Ada."]
    assert endings(session.pk) == ["turn.succeeded"]
    assert lease_of(session) == {}
