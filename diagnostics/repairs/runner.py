"""Run repairs: parse the request, choose the targets, change them one by one, and record the result."""

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

from config.core.db import use_direct_connection
from config.core.errors import Conflict, NotFound, RequestRefused, ServiceUnavailable
from diagnostics import audit, queries, snapshot
from diagnostics.audit import AuditOutcome, RepairActor, RepairRecord, TargetChange
from diagnostics.models import AuditEvent, RepairAudit, RepairPreview
from diagnostics.repairs import actions, requests
from diagnostics.repairs.actions import CleanUpOrphanedSchedulesAction, StartStrandedAction
from diagnostics.repairs.requests import (
    PreviewRefused,
    RepairBatch,
    RepairRequest,
    Result,
    Skip,
    SkipReasons,
    TargetStates,
)

CALL_TIMEOUT_SECONDS = 30.0
LOCK_TIMEOUT_SECONDS = 1  # a locked row must not delay the others
PREVIEW_LIFETIME = timedelta(minutes=5)
IDEMPOTENCY_LIFETIME = timedelta(hours=24)
LOCK_NAMESPACE = 0x72657061  # separates our advisory locks from others

REPAIR_ACTIONS: Mapping[str, actions.RepairAction] = {
    action.name: action
    for action in (
        actions.StopAction("stop"),
        actions.StopAllLongRunningAction("stop_all_long_running"),
        actions.RequeueAction("requeue"),
        actions.RequeueAllStuckAction("requeue_all_stuck"),
        actions.CleanUpOrphanedAction("cleanup_orphaned"),
        actions.CleanUpAllOrphanedAction("cleanup_all_orphaned"),
        actions.CleanUpAllStuckQueuedAction("cleanup_all_stuck_queued"),
        CleanUpOrphanedSchedulesAction("cleanup_orphaned_schedules"),
        StartStrandedAction("start_stranded"),
    )
}


def perform_repair(actor: RepairActor, name: str, fields: object, *, key: str = "") -> Result:
    """Perform a repair from unparsed fields. Refusals are recorded too."""
    action = REPAIR_ACTIONS.get(name)
    if action is None:
        raise NotFound
    try:
        with use_direct_connection():
            return _perform_or_refuse(actor, action, fields, key)
    except InternalError as problem:  # a database that takes no writes, such as a standby
        raise ServiceUnavailable from problem


def _perform_or_refuse(actor: RepairActor, action: actions.RepairAction, fields: object, key: str) -> Result:
    began = time.monotonic()
    try:
        request = requests.parse_repair_request(
            action.name, fields, takes_ids=action.takes_ids, takes_all=action.takes_all
        )
        with _lock_idempotency_key(actor, key):
            return _find_earlier_result(actor, request, key) or _perform_request(
                actor, action, request, began, key
            )
    except RequestRefused as refusal:
        entry = RepairRecord(
            action=action.name,
            outcome=AuditOutcome.REFUSED,
            reason=_extract_reason(fields),
            result={"code": refusal.code, "message": refusal.message},
            duration_ms=_elapsed_ms(began),
        )
        audit.record_repair(actor, entry)
        raise


def _perform_request(
    actor: RepairActor, action: actions.RepairAction, request: RepairRequest, began: float, key: str
) -> Result:
    ids, rest = _choose_ids(actor, action, request)
    batch = RepairBatch(
        ids=ids,
        previewed=request.preview_id is not None,
        deadline=began + CALL_TIMEOUT_SECONDS,
        now=queries.get_database_time(),
        reason=request.reason,
    )
    touched = [*ids, *action.find_touched(ids)]
    before = action.load_states(touched)
    if request.dry_run:
        reasons, after = action.find_objections(batch), before
    else:
        with _short_lock_timeout():
            reasons = action.perform(batch)
        after = action.load_states(touched)
    if request.preview_id is not None:
        rest = _count_remaining(action, ids)
    result = _build_result(request, ids, reasons, rest)
    if request.all_of_them:
        result = replace(result, preview_id=str(_create_preview(actor, action, ids, rest).pk))
    entry = RepairRecord(
        action=request.action,
        outcome=AuditOutcome.DRY_RUN if request.dry_run else AuditOutcome.DONE,
        reason=request.reason,
        filter=_describe_choice(request),
        ids=sorted({*ids, *_find_changed(before, after)}),
        changes=_build_changes(before, after, left_alone=reasons),
        result=result.to_dict(),
        duration_ms=_elapsed_ms(began),
        idempotency_key=key,
    )
    recorded = audit.record_repair(actor, entry)
    snapshot.clear_caches()
    return replace(result, audit_id=str(recorded.pk))


# --- Targets ---


def _choose_ids(
    actor: RepairActor, action: actions.RepairAction, request: RepairRequest
) -> tuple[Sequence[UUID], int]:
    if request.preview_id is not None:
        return _spend_preview(actor, request.action, request.preview_id, looks_only=request.dry_run), 0
    if request.all_of_them:
        ids, count = action.find_targets(settings.DIAG_ALL_MAX)
        return ids, max(0, count - len(ids))
    return request.ids, 0


def _spend_preview(actor: RepairActor, action: str, preview_id: UUID, *, looks_only: bool) -> Sequence[UUID]:
    """Use a preview up by one conditional update, so that only one of two requests acts. A dry run keeps it."""
    mine = RepairPreview.objects.filter(
        pk=preview_id,
        admin=actor.admin_id,
        action=action,
        used_at=None,
        created_at__gt=Now() - PREVIEW_LIFETIME,
    )
    if not (mine.exists() if looks_only else mine.update(used_at=Now())):
        raise PreviewRefused
    return RepairPreview.objects.values_list("ids", flat=True).get(pk=preview_id)


def _create_preview(
    actor: RepairActor, action: actions.RepairAction, ids: Sequence[UUID], rest: int
) -> RepairPreview:
    assert actor.admin_id is not None  # the reaper makes no previews
    return RepairPreview.objects.create(admin_id=actor.admin_id, action=action.name, ids=list(ids), rest=rest)


def _count_remaining(action: actions.RepairAction, ids: Sequence[UUID]) -> int:
    """Count the other matches, besides those that were just tried."""
    found, count = action.find_targets(settings.DIAG_ALL_MAX)
    return max(0, count - len(set(found) & set(ids)))


def _describe_choice(request: RepairRequest) -> dict[str, object]:
    shown: dict[str, object] = {"by": "ids"}
    if request.preview_id is not None:
        shown = {"by": "preview", "preview_id": str(request.preview_id)}
    elif request.all_of_them:
        shown = {"by": "condition"}
    return shown


# --- Results ---


def _build_result(request: RepairRequest, ids: Sequence[UUID], reasons: SkipReasons, rest: int) -> Result:
    skipped = [Skip(id=str(one), reason=reasons[one]) for one in ids if one in reasons]
    return Result(
        action=request.action,
        requested=len(ids),
        changed=len(ids) - len(skipped),
        skipped=skipped,
        remaining=rest,
        dry_run=request.dry_run,
    )


def _find_changed(before: TargetStates, after: TargetStates) -> list[UUID]:
    return [one for one, state in before.items() if one in after and after[one] != state]


def _build_changes(
    before: TargetStates, after: TargetStates, *, left_alone: SkipReasons
) -> list[TargetChange]:
    """List what this call changed, and nothing that others changed meanwhile."""
    return [
        TargetChange(id=one, before=before[one], after=after[one])
        for one in _find_changed(before, after)
        if one not in left_alone
    ]


def _elapsed_ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _extract_reason(fields: object) -> str:
    reason = fields.get("reason") if isinstance(fields, dict) else None
    return reason[:500].replace("\x00", "") if isinstance(reason, str) else ""


@contextmanager
def _short_lock_timeout() -> Iterator[None]:
    """Skip rows that somebody holds instead of waiting for them."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")


# --- Idempotency ---


@contextmanager
def _lock_idempotency_key(actor: RepairActor, key: str) -> Iterator[None]:
    """Make the second of two equal requests wait for the record of the first."""
    if not key:
        yield
        return
    named = f"{actor.admin_id}:{key}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [LOCK_NAMESPACE, named])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", [LOCK_NAMESPACE, named])


def _find_earlier_result(actor: RepairActor, request: RepairRequest, key: str) -> Result | None:
    """Return the result of the same request within the last day."""
    if not key:
        return None
    recorded = RepairAudit.objects.filter(
        admin_id=actor.admin_id, idempotency_key=key, at__gt=Now() - IDEMPOTENCY_LIFETIME
    ).exclude(outcome=AuditOutcome.REFUSED)
    before = recorded.order_by("-at").first()
    if before is None:
        return None
    result = replace(msgspec.convert(before.result, Result), audit_id=str(before.pk))
    if not _is_same_request(request, before, result):
        raise Conflict("This key was used for another request.", code="idempotency_conflict")
    return result


def _is_same_request(request: RepairRequest, before: AuditEvent, result: Result) -> bool:
    """Check that the earlier request was for the same action, reason and ids."""
    if (request.action, request.reason, request.dry_run) != (before.action, before.reason, result.dry_run):
        return False
    if request.ids and (len(request.ids) != result.requested or not set(request.ids) <= set(before.ids)):
        return False
    return bool(_describe_choice(request) == before.filter)
