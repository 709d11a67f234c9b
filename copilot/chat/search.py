"""Index a user's messages for full-text search, and search them. The only writer of SearchEntry and SearchProgress.

Messages are indexed in batches after their turns have ended, so that turns pay nothing for it; they are found some
seconds later. Reasoning is never indexed, and hidden messages are not found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from django.db import connection, transaction

from config.core.db import fetch_all
from copilot.chat.selectors import list_messages_page
from copilot.models import Message, SearchEntry, SearchProgress
from copilot.realtime.payloads import MessagePayload, format_timestamp

TURNS_PER_BATCH = 500
MIN_ENDING_AGE_SECONDS = 5  # one statement writes an ending: one this old is surely committed
MAX_INDEXED_CHARACTERS = (
    100_000  # of one message: a tsvector ends at a megabyte, and every word names its owner
)
MAX_INDEXED_WORDS = 20_000
MAX_WORD_BYTES = 2_000  # a lexeme ends at 2,046 bytes
MAX_HEADLINE_CHARACTERS = 50_000  # of a message, searched for the few words shown around a hit
MAX_CANDIDATES = 500  # newest matches, before hidden and deleted ones are left out
MAX_HITS = 30
NEWEST_ENTRIES = 2_000  # read in order of time before the index of words is asked
ROWS_AROUND_HIT = 25  # rows shown on each side of a hit
INDEX_START = datetime(1970, 1, 1, tzinfo=UTC)
_MARKDOWN_MARKS = re.compile(r"\*\*|__|`+|(?m:^#{1,6} |^> ?)")
_TABLE_AND_LINE_MARKS = re.compile(r"\s*\|[\s|:-]*|\s+")
HIT_START_MARK, HIT_END_MARK = (
    "\ue000",
    "\ue001",
)  # private-use characters, which texts do not contain by accident

# Each word is indexed with its owner in front, so that a search reads nobody else's words, however many they are. The
# parser never makes a word with a space in it, so no text can pose as another owner's.
_INSERT_ENTRIES = f"""
INSERT INTO copilot_searchentry (message_id, owner_id, sent_at, words)
SELECT m.id, s.owner_id, m.created_at, array_to_tsvector(ARRAY(
           SELECT s.owner_id || ' ' || lexeme FROM unnest(to_tsvector('simple', left(m.content, {MAX_INDEXED_CHARACTERS})))
           WHERE octet_length(lexeme) <= {MAX_WORD_BYTES} LIMIT {MAX_INDEXED_WORDS}))
FROM copilot_message m JOIN copilot_session s ON s.id = m.session_id
WHERE m.kind IN ('user', 'assistant') AND m.sequence IS NOT NULL AND m.content <> '' AND {{which}}
ON CONFLICT DO NOTHING
"""  # noqa: S608 - constants only
_SELECT_TURNS_TO_INDEX = """
SELECT id, ended_at FROM copilot_turn
WHERE ended_at > %s AND ended_at < now() - make_interval(secs => %s)
ORDER BY ended_at FETCH FIRST %s ROWS WITH TIES
"""


class _EndedTurn(NamedTuple):
    id: UUID
    ended_at: datetime


def index_new_turns(batch: int = TURNS_PER_BATCH) -> int:
    """Index one batch of ended turns and return its size; 0 when none is left or another process does it."""
    SearchProgress.objects.get_or_create(pk=1, defaults={"through": INDEX_START})
    with transaction.atomic(), connection.cursor() as cursor:
        progress = SearchProgress.objects.select_for_update(skip_locked=True).filter(pk=1).first()
        if progress is None:
            return 0
        turns = fetch_all(
            _EndedTurn, _SELECT_TURNS_TO_INDEX, [progress.through, MIN_ENDING_AGE_SECONDS, batch]
        )
        if turns:
            cursor.execute(_INSERT_ENTRIES.format(which="m.turn_id = ANY(%s)"), [[turn.id for turn in turns]])
            progress.through = turns[-1].ended_at
            progress.save()
        return len(turns)


def index_session(session_id: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_ENTRIES.format(which="m.session_id = %s"), [session_id])


# --- Searching ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SnippetPart:
    text: str
    hit: bool


@dataclass(frozen=True, kw_only=True)
class SearchHit:
    session_id: str
    title: str
    archived: bool
    message_id: str
    sequence: int
    role: str
    created_at: str
    snippet: list[SnippetPart]


class _HitRow(NamedTuple):
    session_id: UUID
    title: str
    archived: bool
    message_id: UUID
    sequence: int
    kind: str
    created_at: datetime
    headline: str


# A frequent word is found among the newest entries; only a rare one, of which there are few, among all.
NEWEST_CANDIDATES_SQL = f"""
SELECT e.message_id, e.sent_at FROM (
    SELECT * FROM copilot_searchentry WHERE owner_id = %(owner)s ORDER BY sent_at DESC LIMIT {NEWEST_ENTRIES}) e
WHERE e.words @@ %(mine)s::tsquery ORDER BY e.sent_at DESC LIMIT %(candidates)s
"""  # noqa: S608 - constants only
# OFFSET 0 keeps the planner from walking through all entries of the owner in order of time.
ALL_CANDIDATES_SQL = """
SELECT e.message_id, e.sent_at FROM (SELECT * FROM copilot_searchentry WHERE words @@ %(mine)s::tsquery OFFSET 0) e
WHERE e.owner_id = %(owner)s ORDER BY e.sent_at DESC LIMIT %(candidates)s
"""
# OFFSET 0 makes the planner look up one message per candidate, whatever it believes about the session's length.
_SELECT_HITS = f"""
WITH found AS MATERIALIZED ({{candidates_sql}})
SELECT s.id AS session_id, s.title, s.archived_at IS NOT NULL AS archived, m.id AS message_id, m.sequence, m.kind, m.created_at,
       ts_headline('simple', left(m.content, {MAX_HEADLINE_CHARACTERS}), %(words)s::tsquery, %(look)s) AS headline
FROM found
CROSS JOIN LATERAL (SELECT * FROM copilot_message WHERE id = found.message_id OFFSET 0) m
JOIN copilot_session s ON s.id = m.session_id
WHERE m.hidden = '' AND s.deleted_at IS NULL AND s.depth = 0
ORDER BY found.sent_at DESC LIMIT %(limit)s
"""  # noqa: S608 - constants only
HEADLINE_OPTIONS = f"StartSel={HIT_START_MARK}, StopSel={HIT_END_MARK}, MaxWords=22, MinWords=10, ShortWord=0, MaxFragments=1"


def search_messages(owner_id: int, text: str, *, limit: int = MAX_HITS) -> list[SearchHit]:
    lexemes = parse_lexemes(text)
    if not lexemes:
        return []
    fields: dict[str, int | str] = {
        "owner": owner_id,
        "words": build_search_query(lexemes),
        "mine": build_search_query(lexemes, owner_id=owner_id),
        "candidates": MAX_CANDIDATES,
        "look": HEADLINE_OPTIONS,
        "limit": limit,
    }
    rows: list[_HitRow] = []
    for candidates_sql in (NEWEST_CANDIDATES_SQL, ALL_CANDIDATES_SQL):
        rows = fetch_all(_HitRow, _SELECT_HITS.format(candidates_sql=candidates_sql), fields)
        if len(rows) == limit or not _has_older_entries(owner_id):
            break
    return [_parse_hit(row) for row in rows]


def _has_older_entries(owner_id: int) -> bool:
    """Tell whether the owner has more entries than the newest ones that were read first."""
    newest_first = SearchEntry.objects.filter(owner_id=owner_id).order_by("-sent_at").values_list("pk")
    return newest_first[NEWEST_ENTRIES : NEWEST_ENTRIES + 1].exists()


def parse_lexemes(text: str) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT lexeme FROM unnest(to_tsvector('simple', %s))", [text])
        return [str(row[0]) for row in cursor.fetchall()]


def build_search_query(lexemes: Sequence[str], *, owner_id: int | None = None) -> str:
    """Build a tsquery of texts that hold words with all these beginnings; for entries, of one owner."""
    prefix = "" if owner_id is None else f"{owner_id} "
    return " & ".join(f"'{prefix}{_escape_lexeme(word)}':*" for word in lexemes)


def _escape_lexeme(word: str) -> str:
    return word.replace("\\", "\\\\").replace("'", "''")


def _parse_hit(row: _HitRow) -> SearchHit:
    return SearchHit(
        session_id=str(row.session_id),
        title=row.title,
        archived=row.archived,
        message_id=str(row.message_id),
        sequence=row.sequence,
        role=row.kind,
        created_at=format_timestamp(row.created_at),
        snippet=split_headline(row.headline),
    )


def split_headline(headline: str) -> list[SnippetPart]:
    headline = _TABLE_AND_LINE_MARKS.sub(" ", _MARKDOWN_MARKS.sub("", headline))
    parts: list[SnippetPart] = []
    for section in headline.split(HIT_START_MARK):
        inside, mark, outside = section.partition(HIT_END_MARK)
        parts += [SnippetPart(text=inside, hit=bool(mark)), SnippetPart(text=outside, hit=False)]
    return [part for part in parts if part.text]


# --- Showing a hit -----------------------------------------------------------------------------------


def list_messages_around(session_id: UUID, message_id: UUID) -> tuple[list[MessagePayload], bool] | None:
    shown = Message.objects.visible().filter(session=session_id)
    sequence = shown.filter(pk=message_id).values_list("sequence", flat=True).first()
    if sequence is None:
        return None
    later = shown.filter(sequence__gte=sequence).order_by("sequence").values_list("sequence", flat=True)
    last = max(number for number in later[: ROWS_AROUND_HIT + 1] if number is not None)
    return list_messages_page(session_id, before=last + 1, limit=2 * ROWS_AROUND_HIT)
