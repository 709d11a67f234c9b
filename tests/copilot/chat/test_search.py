"""Messages are found by their words, quickly, and by nobody but their owner (W2.9)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from copilot.chat import search
from copilot.models import Message, SearchEntry, Session, Turn
from tests.support import factories
from tests.support.rest_clients import V1

pytestmark = pytest.mark.django_db

MANY = 10_000


def told(owner, *texts: str, title: str = "", kind: str = "user") -> Session:
    """A conversation whose one turn ended a minute ago."""
    session = factories.session(owner, title=title)
    turn = factories.turn(session, "succeeded")
    Turn.objects.filter(pk=turn.pk).update(ended_at=timezone.now() - timedelta(minutes=1))
    for text in texts:
        factories.message(session, kind, content=text, turn=turn)
    return session


def found(owner, text: str) -> list[str]:
    return ["".join(piece.text for piece in hit.snippet) for hit in search.search_messages(owner.pk, text)]


def test_words_are_found_in_any_order_and_while_they_are_typed():
    """W2.9"""
    told(factories.ada(), "The harbour lights of Hamburg", "Nothing of the kind")
    assert search.index_new_turns() == 1
    assert found(factories.ada(), "hamb HARBOUR") == ["The harbour lights of Hamburg"]
    assert found(factories.ada(), "hamburg rotterdam") == []
    assert found(factories.ada(), "!?") == []


def test_hits_are_marked():
    """W2.9"""
    told(factories.ada(), "The harbour lights")
    search.index_new_turns()
    [hit] = search.search_messages(factories.ada().pk, "harb")
    assert [(piece.text, piece.hit) for piece in hit.snippet] == [
        ("The ", False),
        ("harbour", True),
        (" lights", False),
    ]


def test_no_search_finds_other_users_messages():
    """W2.9"""
    told(factories.ada(), f"harbour of owner {factories.bob().pk}")
    search.index_new_turns()
    assert found(factories.bob(), "harbour") == []
    assert found(factories.bob(), f"harbour' | ' {factories.ada().pk}") == []


def test_hidden_rows_deleted_chats_and_thoughts_are_not_found():
    """W2.9, A14.6"""
    session = told(factories.ada(), "harbour one", "harbour two")
    gone = told(factories.ada(), "harbour three")
    told(factories.ada(), "harbour four", kind="reasoning")
    search.index_new_turns()
    Message.objects.filter(content="harbour two").update(hidden="undone")
    Session.objects.filter(pk=gone.pk).update(deleted_at=timezone.now())
    assert found(factories.ada(), "harbour") == ["harbour one"]
    Session.objects.filter(pk=session.pk).delete()
    assert not SearchEntry.objects.filter(message__session=session.pk).exists()


def test_each_turn_is_read_once_in_batches_however_many_ended_in_one_moment():
    """W2.9: ties at the edge of a batch are not forgotten"""
    for number in range(3):
        told(factories.ada(), f"harbour {number}")
    moment = timezone.now() - timedelta(minutes=1)
    Turn.objects.update(ended_at=moment)
    assert (search.index_new_turns(2), search.index_new_turns(2)) == (3, 0)
    told(factories.ada(), "harbour again")
    assert (search.index_new_turns(2), len(found(factories.ada(), "harbour"))) == (1, 4)


def test_a_turn_that_has_just_ended_waits_for_the_next_look():
    """W2.9: a slower statement with an earlier end may still be on its way"""
    session = factories.session(factories.ada())
    factories.turn(session, "succeeded")
    assert search.index_new_turns() == 0


def test_an_imported_chat_is_found_at_once():
    session = factories.session(factories.ada())
    factories.message(session, content="harbour")
    search.index_session(session.pk)
    assert found(factories.ada(), "harbour") == ["harbour"]


@pytest.fixture
def plenty():
    """Ada has many messages; one in a thousand speaks of a whale."""
    session = factories.session(factories.ada())
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO copilot_message (id, session_id, kind, content, sequence, accept_number, mid_turn)
            SELECT gen_random_uuid(), %s, 'user',
                   'ship ' || n || repeat(' the quick harbour', 15) || CASE WHEN n %% 1000 = 0 THEN ' sees a whale' ELSE '' END, n, n, false
            FROM generate_series(1, %s) n
            """,
            [session.pk, MANY],
        )
        search.index_session(session.pk)
        cursor.execute("ANALYZE copilot_searchentry")


def test_rare_and_common_words_are_both_found_by_an_index(plenty):
    """W2.9: under 100 ms over 100,000 messages, because no plan reads them all"""
    assert "newest_words_of_an_owner" in plan(search.NEWEST_CANDIDATES_SQL, "ship")
    assert "words_of_messages" in plan(search.ALL_CANDIDATES_SQL, "whale")
    assert len(search.search_messages(factories.ada().pk, "whale")) == MANY // 1000
    assert len(search.search_messages(factories.ada().pk, "ship")) == search.MAX_HITS


def test_a_search_reads_few_entries_however_many_others_have_the_word(plenty):
    """P23: a frequent word among the newest entries of its owner, a rare one by the index, and nobody else's"""
    told(factories.bob(), "a ship in the harbour")
    search.index_new_turns()
    assert entries_read(search.NEWEST_CANDIDATES_SQL, factories.ada(), "ship") <= search.NEWEST_ENTRIES
    assert entries_read(search.ALL_CANDIDATES_SQL, factories.ada(), "whale") == MANY // 1000
    assert entries_read(search.ALL_CANDIDATES_SQL, factories.bob(), "ship") == 1


def test_hits_are_the_newest_ones_in_order(plenty):
    """P23: also those beyond the newest entries, which are read first"""
    assert MANY > search.NEWEST_ENTRIES
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE copilot_searchentry e SET sent_at = now() - m.sequence * interval '1 second' "
            "FROM copilot_message m WHERE m.id = e.message_id"
        )
    places = [hit.sequence for hit in search.search_messages(factories.ada().pk, "whale")]
    assert places == list(range(1000, MANY + 1, 1000))


def test_a_text_of_endless_words_is_indexed():
    """A lexeme and a tsvector have an end, and each word also names its owner."""
    session = factories.session(factories.ada())
    signs = " ".join(chr(number) for number in range(0x4E00, 0x9FA5))
    factories.message(session, content=f"harbour {'x' * 2040} {signs} {signs}")
    search.index_session(session.pk)
    assert len(found(factories.ada(), "harbour")) == 1


def plan(sql: str, text: str) -> str:
    return "\n".join(explain(sql, factories.ada(), text, "EXPLAIN"))


def entries_read(sql: str, owner, text: str) -> int:
    """Count the rows that the scan of the table returned or threw away."""
    lines = explain(sql, owner, text, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF)")
    scan = next(place for place, line in enumerate(lines) if " on copilot_searchentry" in line)
    removed = next((line for line in lines[scan:] if "Rows Removed" in line), ": 0")
    return int(lines[scan].partition("actual rows=")[2].split()[0]) + int(removed.rpartition(": ")[2])


def explain(sql: str, owner, text: str, command: str) -> list[str]:
    mine = search.build_search_query(search.parse_lexemes(text), owner_id=owner.pk)
    fields = {"owner": owner.pk, "mine": mine, "candidates": search.MAX_CANDIDATES}
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"{command} {sql}", fields)
        return [row[0] for row in cursor.fetchall()]


def test_the_endpoint_finds_titles_and_messages(client):
    """W2.9, E3"""
    told(factories.ada(), "harbour lights", title="Ships")
    told(factories.ada(), "nothing", title="A harbour")
    search.index_new_turns()
    client.force_login(factories.ada())
    answer = client.get(f"{V1}/search", {"q": "harbour"}).json()
    assert [one["title"] for one in answer["sessions"]] == ["A harbour"]
    assert [one["title"] for one in answer["messages"]] == ["Ships"]
    assert client.get(f"{V1}/search", {"q": ""}).status_code == 400
