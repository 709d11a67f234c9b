"""A published payload as the share page shows it: rendered, labelled, its files found or missing.

What is shown of a share changes only with its files, so its HTML is made once and kept: a page that anybody may open
as often as they like must not cost its rendering every time.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never
from uuid import UUID

import msgspec
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from copilot import markdown, metrics
from copilot.errors import TooMany
from copilot.events import tool_label
from copilot.markdown import Linked
from copilot.models import Share, WorkspaceFile
from copilot.workspace import publication
from copilot.workspace.publication import Entry, Payload, Said, Step, Thought

STRANGERS_LINKS = "nofollow noopener ugc"
CACHE_BYTES = 64 * 2**20  # of compressed HTML in each web process
WAIT_SECONDS = 5.0  # for the share that is being rendered before
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/svg+xml")


@dataclass(frozen=True, kw_only=True)
class Card:
    """A file that can be fetched here."""

    id: str
    name: str
    type: str
    size: int
    href: str
    is_image: bool


@dataclass(frozen=True, kw_only=True)
class Item:
    """What one entry's template needs; empty fields belong to other kinds."""

    template: str
    speaker: str = ""
    created_at: str = ""
    html: str = ""  # already safe
    text: str = ""
    pictures: Sequence[Card] = ()
    cards: Sequence[Card] = ()
    missing: int = 0  # files that are named here and not public
    label: str = ""
    outcome: str = ""
    note: str = ""
    arguments: str = ""
    output: str = ""


@dataclass(frozen=True)
class Files:
    """The files of one share by id, as its readers fetch them."""

    cards: Mapping[str, Card] = field(default_factory=dict)

    @classmethod
    def of(cls, token: UUID, available: Sequence[WorkspaceFile]) -> Files:
        return cls({str(file.pk): _card(token, file) for file in available})

    def find(self, uri: str) -> Linked | None:
        found = publication.FILE.match(uri)
        card = self.cards.get(found.group(1).lower()) if found else None
        if card is None:
            return None
        return Linked(href=card.href, name=card.name, picture=card.href if card.is_image else "")


def items(payload: Payload, files: Files) -> list[Item]:
    budget = markdown.PageBudget()
    return [_item_or_plain(entry, files, budget) for entry in payload.messages]


def _item_or_plain(entry: Entry, files: Files, budget: markdown.PageBudget) -> Item:
    try:
        return _item(entry, files, budget)
    except Exception as problem:  # noqa: BLE001 - one row must not take its page down
        markdown.report_failure("row_failed", problem)
        metrics.unrendered_texts.labels(reason="row_failed").inc()
        text = entry.output if isinstance(entry, Step) else entry.text
        return Item(template="copilot/share/_plain.html", text=text)


def _item(entry: Entry, files: Files, budget: markdown.PageBudget) -> Item:
    match entry:
        case Said():
            return _said(entry, files, budget)
        case Thought():
            return Item(
                template="copilot/share/_thought.html",
                label=_("Thought"),
                html=_html(entry.text, files, budget),
            )
        case Step():
            return Item(
                template="copilot/share/_step.html",
                label=tool_label(entry.tool),
                outcome=entry.outcome,
                note={"done": "", "failed": _("failed"), "stopped": _("stopped")}[entry.outcome],
                arguments=entry.arguments,
                output=entry.output,
            )
        case unreachable:
            assert_never(unreachable)


def _said(said: Said, files: Files, budget: markdown.PageBudget) -> Item:
    named = publication.file_ids([said.text, said.attachments])
    cards = [files.cards[one] for one in named if one in files.cards]
    own = said.role == "user"
    html = "" if own else _html(said.text, files, budget)
    return Item(
        template="copilot/share/_question.html" if own else "copilot/share/_answer.html",
        speaker=said.author or (_("User") if own else "Pilothouse"),
        created_at=said.created_at,
        text=said.text if own else "",
        html=html,
        pictures=[card for card in cards if card.is_image and f'<img src="{card.href}"' not in html],
        cards=[card for card in cards if not card.is_image],
        missing=len(named) - len(cards),
    )


def _html(text: str, files: Files, budget: markdown.PageBudget) -> str:
    return markdown.render(text, find_file=files.find, rel=STRANGERS_LINKS, budget=budget)


def _card(token: UUID, file: WorkspaceFile) -> Card:
    return Card(
        id=str(file.pk),
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        href=reverse("share_file", args=[token, file.pk]),
        is_image=file.mime in PICTURES,
    )


# --- kept HTML ---------------------------------------------------------------------------------------


class HtmlCache:
    """Keep compressed HTML up to a number of bytes, the longest unused going first; make one at a time.

    One at a time, because Markdown is pure computation: a crowd that opens many large shares at once would take the
    whole process from everybody else. Whoever waits too long is asked to come back.
    """

    def __init__(self, *, max_bytes: int = CACHE_BYTES, wait_seconds: float = WAIT_SECONDS) -> None:
        self._max_bytes = max_bytes
        self._wait_seconds = wait_seconds
        self._kept: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._making = threading.Lock()

    def get_or_make(self, key: tuple[str, ...], make: Callable[[], str]) -> str:
        if (found := self._find(key)) is not None:
            return found
        if not self._making.acquire(timeout=self._wait_seconds):
            metrics.share_renders.labels(outcome="busy").inc()
            raise TooMany("Too many pages are being prepared. Please try again.", retry_after_seconds=5)
        try:
            if (found := self._find(key)) is not None:  # made while this one waited
                return found
            html = make()
            self._keep(key, html)
            metrics.share_renders.labels(outcome="rendered").inc()
            return html
        finally:
            self._making.release()

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _find(self, key: tuple[str, ...]) -> str | None:
        with self._lock:
            packed = self._kept.get(key)
            if packed is None:
                return None
            self._kept.move_to_end(key)
        metrics.share_renders.labels(outcome="cached").inc()
        return zlib.decompress(packed).decode()

    def _keep(self, key: tuple[str, ...], html: str) -> None:
        packed = zlib.compress(html.encode(), level=1)
        with self._lock:
            self._kept[key] = packed
            self._bytes += len(packed)
            while self._bytes > self._max_bytes and self._kept:
                _key, dropped = self._kept.popitem(last=False)
                self._bytes -= len(dropped)


kept_html = HtmlCache()


def transcript(share: Share, payload: Payload, files: Files) -> SafeString:
    """Return the rows of a shared conversation as HTML; its payload is frozen, so only its files can change it."""
    shown_files = hashlib.sha256(msgspec.json.encode(sorted(files.cards.items()))).hexdigest()
    key = (str(share.pk), get_language() or "", shown_files)
    html = kept_html.get_or_make(
        key, lambda: render_to_string("copilot/share/_transcript.html", {"items": items(payload, files)})
    )
    return mark_safe(html)  # noqa: S308 - rendered by a template
