"""A published payload as the share page shows it: rendered, labelled, its files found or missing (S11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never
from uuid import UUID

from django.urls import reverse
from django.utils.translation import gettext as _

from copilot import markdown
from copilot.events import tool_label
from copilot.markdown import Linked
from copilot.models import WorkspaceFile
from copilot.workspace import publication
from copilot.workspace.publication import Entry, Payload, Said, Step, Thought

STRANGERS_LINKS = "nofollow noopener ugc"
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
    return [_item(entry, files) for entry in payload.messages]


def _item(entry: Entry, files: Files) -> Item:
    match entry:
        case Said():
            return _said(entry, files)
        case Thought():
            return Item(
                template="copilot/share/_thought.html", label=_("Thought"), html=_html(entry.text, files)
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


def _said(said: Said, files: Files) -> Item:
    named = publication.file_ids([said.text, said.attachments])
    cards = [files.cards[one] for one in named if one in files.cards]
    own = said.role == "user"
    html = "" if own else _html(said.text, files)
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


def _html(text: str, files: Files) -> str:
    return markdown.render(text, find_file=files.find, rel=STRANGERS_LINKS)


def _card(token: UUID, file: WorkspaceFile) -> Card:
    return Card(
        id=str(file.pk),
        name=file.name,
        type=file.mime,
        size=file.size_bytes,
        href=reverse("share_file", args=[token, file.pk]),
        is_image=file.mime in PICTURES,
    )
