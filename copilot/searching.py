"""Full-text search over a user's messages: the only writer of SearchEntry and SearchProgress (W2.9).

Words are gathered behind the turns, in batches: a turn pays nothing for being findable later. A message is found
some seconds after its turn has ended. Reasoning is never searched (A14.6), hidden rows are not found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db import connection, transaction

from copilot.events import MessageView
from copilot.models import Message, SearchProgress
from copilot.queries import instant, messages_page

BATCH_TURNS = 500
SETTLED_SECONDS = 5  # an ending is written by one statement: what is this old is surely committed
MAX_CHARACTERS = 200_000  # of one message; a tsvector ends at a megabyte
HEADLINE_CHARACTERS = 50_000  # looked at for the few words shown around a hit
CANDIDATES = 500  # newest matches, before hidden and deleted ones are left out
HITS = 30
AROUND = 25  # rows shown on each side of a hit
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_EMPHASIS = re.compile(r"\*\*|__|`+|(?m:^#{1,6} |^> ?)")
_SIGNS = re.compile(r"\s*\|[\s|:-]*|\s+")  # of tables, and line ends
OPEN, CLOSE = "\ue000", "\ue001"  # of private use: no text has them by accident

# A word with a space in it: the parser never makes one, so no text can claim to be another owner's.
_INSERT = f"""
INSERT INTO copilot_searchentry (message_id, owner_id, sent_at, words)
SELECT m.id, s.owner_id, m.created_at,
       to_tsvector('simple', left(m.content, {MAX_CHARACTERS})) || array_to_tsvector(ARRAY[' ' || s.owner_id])
FROM copilot_message m JOIN copilot_session s ON s.id = m.session_id
WHERE m.kind IN ('user', 'assistant') AND m.sequence IS NOT NULL AND m.content <> '' AND {{which}}
ON CONFLICT DO NOTHING
"""  # noqa: S608 - constants only
_DUE = """
SELECT id, ended_at FROM copilot_turn
WHERE ended_at > %s AND ended_at < now() - make_interval(secs => %s)
ORDER BY ended_at FETCH FIRST %s ROWS WITH TIES
"""


def add_new(batch: int = BATCH_TURNS) -> int:
    """The turns of one batch whose words are in the index now; 0 when there is nothing left, or another does it."""
    SearchProgress.objects.get_or_create(pk=1, defaults={"through": BEGINNING})
    with transaction.atomic(), connection.cursor() as cursor:
        progress = SearchProgress.objects.select_for_update(skip_locked=True).filter(pk=1).first()
        if progress is None:
            return 0
        cursor.execute(_DUE, [progress.through, SETTLED_SECONDS, batch])
        due = cursor.fetchall()
        if due:
            cursor.execute(_INSERT.format(which="m.turn_id = ANY(%s)"), [[turn_id for turn_id, _ in due]])
            progress.through = due[-1][1]
            progress.save()
        return len(due)


def add_session(session_id: UUID) -> None:
    """All of a conversation that came without turns, such as an imported one."""
    with connection.cursor() as cursor:
        cursor.execute(_INSERT.format(which="m.session_id = %s"), [session_id])


# --- asking ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Piece:
    text: str
    hit: bool


@dataclass(frozen=True, kw_only=True)
class Hit:
    session_id: str
    title: str
    archived: bool
    message_id: str
    sequence: int
    role: str
    created_at: str
    snippet: list[Piece]


FOUND = """
SELECT e.message_id, e.sent_at FROM copilot_searchentry e
WHERE e.owner_id = %(owner)s AND e.words @@ %(mine)s::tsquery
ORDER BY e.sent_at DESC LIMIT %(candidates)s
"""
# OFFSET 0: one look per candidate, whatever the planner believes of a conversation's length.
_HITS = f"""
WITH found AS MATERIALIZED ({FOUND})
SELECT s.id, s.title, s.archived_at IS NOT NULL, m.id, m.sequence, m.kind, m.created_at,
       ts_headline('simple', left(m.content, {HEADLINE_CHARACTERS}), %(words)s::tsquery, %(look)s)
FROM found
CROSS JOIN LATERAL (SELECT * FROM copilot_message WHERE id = found.message_id OFFSET 0) m
JOIN copilot_session s ON s.id = m.session_id
WHERE m.hidden = '' AND s.deleted_at IS NULL AND s.depth = 0
ORDER BY found.sent_at DESC LIMIT %(limit)s
"""  # noqa: S608 - constants only
LOOK = f"StartSel={OPEN}, StopSel={CLOSE}, MaxWords=22, MinWords=10, ShortWord=0, MaxFragments=1"


def hits(owner_id: int, text: str, *, limit: int = HITS) -> list[Hit]:
    """Messages that have every word, or begin to; the newest first."""
    words = asked_for(text)
    if not words:
        return []
    fields: dict[str, int | str] = {
        "owner": owner_id,
        "words": words,
        "mine": f"{words} & ' {owner_id}'",
        "candidates": CANDIDATES,
        "look": LOOK,
        "limit": limit,
    }
    with connection.cursor() as cursor:
        cursor.execute(_HITS, fields)
        return [_hit(*row) for row in cursor.fetchall()]


def asked_for(text: str) -> str:
    """A text as a query: each of its words may go on. Empty when it has none."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT lexeme FROM unnest(to_tsvector('simple', %s))", [text])
        found = [str(row[0]) for row in cursor.fetchall()]
    return " & ".join(f"'{_quoted(word)}':*" for word in found)


def _quoted(word: str) -> str:
    return word.replace("\\", "\\\\").replace("'", "''")


def _hit(
    session_id: UUID,
    title: str,
    archived: bool,
    message_id: UUID,
    sequence: int,
    kind: str,
    created_at: datetime,
    headline: str,
) -> Hit:
    return Hit(
        session_id=str(session_id),
        title=title,
        archived=archived,
        message_id=str(message_id),
        sequence=sequence,
        role=kind,
        created_at=instant(created_at),
        snippet=pieces(headline),
    )


def pieces(headline: str) -> list[Piece]:
    """The parts between the marks, which are hits, and those around them; Markdown's signs would only disturb."""
    headline = _SIGNS.sub(" ", _EMPHASIS.sub("", headline))
    made: list[Piece] = []
    for part in headline.split(OPEN):
        inside, mark, outside = part.partition(CLOSE)
        made += [Piece(text=inside, hit=bool(mark)), Piece(text=outside, hit=False)]
    return [piece for piece in made if piece.text]


# --- showing -----------------------------------------------------------------------------------------


def around(session_id: UUID, message_id: UUID) -> tuple[list[MessageView], bool] | None:
    """The rows on both sides of a message, and whether there are older ones; None where it is not shown."""
    shown = Message.objects.filter(session=session_id, hidden="", sequence__isnull=False)
    place = shown.filter(pk=message_id).values_list("sequence", flat=True).first()
    if place is None:
        return None
    later = shown.filter(sequence__gte=place).order_by("sequence").values_list("sequence", flat=True)
    last = max(number for number in later[: AROUND + 1] if number is not None)
    return messages_page(session_id, before=last + 1, limit=2 * AROUND)
