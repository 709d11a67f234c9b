"""Build the page of a published share: rendered messages, labels, and files that are available or missing.

The transcript of a share changes only with its files, so its HTML is rendered once and cached: a page that anybody may
open as often as they like must not be rendered every time.
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

from config.core.errors import TooManyRequests
from copilot import metrics
from copilot.models import Share, WorkspaceFile
from copilot.realtime.payloads import get_tool_label
from copilot.sharing import payloads
from copilot.sharing.payloads import Said, SharedEntry, SharePayload, Step, Thought
from copilot.web import markdown
from copilot.web.markdown import LinkedFile

EXTERNAL_LINK_REL = "nofollow noopener ugc"
MAX_CACHE_BYTES = 64 * 2**20  # of compressed HTML in each web process
RENDER_WAIT_SECONDS = 5.0  # how long to wait for the share that is being rendered now
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/svg+xml")


@dataclass(frozen=True, kw_only=True)
class FileCard:
    """A file that can be downloaded from this page."""

    id: str
    name: str
    type: str
    size: int
    href: str
    is_image: bool


@dataclass(frozen=True, kw_only=True)
class ShareItem:
    """The values for one entry's template; empty fields belong to other kinds."""

    template: str
    speaker: str = ""
    created_at: str = ""
    html: str = ""  # already safe
    text: str = ""
    pictures: Sequence[FileCard] = ()
    cards: Sequence[FileCard] = ()
    missing: int = 0  # files named here that are not public
    label: str = ""
    outcome: str = ""
    note: str = ""
    arguments: str = ""
    output: str = ""


@dataclass(frozen=True)
class ShareFiles:
    cards: Mapping[str, FileCard] = field(default_factory=dict)

    @classmethod
    def from_files(cls, token: UUID, available: Sequence[WorkspaceFile]) -> ShareFiles:
        return cls({str(file.pk): _make_card(token, file) for file in available})

    def find_link(self, uri: str) -> LinkedFile | None:
        match = payloads.FILE_URI.match(uri)
        card = self.cards.get(match.group(1).lower()) if match else None
        if card is None:
            return None
        return LinkedFile(href=card.href, name=card.name, picture=card.href if card.is_image else "")


def build_items(payload: SharePayload, files: ShareFiles) -> list[ShareItem]:
    budget = markdown.PageBudget()
    return [_build_item_or_plain(entry, files, budget) for entry in payload.messages]


def _build_item_or_plain(entry: SharedEntry, files: ShareFiles, budget: markdown.PageBudget) -> ShareItem:
    try:
        return _build_item(entry, files, budget)
    except Exception as problem:  # noqa: BLE001 - one row must not break its page
        markdown.report_failure("row_failed", problem)
        metrics.unrendered_texts.labels(reason="row_failed").inc()
        text = entry.output if isinstance(entry, Step) else entry.text
        return ShareItem(template="copilot/share/_plain.html", text=text)


def _build_item(entry: SharedEntry, files: ShareFiles, budget: markdown.PageBudget) -> ShareItem:
    match entry:
        case Said():
            return _build_message_item(entry, files, budget)
        case Thought():
            return ShareItem(
                template="copilot/share/_thought.html",
                label=_("Thought"),
                html=_render_html(entry.text, files, budget),
            )
        case Step():
            return ShareItem(
                template="copilot/share/_step.html",
                label=get_tool_label(entry.tool),
                outcome=entry.outcome,
                note={"done": "", "failed": _("failed"), "stopped": _("stopped")}[entry.outcome],
                arguments=entry.arguments,
                output=entry.output,
            )
        case unreachable:
            assert_never(unreachable)


def _build_message_item(message: Said, files: ShareFiles, budget: markdown.PageBudget) -> ShareItem:
    file_ids = payloads.find_file_ids([message.text, message.attachments])
    cards = [files.cards[file_id] for file_id in file_ids if file_id in files.cards]
    is_user = message.role == "user"
    html = "" if is_user else _render_html(message.text, files, budget)
    return ShareItem(
        template="copilot/share/_question.html" if is_user else "copilot/share/_answer.html",
        speaker=message.author or (_("User") if is_user else "Pilothouse"),
        created_at=message.created_at,
        text=message.text if is_user else "",
        html=html,
        pictures=[card for card in cards if card.is_image and f'<img src="{card.href}"' not in html],
        cards=[card for card in cards if not card.is_image],
        missing=len(file_ids) - len(cards),
    )


def _render_html(text: str, files: ShareFiles, budget: markdown.PageBudget) -> str:
    return markdown.render(text, find_file=files.find_link, rel=EXTERNAL_LINK_REL, budget=budget)


def _make_card(token: UUID, file: WorkspaceFile) -> FileCard:
    return FileCard(
        id=str(file.pk),
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        href=reverse("share_file", args=[token, file.pk]),
        is_image=file.mime in IMAGE_TYPES,
    )


# --- Cached HTML ---


class ShareHtmlCache:
    """Cache compressed HTML up to a number of bytes, dropping the least recently used, and render one share at a time.

    Rendering Markdown is pure computation: many large shares opened at once would take the whole process from everybody
    else. A request that waits too long is told to try again.
    """

    def __init__(
        self, *, max_bytes: int = MAX_CACHE_BYTES, wait_seconds: float = RENDER_WAIT_SECONDS
    ) -> None:
        self._max_bytes = max_bytes
        self._wait_seconds = wait_seconds
        self._pages: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._render_lock = threading.Lock()

    def get_or_render(self, key: tuple[str, ...], render: Callable[[], str]) -> str:
        if (found := self._find(key)) is not None:
            return found
        if not self._render_lock.acquire(timeout=self._wait_seconds):
            metrics.share_renders.labels(outcome="busy").inc()
            raise TooManyRequests(
                "Too many pages are being prepared. Please try again.", retry_after_seconds=5
            )
        try:
            if (found := self._find(key)) is not None:  # rendered while this request waited
                return found
            html = render()
            self._store(key, html)
            metrics.share_renders.labels(outcome="rendered").inc()
            return html
        finally:
            self._render_lock.release()

    def clear(self) -> None:
        with self._lock:
            self._pages.clear()
            self._bytes = 0

    def _find(self, key: tuple[str, ...]) -> str | None:
        with self._lock:
            compressed = self._pages.get(key)
            if compressed is None:
                return None
            self._pages.move_to_end(key)
        metrics.share_renders.labels(outcome="cached").inc()
        return zlib.decompress(compressed).decode()

    def _store(self, key: tuple[str, ...], html: str) -> None:
        compressed = zlib.compress(html.encode(), level=1)
        with self._lock:
            self._pages[key] = compressed
            self._bytes += len(compressed)
            while self._bytes > self._max_bytes and self._pages:
                _key, dropped = self._pages.popitem(last=False)
                self._bytes -= len(dropped)


share_html_cache = ShareHtmlCache()


def render_transcript(share: Share, payload: SharePayload, files: ShareFiles) -> SafeString:
    """Return the messages of a shared conversation as HTML. The payload is frozen; only its files can change."""
    shown_files = hashlib.sha256(msgspec.json.encode(sorted(files.cards.items()))).hexdigest()
    key = (str(share.pk), get_language() or "", shown_files)
    html = share_html_cache.get_or_render(
        key,
        lambda: render_to_string("copilot/share/_transcript.html", {"items": build_items(payload, files)}),
    )
    return mark_safe(html)  # noqa: S308 - rendered by a template
