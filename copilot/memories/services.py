"""Store and search what the assistant remembers about a user across sessions. The only writer of its tables."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
from django.db import DatabaseError, transaction
from django.db.models import Q
from django.db.models.functions import Now

from config.core.errors import Conflict, Forbidden, InvalidRequest, NotFound
from config.core.text import make_storable
from copilot.chat.prompt_tags import build_server_block, escape_text, strip_server_tags
from copilot.models import MemoryItem, MemoryPreference

MAX_MEMORY_CHARACTERS = 1_000
MAX_MEMORIES = 500
MAX_SEARCH_RESULTS = 10
CONTEXT_ITEMS = 10
CONTEXT_CHARACTERS = 4_000
CONTEXT_MATCHING_ITEMS = 7  # of the ten; the rest are the newest, whether or not they match
MAX_QUERY_CHARACTERS = 64_000  # a whole message may be the query

log = structlog.get_logger(__name__)
_word_pattern = re.compile(r"\w{2,}")


# --- Write -------------------------------------------------------------------------------------------


def add_memory(owner_id: int, text: str, *, sources: Sequence[str] = ()) -> MemoryItem:
    """Add a memory; an existing one with the same text becomes the newest.

    `sources` name untrusted text that its author had read.
    """
    clean = _clean_text(text)
    digest = hashlib.sha256(clean.encode()).hexdigest()
    with transaction.atomic():
        _lock_owner(owner_id)
        rows = MemoryItem.objects.filter(owner_id=owner_id)
        if not rows.filter(digest=digest).update(remembered_at=Now()):
            if rows.count() >= MAX_MEMORIES:
                raise Conflict(
                    f"You can have up to {MAX_MEMORIES} memories. Delete one first.", code="memory_full"
                )
            MemoryItem.objects.create(owner_id=owner_id, text=clean, digest=digest, sources=list(sources))
        return rows.get(digest=digest)


def forget_memory(owner_id: int, item_id: UUID) -> None:
    """Delete a memory. Foreign and unknown ones are reported as not found."""
    deleted, _ = MemoryItem.objects.filter(pk=item_id, owner_id=owner_id).delete()
    if not deleted:
        raise NotFound("There is no such memory.")


def edit_memory(owner_id: int, item_id: UUID, text: str) -> MemoryItem:
    """Change the text. A memory that becomes equal to another is merged into it."""
    clean = _clean_text(text)
    digest = hashlib.sha256(clean.encode()).hexdigest()
    with transaction.atomic():
        rows = MemoryItem.objects.select_for_update().filter(owner_id=owner_id)
        found = {item.pk: item for item in rows.filter(Q(pk=item_id) | Q(digest=digest)).order_by("pk")}
        if item_id not in found:
            raise NotFound("There is no such memory.")
        same = next((item for item in found.values() if item.digest == digest), None)
        if same is not None and same.pk != item_id:
            found[item_id].delete()
            return same
        rows.filter(pk=item_id).update(text=clean, digest=digest, remembered_at=Now(), sources=[])
        return rows.get(pk=item_id)


def set_memory_enabled(owner_id: int, *, on: bool) -> None:
    """Switch memory on or off. While off, memories are kept but neither added nor shown to models."""
    MemoryPreference.objects.update_or_create(owner_id=owner_id, defaults={"enabled": on})


def _lock_owner(owner_id: int) -> None:
    """Serialise additions per user, so that the limit holds."""
    MemoryPreference.objects.bulk_create([MemoryPreference(owner_id=owner_id)], ignore_conflicts=True)
    if not MemoryPreference.objects.select_for_update().get(owner_id=owner_id).enabled:
        raise Forbidden("The user has switched memory off.", code="memory_off")


def _clean_text(text: str) -> str:
    clean = strip_server_tags(make_storable(text)).strip()
    if not clean:
        raise InvalidRequest("Enter some text.", code="invalid_text", field="text")
    if len(clean) > MAX_MEMORY_CHARACTERS:
        raise InvalidRequest(
            f"Memories can be up to {MAX_MEMORY_CHARACTERS:,} characters.", code="invalid_text", field="text"
        )
    return clean


# --- Read --------------------------------------------------------------------------------------------


def is_memory_enabled(owner_id: int) -> bool:
    return not MemoryPreference.objects.filter(owner_id=owner_id, enabled=False).exists()


def list_memories(owner_id: int) -> list[MemoryItem]:
    return list(MemoryItem.objects.filter(owner_id=owner_id).order_by("-remembered_at", "id"))


def search_memories(owner_id: int, query: str, *, limit: int = MAX_SEARCH_RESULTS) -> list[MemoryItem]:
    """Return memories that share words with the query, best first. At this number no index is needed."""
    if not is_memory_enabled(owner_id):
        raise Forbidden("The user has switched memory off.", code="memory_off")
    return _rank_matches(list_memories(owner_id), query)[: min(limit, MAX_SEARCH_RESULTS)]


@dataclass(frozen=True)
class MemoryContext:
    """The memory block of a session's first message, and the origins of untrusted text in it."""

    text: str = ""
    sources: tuple[str, ...] = ()


def build_memory_context(user_id: int, text: str) -> MemoryContext:
    """Build the block for a session's first message: memories that match its text, then the newest."""
    try:
        items = list_memories(user_id) if is_memory_enabled(user_id) else []
    except DatabaseError:
        log.warning("memories_unreadable", exc_info=True)
        return MemoryContext()
    matching = _rank_matches(items, text)[:CONTEXT_MATCHING_ITEMS]
    chosen = list(dict.fromkeys((*matching, *items)))[:CONTEXT_ITEMS]
    lines = _fit_lines(f"- {escape_text(strip_server_tags(item.text))}" for item in chosen)
    if not lines:
        return MemoryContext()
    return MemoryContext(build_server_block("memory_context", "\n".join(lines)), list_sources(chosen))


def list_sources(items: Iterable[MemoryItem]) -> tuple[str, ...]:
    """Return the origins of untrusted text in memories: a memory is no more trustworthy than its source."""
    return tuple(dict.fromkeys(source for item in items for source in item.sources))


def _rank_matches(items: list[MemoryItem], query: str) -> list[MemoryItem]:
    """Rank by shared words, rare ones weighing more; of equals the newest first."""
    wanted = _extract_words(query[:MAX_QUERY_CHARACTERS])
    shared = [(wanted & _extract_words(item.text), item) for item in items]
    frequency = Counter(word for words, _ in shared for word in words)
    scored = [(sum(1 / frequency[word] for word in words), item) for words, item in shared]
    return [item for score, item in sorted(scored, key=lambda pair: -pair[0]) if score]


def _extract_words(text: str) -> set[str]:
    return set(_word_pattern.findall(text.casefold()))


def _fit_lines(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    characters_left = CONTEXT_CHARACTERS - len(build_server_block("memory_context", ""))
    for line in lines:
        if len(line) + 1 <= characters_left:
            kept.append(line)
            characters_left -= len(line) + 1
    return kept


def erase_memories(owner_id: int) -> int:
    removed, _ = MemoryItem.objects.filter(owner=owner_id).delete()
    switches, _ = MemoryPreference.objects.filter(owner=owner_id).delete()
    return removed + switches
