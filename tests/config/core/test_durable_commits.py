"""Where a crash of Postgres may still take a commit back, and where it may not (T3.3, T4.1, T9.3)."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from config.core import db
from copilot.chat import messages, turns
from copilot.models import Turn
from copilot.worker import turn_worker
from tests.support import factories
from tests.support.turn_engine import (
    answer,
    command,
    ended,
    endings,
    kinds,
    queue,
    quiet,
    start,
    until,
)


def asked(query):
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def waits_for_the_disk(act):
    """Whether the transaction that did it is one that waits."""
    with transaction.atomic():
        asked("SELECT set_config('synchronous_commit', 'on', true)")
        act()
        return asked("SHOW synchronous_commit") == "on"


def row(turn, kind, **fields):
    return messages.NewMessage(
        id=factories.uuid.uuid4(), turn_id=turn.pk, fence=turn.fence, kind=kind, **fields
    )


@pytest.mark.django_db
def test_only_a_text_that_begins_does_not_wait_for_the_disk():
    """T5.3: the input of a tool and every message are durable before they are published"""
    turn = factories.turn(factories.session(), "running")
    begins = row(turn, "assistant", streaming=True)
    call = row(turn, "tool_call", call_id="c", data={"tool": "x", "arguments": {}})
    assert not waits_for_the_disk(lambda: messages.append_messages([begins]))
    assert waits_for_the_disk(lambda: messages.append_messages([call]))
    assert waits_for_the_disk(
        lambda: messages.append_messages([row(turn, "reasoning", streaming=True), row(turn, "note")])
    )


@pytest.mark.django_db
def test_a_message_waits_for_the_disk_unless_its_turn_does():
    """T3.3: the one commit that opens the turn makes both last"""
    session = factories.session()

    def accept(**options):
        assert messages.insert_message(factories.uuid.uuid4(), command(session, "Hello"), [], "", **options)

    assert waits_for_the_disk(accept)
    assert not waits_for_the_disk(lambda: accept(durable=False))


@pytest.mark.django_db
def test_a_claim_does_not_wait_for_the_disk():
    turn = factories.turn(factories.session(), "queued")
    assert not waits_for_the_disk(lambda: turns.claim_turns([turn.pk], "worker"))


@pytest.mark.django_db(transaction=True)
def test_settling_waits_until_everything_before_it_lasts():
    asked("SELECT set_config('synchronous_commit', 'on', false)")
    try:
        for _ in range(5):
            factories.session()
            before = asked("SELECT pg_current_wal_insert_lsn()")
            db.flush_wal()
            assert asked(f"SELECT pg_current_wal_flush_lsn() >= '{before}'::pg_lsn")
    finally:
        asked("SELECT set_config('synchronous_commit', 'off', false)")


def test_a_queued_message_is_durable_before_its_sender_gets_the_response(rig, model):
    """T3.3: no turn is opened with it, so nothing else would wait"""
    rig.hold_tasks()
    session = factories.session()
    start(session)
    with CaptureQueriesContext(connection) as statements:
        queue(session, "Behind")
    texts = [one["sql"] for one in statements]
    stored = next(place for place, text in enumerate(texts) if "INSERT INTO copilot_message" in text)
    assert any("pg_logical_emit_message" in text for text in texts[stored + 1 :])


def test_nothing_is_written_under_a_claim_that_the_database_lost(rig, model, monkeypatch):
    """T4.1: it crashed before the claim lasted, and gives the turn to another under the same fence"""
    lost: list[int] = []

    def crash():
        if lost:
            db.flush_wal()
            return
        lost.append(Turn.objects.filter(status="running").update(status="queued", worker=""))
        raise OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr(turn_worker, "flush_wal", crash)
    session = factories.session()
    turn_id = start(session)
    until(lambda: lost and not rig.worker.running())
    assert lost == [1]
    assert (kinds(session), endings(session.pk, turn_id)) == (["user"], [])
    rig.worker.take(turn_id)
    assert ended(turn_id).status == "succeeded"
    quiet(session)
    assert (answer(turn_id), kinds(session)) == ("Aye.", ["user", "assistant"])
    assert len(endings(session.pk, turn_id)) == 1
