"""What the agent remembers of a user between conversations; the only writer of its tables (A25.1, A25.2)."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import DatabaseError, transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from config.core.text import make_storable
from copilot.chat.prompt_tags import build_server_block, escape_text, strip_server_tags
from copilot.models import MemoryItem, MemorySwitch

MAX_MEMORY_CHARACTERS = 1_000
MAX_MEMORIES = 500
MAX_SEARCH_RESULTS = 10
CONTEXT_ITEMS = 10
CONTEXT_CHARACTERS = 4_000
CONTEXT_MATCHING_ITEMS = 7  # of the ten; the rest are the newest, which nothing in the text may call up
MAX_QUERY_CHARACTERS = 64_000  # a whole message may be the query

_log = logging.getLogger(__name__)
_word_pattern = re.compile(r"\w{2,}")


# --- writing -----------------------------------------------------------------------------------------


def add_memory(owner_id: int, text: str, *, sources: Sequence[str] = ()) -> MemoryItem:
    """Remember; the same thing said twice is one memory, and the newest.

    `sources` name the untrusted text that whoever says it had read.
    """
    clean = _clean_text(text)
    digest = hashlib.sha256(clean.encode()).hexdigest()
    with transaction.atomic():
        _lock_owner(owner_id)
        mine = MemoryItem.objects.filter(owner_id=owner_id)
        if not mine.filter(digest=digest).update(remembered_at=Now()):
            if mine.count() >= MAX_MEMORIES:
                raise Conflict(
                    f"There are {MAX_MEMORIES} memories already. Forget one first.", code="memory_full"
                )
            MemoryItem.objects.create(owner_id=owner_id, text=clean, digest=digest, sources=list(sources))
        return mine.get(digest=digest)


def forget_memory(owner_id: int, item_id: UUID) -> None:
    """Foreign and unknown ones look the same."""
    deleted, _ = MemoryItem.objects.filter(pk=item_id, owner_id=owner_id).delete()
    if not deleted:
        raise NotFound("There is no such memory.")


def edit_memory(owner_id: int, item_id: UUID, text: str) -> MemoryItem:
    """Say it differently; what then says the same as another becomes one with it."""
    clean = _clean_text(text)
    digest = hashlib.sha256(clean.encode()).hexdigest()
    with transaction.atomic():
        mine = MemoryItem.objects.select_for_update().filter(owner_id=owner_id)
        found = {item.pk: item for item in mine.filter(Q(pk=item_id) | Q(digest=digest)).order_by("pk")}
        if item_id not in found:
            raise NotFound("There is no such memory.")
        same = next((item for item in found.values() if item.digest == digest), None)
        if same is not None and same.pk != item_id:
            found[item_id].delete()
            return same
        mine.filter(pk=item_id).update(text=clean, digest=digest, remembered_at=Now(), sources=[])
        return mine.get(pk=item_id)


def set_memory_enabled(owner_id: int, *, on: bool) -> None:
    """Off keeps what is there, and neither adds to it nor shows it to a model."""
    MemorySwitch.objects.update_or_create(owner_id=owner_id, defaults={"on": on})


def _lock_owner(owner_id: int) -> None:
    """Adding is one at a time for each user, or two could pass the last free place."""
    MemorySwitch.objects.bulk_create([MemorySwitch(owner_id=owner_id)], ignore_conflicts=True)
    if not MemorySwitch.objects.select_for_update().get(owner_id=owner_id).on:
        raise Forbidden("The user has switched memory off.", code="memory_off")


def _clean_text(text: str) -> str:
    clean = strip_server_tags(make_storable(text)).strip()
    if not clean:
        raise InvalidRequest("A memory needs words.", code="invalid_text")
    if len(clean) > MAX_MEMORY_CHARACTERS:
        raise InvalidRequest(
            f"A memory has at most {MAX_MEMORY_CHARACTERS:,} characters.", code="invalid_text"
        )
    return clean


# --- reading -----------------------------------------------------------------------------------------


def is_memory_enabled(owner_id: int) -> bool:
    return not MemorySwitch.objects.filter(owner_id=owner_id, on=False).exists()


def list_memories(owner_id: int) -> list[MemoryItem]:
    """All of a user's, newest first; there are never more than a page."""
    return list(MemoryItem.objects.filter(owner_id=owner_id).order_by("-remembered_at", "id"))


def search_memories(owner_id: int, query: str, *, limit: int = MAX_SEARCH_RESULTS) -> list[MemoryItem]:
    """Those that share words with the query, best first; five hundred are quicker read than indexed."""
    if not is_memory_enabled(owner_id):
        raise Forbidden("The user has switched memory off.", code="memory_off")
    return _rank_matches(list_memories(owner_id), query)[: min(limit, MAX_SEARCH_RESULTS)]


@dataclass(frozen=True)
class MemoryContext:
    """What goes with a session's first message, and the untrusted text it was made from."""

    text: str = ""
    sources: tuple[str, ...] = ()


def build_memory_context(user_id: int, text: str) -> MemoryContext:
    """The block for a session's first message, or nothing: what matches its text, then what is newest (A25.2)."""
    try:
        items = list_memories(user_id) if is_memory_enabled(user_id) else []
    except DatabaseError:
        _log.warning("memories could not be read; the turn goes on without them", exc_info=True)
        return MemoryContext()
    matching = _rank_matches(items, text)[:CONTEXT_MATCHING_ITEMS]
    chosen = list(dict.fromkeys((*matching, *items)))[:CONTEXT_ITEMS]
    lines = _fit_lines(f"- {escape_text(strip_server_tags(item.text))}" for item in chosen)
    if not lines:
        return MemoryContext()
    return MemoryContext(build_server_block("memory_context", "\n".join(lines)), list_sources(chosen))


def list_sources(items: Iterable[MemoryItem]) -> tuple[str, ...]:
    """Of memories that a model reads: a memory of what strangers said is as little to be trusted as they are."""
    return tuple(dict.fromkeys(source for item in items for source in item.sources))


def _rank_matches(items: list[MemoryItem], query: str) -> list[MemoryItem]:
    """By the words they share with the query, rare ones weighing more; of equals the newest first."""
    wanted = _extract_words(query[:MAX_QUERY_CHARACTERS])
    shared = [(wanted & _extract_words(item.text), item) for item in items]
    known_by = Counter(word for words, _ in shared for word in words)
    scored = [(sum(1 / known_by[word] for word in words), item) for words, item in shared]
    return [item for score, item in sorted(scored, key=lambda pair: -pair[0]) if score]


def _extract_words(text: str) -> set[str]:
    return set(_word_pattern.findall(text.casefold()))


def _fit_lines(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    room = CONTEXT_CHARACTERS - len(build_server_block("memory_context", ""))
    for line in lines:
        if len(line) + 1 <= room:
            kept.append(line)
            room -= len(line) + 1
    return kept


def erase_memories(owner_id: int) -> int:
    """Everything that is remembered, and whether to; of an account that goes (S17)."""
    removed, _ = MemoryItem.objects.filter(owner=owner_id).delete()
    switches, _ = MemorySwitch.objects.filter(owner=owner_id).delete()
    return removed + switches
