"""Versions of what was said, and turns taken back: rows are hidden and shown again, never rewritten (A30.5, A30.6)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Max, QuerySet, Subquery
from django.db.models.functions import Coalesce

from copilot.errors import Conflict, NotFound
from copilot.models import Message

OLDER_BRANCH, UNDONE = Message.Hidden.OLDER_BRANCH, Message.Hidden.UNDONE


def shown(session_id: UUID) -> QuerySet[Message]:
    return Message.objects.filter(session=session_id, hidden="", sequence__isnull=False)


def is_empty(session_id: UUID) -> bool:
    """Nothing is shown: what is said next is the first that the model reads."""
    return not shown(session_id).exists()


def addressed(session_id: UUID, message_id: UUID) -> Message:
    """What the user said to get this row: the row itself, or the last message before it."""
    place = shown(session_id).filter(pk=message_id).values("sequence")
    before = shown(session_id).filter(kind="user", sequence__lte=Subquery(place)).order_by("-sequence")
    said = before.first()  # one statement: what it finds was shown together with the row
    if said is None:
        raise _not_shown(session_id, message_id)
    return said


def _not_shown(session_id: UUID, message_id: UUID) -> Conflict | NotFound:
    if Message.objects.filter(pk=message_id, session=session_id).exists():
        return Conflict("This message is not shown any more.", code="not_shown")
    return NotFound()


def fork(session_id: UUID, message_id: UUID, version_id: UUID) -> None:
    """A pending message becomes the next version of one that is shown; what followed that one is kept under it.

    The caller holds the session, and gives the version its place in the same transaction.
    """
    first = Message.objects.filter(pk=message_id, session=session_id, hidden="").values_list(
        Coalesce("version_of", "id"), "sequence"
    )
    found = first.first()
    if found is None:
        raise _not_shown(session_id, message_id)
    root, sequence = found
    Message.objects.filter(pk=message_id, version_of=None).update(version_of=root)
    last = Message.objects.filter(version_of=root).aggregate(last=Max("branch"))["last"]
    Message.objects.filter(pk=version_id).update(version_of=root, branch=last + 1)
    _keep(session_id, message_id, sequence)


def _keep(session_id: UUID, version_id: UUID, sequence: int) -> None:
    """The shown rows from a version on are its branch: they wait under it."""
    shown(session_id).filter(sequence__gte=sequence).update(hidden=OLDER_BRANCH, kept_under=version_id)


@dataclass(frozen=True, kw_only=True)
class Switched:
    message_id: UUID
    branch: int


def switch(session_id: UUID, message_id: UUID, branch: int) -> Switched:
    """Show another version of a shown message, with all that followed it when it was left."""
    with transaction.atomic():
        left = shown(session_id).filter(pk=message_id, kind="user").first()
        if left is None or left.sequence is None:
            raise _not_shown(session_id, message_id)
        if left.branch == branch:
            return Switched(message_id=left.pk, branch=branch)
        chosen = None
        if left.version_of is not None:
            versions = Message.objects.filter(version_of=left.version_of, hidden=OLDER_BRANCH)
            chosen = versions.filter(branch=branch).first()
        if chosen is None:
            raise Conflict("There is no such version of this message.", code="no_such_branch")
        _keep(session_id, left.pk, left.sequence)
        Message.objects.filter(kept_under=chosen.pk).update(hidden="", kept_under=None)
    return Switched(message_id=chosen.pk, branch=branch)


@dataclass(frozen=True, kw_only=True)
class Undone:
    turn_id: UUID | None
    text: str  # what the user had said in it
    rows: int


def undo(session_id: UUID) -> Undone:
    """Hide the last turn that is shown, and whatever came after it: a summary of it is void too (A30.5)."""
    with transaction.atomic():
        last = shown(session_id).filter(kind="user").order_by("-sequence").first()
        if last is None:
            raise Conflict("There is nothing to undo.", code="nothing_to_undo")
        begin = shown(session_id).filter(turn=last.turn_id).order_by("sequence").first() or last
        taken = shown(session_id).filter(sequence__gte=begin.sequence)
        said = taken.filter(kind="user").order_by("sequence").values_list("content", flat=True)
        text = "\n\n".join(said)
        rows = taken.update(hidden=UNDONE)
    return Undone(turn_id=last.turn_id, text=text, rows=rows)
