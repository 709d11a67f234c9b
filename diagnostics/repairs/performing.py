"""Every repair takes the same road: asked, looked at, done one by one, recorded (D8)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import InternalError, connection
from django.db.models.functions import Now

from copilot.errors import Conflict, NotFound, Refused, Unavailable
from diagnostics import audit, reading, snapshot
from diagnostics.audit import Actor, Change, Entry, Outcome
from diagnostics.models import AuditEvent, RepairAudit, RepairPreview
from diagnostics.repairs import actions, asking
from diagnostics.repairs.asking import Asked, PreviewRefused
from diagnostics.repairs.results import Batch, Reasons, Result, Skip, States
from diagnostics.repairs.schedules import CleanUpOrphanedSchedules
from diagnostics.repairs.stranded import StartStranded

CALL_SECONDS = 30.0
LOCK_SECONDS = 1  # for a row that somebody holds; the others must not wait for it
PREVIEW_LIFE = timedelta(minutes=5)
KEY_LIFE = timedelta(hours=24)
KEY_LOCKS = 0x72657061  # keeps our advisory locks apart

ACTIONS: Mapping[str, actions.Action] = {
    action.name: action
    for action in (
        actions.Stop("stop"),
        actions.StopAllLongRunning("stop_all_long_running"),
        actions.Requeue("requeue"),
        actions.RequeueAllStuck("requeue_all_stuck"),
        actions.CleanUpOrphaned("cleanup_orphaned"),
        actions.CleanUpAllOrphaned("cleanup_all_orphaned"),
        actions.CleanUpAllStuckQueued("cleanup_all_stuck_queued"),
        CleanUpOrphanedSchedules("cleanup_orphaned_schedules"),
        StartStranded("start_stranded"),
    )
}


def perform(actor: Actor, name: str, fields: object, *, key: str = "") -> Result:
    """`fields` as they came; what cannot be done is refused, and that is recorded too."""
    action = ACTIONS.get(name)
    if action is None:
        raise NotFound
    try:
        return _refusable(actor, action, fields, key)
    except InternalError as problem:  # a database that takes no writes, such as a standby
        raise Unavailable from problem


def _refusable(actor: Actor, action: actions.Action, fields: object, key: str) -> Result:
    began = time.monotonic()
    try:
        asked = asking.read(action.name, fields, takes_ids=action.takes_ids, takes_all=action.takes_all)
        with _one_at_a_time(actor, key):
            return _repeated(actor, asked, key) or _perform(actor, action, asked, began, key)
    except Refused as refusal:
        entry = Entry(
            action=action.name,
            outcome=Outcome.REFUSED,
            reason=_reason_in(fields),
            result={"code": refusal.code, "message": refusal.message},
            duration_ms=_since(began),
        )
        audit.record(actor, entry)
        raise


def _perform(actor: Actor, action: actions.Action, asked: Asked, began: float, key: str) -> Result:
    ids, rest = _chosen(actor, action, asked)
    batch = Batch(
        ids=ids,
        previewed=asked.preview_id is not None,
        deadline=began + CALL_SECONDS,
        now=reading.now(),
        reason=asked.reason,
    )
    touched = [*ids, *action.touched(ids)]
    before = action.states(touched)
    if asked.dry_run:
        reasons, after = action.against(batch), before
    else:
        with _impatient():
            reasons = action.act(batch)
        after = action.states(touched)
    if asked.preview_id is not None:
        rest = _rest(action, ids)
    result = _result(asked, ids, reasons, rest)
    if asked.all_of_them:
        result = replace(result, preview_id=str(_preview(actor, action, ids, rest).pk))
    entry = Entry(
        action=asked.action,
        outcome=Outcome.DRY_RUN if asked.dry_run else Outcome.DONE,
        reason=asked.reason,
        filter=_chosen_by(asked),
        ids=sorted({*ids, *_changed(before, after)}),
        changes=_changes(before, after, left_alone=reasons),
        result=result.stored(),
        duration_ms=_since(began),
        idempotency_key=key,
    )
    recorded = audit.record(actor, entry)
    snapshot.forget()
    return replace(result, audit_id=str(recorded.pk))


# --- what it is about --------------------------------------------------------------------------------


def _chosen(actor: Actor, action: actions.Action, asked: Asked) -> tuple[Sequence[UUID], int]:
    if asked.preview_id is not None:
        return _spent(actor, asked.action, asked.preview_id, looks_only=asked.dry_run), 0
    if asked.all_of_them:
        ids, count = action.matching(settings.DIAG_ALL_MAX)
        return ids, max(0, count - len(ids))
    return asked.ids, 0


def _spent(actor: Actor, action: str, preview_id: UUID, *, looks_only: bool) -> Sequence[UUID]:
    """Spent by one conditional update: of two who act on it at once, one does. A dry run leaves it."""
    mine = RepairPreview.objects.filter(
        pk=preview_id,
        admin=actor.admin_id,
        action=action,
        spent_at=None,
        created_at__gt=Now() - PREVIEW_LIFE,
    )
    if not (mine.exists() if looks_only else mine.update(spent_at=Now())):
        raise PreviewRefused
    return RepairPreview.objects.values_list("ids", flat=True).get(pk=preview_id)


def _preview(actor: Actor, action: actions.Action, ids: Sequence[UUID], rest: int) -> RepairPreview:
    assert actor.admin_id is not None  # the reaper looks at nothing first
    return RepairPreview.objects.create(admin_id=actor.admin_id, action=action.name, ids=list(ids), rest=rest)


def _rest(action: actions.Action, ids: Sequence[UUID]) -> int:
    """How many more match, besides those that were tried just now."""
    found, count = action.matching(settings.DIAG_ALL_MAX)
    return max(0, count - len(set(found) & set(ids)))


def _chosen_by(asked: Asked) -> dict[str, object]:
    shown: dict[str, object] = {"by": "ids"}
    if asked.preview_id is not None:
        shown = {"by": "preview", "preview_id": str(asked.preview_id)}
    elif asked.all_of_them:
        shown = {"by": "condition"}
    return shown


# --- what became of it -------------------------------------------------------------------------------


def _result(asked: Asked, ids: Sequence[UUID], reasons: Reasons, rest: int) -> Result:
    skipped = [Skip(id=str(one), reason=reasons[one]) for one in ids if one in reasons]
    return Result(
        action=asked.action,
        requested=len(ids),
        changed=len(ids) - len(skipped),
        skipped=skipped,
        remaining=rest,
        dry_run=asked.dry_run,
    )


def _changed(before: States, after: States) -> list[UUID]:
    return [one for one, state in before.items() if one in after and after[one] != state]


def _changes(before: States, after: States, *, left_alone: Reasons) -> list[Change]:
    """Of what this call changed, and of nothing that somebody else did meanwhile."""
    return [
        Change(id=one, before=before[one], after=after[one])
        for one in _changed(before, after)
        if one not in left_alone
    ]


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _reason_in(fields: object) -> str:
    reason = fields.get("reason") if isinstance(fields, dict) else None
    return reason[:500].replace("\x00", "") if isinstance(reason, str) else ""


@contextmanager
def _impatient() -> Iterator[None]:
    """A row that somebody holds is left alone, rather than waited for."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")


# --- the same request twice --------------------------------------------------------------------------


@contextmanager
def _one_at_a_time(actor: Actor, key: str) -> Iterator[None]:
    """With a key: the second of two equal requests waits for what the first has recorded."""
    if not key:
        yield
        return
    named = f"{actor.admin_id}:{key}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [KEY_LOCKS, named])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", [KEY_LOCKS, named])


def _repeated(actor: Actor, asked: Asked, key: str) -> Result | None:
    """What the same request was answered within the last day."""
    if not key:
        return None
    told = RepairAudit.objects.filter(
        admin_id=actor.admin_id, idempotency_key=key, at__gt=Now() - KEY_LIFE
    ).exclude(outcome=Outcome.REFUSED)
    before = told.order_by("-at").first()
    if before is None:
        return None
    result = replace(msgspec.convert(before.result, Result), audit_id=str(before.pk))
    if not _is_the_same(asked, before, result):
        raise Conflict("This key was used for another request.", code="idempotency_conflict")
    return result


def _is_the_same(asked: Asked, before: AuditEvent, result: Result) -> bool:
    """Whoever is told the first result must have asked for it, of the very same ids."""
    if (asked.action, asked.reason, asked.dry_run) != (before.action, before.reason, result.dry_run):
        return False
    if asked.ids and (len(asked.ids) != result.requested or not set(asked.ids) <= set(before.ids)):
        return False
    return bool(_chosen_by(asked) == before.filter)
