"""Frequent queries read an index and not a table that grows for ever (P23).

The tables hold few rows here, so sequential scans and sorts are forbidden: a plan that has one anyway has no index to
use.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from copilot.chat import model_calls, selectors, turn_selectors
from copilot.files import services as files
from copilot.models import Message, ModelCall, Session, Turn
from copilot.schedules import selectors as schedules
from copilot.worker import liveness, recovery
from diagnostics import aggregates
from diagnostics.turn_filters import FilterContext
from linking.webhook_deliveries import outbox
from tests.support import factories

pytestmark = pytest.mark.django_db

SESSIONS, TURNS = 200, 2_000


@pytest.fixture
def history():
    """Ada has some hundred sessions, of which one had all the turns."""
    session = factories.session(factories.ada(), title="Long")
    Session.objects.bulk_create(Session(owner=factories.ada(), title=f"Chat {n}") for n in range(SESSIONS))
    Session.objects.filter(title="Chat 7").update(archived_at=timezone.now())
    model = factories.turn(session, "succeeded")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_turn (id, session_id, status, origin, permissions, accepted_through, fence, token, ended_at)
            SELECT gen_random_uuid(), session_id, status, origin, permissions, n, n, token, now() - n * interval '1 minute'
            FROM copilot_turn CROSS JOIN generate_series(1, %s) AS n WHERE id = %s
            """,
            [TURNS, model.pk],
        )
    analyze()
    return session


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE copilot_session, copilot_turn, copilot_message, copilot_modelcall")


def plans(act: Callable[[], object], *, table: str) -> str:
    """The plans of all statements that read a table."""
    with CaptureQueriesContext(connection) as seen:
        act()
    texts = []
    with connection.cursor() as cursor:
        for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
            cursor.execute(f"SET LOCAL {setting} = off")
        for query in seen:
            if f"{table}" in query["sql"] and query["sql"].lstrip().startswith(("SELECT", "WITH", "\n")):
                cursor.execute("EXPLAIN " + query["sql"].replace("%", "%%"))
                texts.append("\n".join(row[0] for row in cursor.fetchall()))
    assert texts
    return "\n\n".join(texts)


@pytest.mark.parametrize(
    ("archived", "index"),
    [(False, "listed_sessions"), (True, "archived_sessions")],
    ids=["listed", "archived"],
)
def test_a_page_of_sessions_is_read_in_order_from_one_index(history, archived, index):
    read = plans(
        lambda: selectors.list_sessions_page(factories.ada().pk, archived=archived), table="copilot_session"
    )
    assert f"using {index} on copilot_session" in read
    assert "Seq Scan on copilot_session" not in read


def test_titles_are_looked_through_in_the_index_of_the_list(history):
    read = plans(lambda: selectors.list_sessions_page(factories.ada().pk, q="chat"), table="copilot_session")
    assert "using listed_sessions on copilot_session" in read


def test_endings_of_a_day_are_counted_from_the_index_alone(history):
    moment = FilterContext(now=datetime.now(UTC))
    read = plans(lambda: aggregates.aggregate_ended(moment), table="copilot_turn")
    assert read.count("ended_turns") == 2
    assert "Index Only Scan using ended_turns" in read


def test_unfinished_turns_are_found_by_indexes_of_their_own(history):
    moment = FilterContext(now=datetime.now(UTC))
    for act in (
        lambda: aggregates.aggregate_unfinished(moment),
        liveness.list_turn_evidence,
        recovery.resend_queued_turns,
        recovery.override_stops,
        turn_selectors.list_stranded_sessions,
    ):
        assert "Seq Scan on copilot_turn" not in plans(act, table="copilot_turn")


def test_what_a_sweep_looks_back_on_is_found_by_the_end_of_turns(history):
    for act in (
        recovery.publish_lost_endings,
        lambda: model_calls.record_forgotten_calls(turns_of=timedelta(minutes=5)),
        outbox.record_missed_deliveries,
    ):
        assert "Seq Scan on copilot_turn" not in plans(act, table="copilot_turn")


def test_queued_messages_are_counted_by_an_index_of_their_own(history):
    read = plans(turn_selectors.count_pending_messages, table="copilot_message")
    assert "pending_messages" in read


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        (Session.objects.order_by("-active_at", "-pk"), "sessions_by_activity"),
        (Turn.objects.order_by("-created_at", "-pk"), "turns_by_time"),
        (Message.objects.order_by("-created_at", "-pk"), "messages_by_time"),
        (ModelCall.objects.order_by("-created_at", "-pk"), "model_calls_by_time"),
    ],
    ids=["sessions", "turns", "messages", "model calls"],
)
def test_staff_lists_begin_with_the_newest_without_sorting_all(history, rows, index):
    assert index in plans(lambda: list(rows.all()[:50]), table=rows.model._meta.db_table)


def test_old_files_and_runs_of_a_day_have_indexes(history):
    read = plans(files.purge_due_files, table="copilot_workspacefile")
    assert "files_in_the_trash" in read
    assert "tool_outputs_by_age" in read
    counted = plans(lambda: schedules.count_schedules(datetime.now(UTC)), table="copilot_schedulerun")
    assert "runs_by_time" in counted
