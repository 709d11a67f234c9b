"""Track which untrusted text a session has read, and which URLs it may fetch without asking.

Text that others wrote (web pages, search results, MCP servers, other people's files) may contain instructions. Rows
record where such text came from: `data.sources` of tool results, `data.context_sources` for the context of a message,
and `inbound_context.sources` where a model wrote the message. So the next turn knows what the session has read, and
sub-sessions, memories and schedules inherit it.

Once a session has read untrusted text, tools that could send data out or outlive the session ask a person first. A URL
is fetched without asking only if it cannot carry data that a model chose: a person wrote it, a search returned it, or
a fetched page links to it. Following a link reveals which one was chosen, so only the first links of a page count, and
only a few are followed for each message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from yarl import URL

from config.core.db import fetch_all, fetch_one
from copilot.models import Session, WorkspaceFile

MAX_SOURCES = 20  # more change nothing
MAX_SHOWN_SOURCES = 3
MAX_LABEL_CHARACTERS = 100
MAX_LINKS_OF_A_PAGE = 200
MAX_LINKS_FOLLOWED = 10  # for one message: each reveals less than a byte to its server
MAX_ROWS_SEARCHED = 200  # the newest of those that contain the host
IMPORTED_SOURCE = "an imported conversation"
SEARCH_RESULTS_SOURCE = "web search results"
SENT_RESULTS_SOURCE = "tool results that came with a request"

_URL_PATTERN = re.compile(r"https?://[^\s<>\"]+", re.IGNORECASE)
_BARE_URL_PATTERN = re.compile(
    r"(?<![\w@./:-])(?:[^\W_](?:[\w-]*[^\W_])?\.)+[^\W\d_]{2,}(?::\d{1,5})?(?:/[^\s<>\"]*)?", re.IGNORECASE
)
# Matches only the field itself: in a snippet, quotation marks are escaped by a backslash.
_SEARCH_RESULT_URL = re.compile(r'"url": "([^"\\]+)"')
_TRAILING_PUNCTUATION = frozenset(".,;:!?)]}'*_`|\\»”’…")  # follows a URL without belonging to it

_SELECT_SOURCES = """
SELECT source FROM copilot_message m
CROSS JOIN LATERAL jsonb_array_elements_text(
    COALESCE(m.data->'sources', '[]') || COALESCE(m.data->'context_sources', '[]')
    || COALESCE(m.data->'inbound_context'->'sources', '[]')) AS source
WHERE m.session_id = %s AND m.hidden = '' AND m.sequence IS NOT NULL
GROUP BY source ORDER BY min(m.sequence) LIMIT %s
"""
_SELECT_IMPORT_STATE = """
SELECT s.imported AS is_imported, EXISTS (
    SELECT 1 FROM copilot_message m JOIN copilot_turn t ON t.id = m.turn_id
    WHERE m.session_id = s.id AND m.hidden = '' AND m.kind = 'tool_result' AND t.origin = 'import') AS has_imported_results
FROM copilot_session s WHERE s.id = %s
"""
# A goal's next step and a message that a model wrote are not a person's words, and imported results are not trusted.
_SELECT_ROWS_NAMING_HOST = """
SELECT m.kind = 'user' AS is_message, COALESCE(m.data->>'tool', '') AS tool,
       concat_ws(' ', m.content, m.page_context->>'url') AS content
FROM copilot_message m
WHERE m.session_id = %(session)s AND m.hidden = '' AND m.sequence IS NOT NULL
  AND concat_ws(' ', m.content, m.page_context->>'url') ILIKE ANY (ARRAY[%(host)s, %(raw_host)s])
  AND CASE m.kind
      WHEN 'user' THEN m.origin NOT IN ('goal', 'follow_up') AND NOT (%(imported)s AND m.origin = 'import')
           AND COALESCE(m.data->'inbound_context'->'sources', '[]') = '[]'
      WHEN 'tool_result' THEN m.data->>'tool' IN ('web_search', 'web_fetch') AND NOT EXISTS (
           SELECT 1 FROM copilot_turn t WHERE t.id = m.turn_id AND t.origin = 'import')
      ELSE false END
ORDER BY m.sequence DESC LIMIT %(most)s
"""
_COUNT_FETCHES = """
SELECT count(*) FROM copilot_message m
WHERE m.session_id = %(session)s AND m.hidden = '' AND m.kind = 'tool_result' AND m.data->>'tool' = 'web_fetch'
  AND m.sequence > COALESCE((SELECT max(u.sequence) FROM copilot_message u
                             WHERE u.session_id = %(session)s AND u.hidden = '' AND u.kind = 'user'), 0)
"""


class _NamingRow(NamedTuple):
    """A row that contains the host of a URL."""

    is_message: bool
    tool: str
    content: str


class _ImportState(NamedTuple):
    is_imported: bool
    has_imported_results: bool


@dataclass
class ReadSources:
    """The untrusted sources of one session, as known when a call is judged."""

    session_id: UUID
    sources: tuple[str, ...]
    _links: int | None = field(default=None, repr=False)  # followed for this message, including this reply's

    @classmethod
    def for_session(cls, session_id: UUID) -> ReadSources:
        return cls(session_id=session_id, sources=list_session_sources(session_id))

    def knows_address(self, text: str) -> bool:
        """Tell whether fetching this URL reveals nothing beyond what people, searches and pages gave."""
        parts = normalise_url(text)
        if parts is None:
            return False
        rows = self._rows_naming(text)
        for row in rows:
            if row.is_message and parts in _find_urls(row.content, bare=True):
                return True
            if row.tool == "web_search" and parts in map(
                normalise_url, _SEARCH_RESULT_URL.findall(row.content)
            ):
                return True
        is_linked = any(
            parts in set(islice(_find_urls(row.content), MAX_LINKS_OF_A_PAGE))
            for row in rows
            if row.tool == "web_fetch"
        )
        return is_linked and self._may_follow_link()

    def _may_follow_link(self) -> bool:
        if self._links is None:
            with connection.cursor() as cursor:
                cursor.execute(_COUNT_FETCHES, {"session": self.session_id})
                self._links = cursor.fetchone()[0]
        self._links += 1
        return self._links <= MAX_LINKS_FOLLOWED

    def _rows_naming(self, text: str) -> list[_NamingRow]:
        url = URL(text)
        imported = Session.objects.filter(pk=self.session_id, imported=True).exists()
        return fetch_all(
            _NamingRow,
            _SELECT_ROWS_NAMING_HOST,
            {
                "session": self.session_id,
                "imported": imported,
                "host": _like_pattern((url.host or "").rstrip(".")),
                "raw_host": _like_pattern((url.raw_host or "").rstrip(".")),
                "most": MAX_ROWS_SEARCHED,
            },
        )


def list_session_sources(session_id: UUID) -> tuple[str, ...]:
    with connection.cursor() as cursor:
        cursor.execute(_SELECT_SOURCES, [session_id, MAX_SOURCES])
        sources = [source for (source,) in cursor.fetchall()]
    state = fetch_one(_ImportState, _SELECT_IMPORT_STATE, [session_id])
    if state is not None and (state.is_imported or state.has_imported_results):
        sources.insert(0, IMPORTED_SOURCE if state.is_imported else SENT_RESULTS_SOURCE)
    return tuple(sources)


def list_file_sources(
    file: WorkspaceFile,
    *,
    session_id: UUID,
    read_sources: Callable[[UUID], tuple[str, ...]] = list_session_sources,
) -> tuple[str, ...]:
    """Return the untrusted source that reading this file adds, if any.

    A person's own upload is trusted, and so is a file that this session made. A file that an agent wrote
    elsewhere may repeat whatever was read there.
    """
    label = format_source_label(f'the file "{file.name.replace(chr(34), "")}"')
    match file.source:
        case WorkspaceFile.Source.UPLOAD:
            return ()
        case WorkspaceFile.Source.AGENT | WorkspaceFile.Source.TOOL_OUTPUT if file.session_id is not None:
            is_own_session = file.session_id == session_id
            return () if is_own_session or not read_sources(file.session_id) else (label,)
        case _:
            return (label,)


def list_sources_of_files(files: Iterable[WorkspaceFile], *, session_id: UUID) -> tuple[str, ...]:
    """Return the untrusted sources that reading any of these files may add, each once and not without end."""
    found: dict[str, None] = {}
    read_sources = cache(list_session_sources)
    for file in files:
        found.update(dict.fromkeys(list_file_sources(file, session_id=session_id, read_sources=read_sources)))
        if len(found) >= MAX_SOURCES:
            break
    return tuple(found)


def format_source_label(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_LABEL_CHARACTERS else line[: MAX_LABEL_CHARACTERS - 1] + "…"


def describe_sources(sources: Sequence[str]) -> str:
    shown, more = sources[:MAX_SHOWN_SOURCES], len(sources) - MAX_SHOWN_SOURCES
    listed = ", ".join(shown) if more > 0 else " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    return f"This chat has read {listed}{f' and {more} more' if more > 0 else ''}."


# --- URLs --------------------------------------------------------------------------------------------

UrlParts = tuple[str, int, str, str]


def normalise_url(text: str) -> UrlParts | None:
    """Return host, port, path and query in one spelling: what a server would learn. None for anything else.

    Scheme, fragment and a final slash reveal nothing. URLs with a user name or a password are never
    accepted.
    """
    try:
        url = URL(text)
        port = url.port or 0
    except ValueError:
        return None
    if (
        url.scheme not in ("http", "https")
        or not url.raw_host
        or url.user is not None
        or url.password is not None
    ):
        return None
    default_port = {"http": 80, "https": 443}[url.scheme]
    host = url.raw_host.rstrip(".").lower()
    return host, 0 if port == default_port else port, url.raw_path.rstrip("/"), url.raw_query_string


def _find_urls(text: str, *, bare: bool = False) -> Iterator[UrlParts]:
    for match in _URL_PATTERN.finditer(text):
        yield from _url_spellings(match[0])
    if bare:
        for match in _BARE_URL_PATTERN.finditer(text):
            yield from _url_spellings(f"https://{match[0]}")


def _url_spellings(token: str) -> Iterator[UrlParts]:
    for _ in range(8):
        if (parts := normalise_url(token)) is not None:
            yield parts
        if token[-1:] not in _TRAILING_PUNCTUATION:
            return
        token = token[:-1]


def _like_pattern(text: str) -> str:
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
