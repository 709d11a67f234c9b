"""Confirm and perform repairs from the dashboard: in a dialog with JavaScript, on a page without."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from config.core.errors import RequestRefused
from copilot.chat import turn_selectors
from diagnostics import execution_list, turn_filters
from diagnostics.dashboard.decorators import can_see_email, get_actor, render_tab, staff_only
from diagnostics.dashboard.forms import RepairConfirmationForm, RepairTarget, RepairTargetForm
from diagnostics.dashboard.tabs import TabAction
from diagnostics.models import RepairPreview
from diagnostics.queries import open_snapshot
from diagnostics.repairs import requests, runner

SAMPLE_SIZE = 5
CONFIRM_COUNT_ABOVE = 20  # above this, the number has to be typed to confirm
DRY_RUN_REASON = "preview before acting"  # the reason of the dialog's dry run


@staff_only("diagnostics.repair")
@require_POST
def confirm_repair(request: HttpRequest) -> HttpResponse:
    target = RepairTargetForm.from_request(request).get_target()
    return _render_confirmation(request, target, RepairConfirmationForm())


@staff_only("diagnostics.repair")
@require_POST
def apply_repair(request: HttpRequest) -> HttpResponse:
    target = RepairTargetForm.from_request(request).get_target()
    form = RepairConfirmationForm.from_request(request)
    if form.is_valid() and (target.preview_id or len(target.ids) > CONFIRM_COUNT_ABOVE):
        dry_run = _dry_run(request, target)
        if isinstance(dry_run, RequestRefused):
            form.add_refusal(dry_run)
        elif dry_run.changed > CONFIRM_COUNT_ABOVE:
            form.check_count(dry_run.changed)
    if not form.is_valid():
        return _render_confirmation(request, target, form)
    fields = {**_build_target_fields(target), "reason": form.cleaned_data["reason"], "confirm": True}
    try:
        result = runner.perform_repair(get_actor(request), target.action.name, fields)
    except RequestRefused as refusal:
        form.add_refusal(refusal)
        return _render_confirmation(request, target, form)
    context = {"action": target.action, "result": result, "back": target.back}
    return render_tab(request, target.tab, "_result.html", context)


def _render_confirmation(
    request: HttpRequest, target: RepairTarget, form: RepairConfirmationForm
) -> HttpResponse:
    """Show what would be changed now, by the same rules that will decide."""
    dry_run = _dry_run(request, target._replace(preview_id=""))
    if isinstance(dry_run, RequestRefused):
        context: dict[str, object] = {"refusal": "" if form.errors else dry_run.message}
    else:
        context = _build_confirmation_context(request, target, dry_run)
        form.fields["count"].widget.attrs["pattern"] = str(dry_run.changed)
    context |= {
        "action": target.action,
        "ids": target.ids,
        "noun": "session" if target.action.of_sessions else target.tab.noun,
        "back": target.back,
        "form": form,
    }
    return render_tab(request, target.tab, "_confirm.html", context)


def _build_confirmation_context(
    request: HttpRequest, target: RepairTarget, dry_run: requests.Result
) -> dict[str, object]:
    skipped_ids = {skip.id for skip in dry_run.skipped}
    chosen = (
        _load_preview_ids(dry_run.preview_id)
        if dry_run.preview_id
        else [UUID(target_id) for target_id in target.ids]
    )
    changing = [target_id for target_id in chosen if str(target_id) not in skipped_ids]
    sample, owners = (
        ([], 0) if target.tab.kind == "schedules" else _load_sample(request, target.action, changing)
    )
    return {
        "changing": dry_run.changed,
        "skipped": dry_run.skipped,
        "remaining": dry_run.remaining,
        "preview_id": dry_run.preview_id,
        "must_count": dry_run.changed > CONFIRM_COUNT_ABOVE,
        "sample": sample,
        "owners": owners,
    }


def _load_preview_ids(preview_id: str) -> list[UUID]:
    return list(RepairPreview.objects.values_list("ids", flat=True).get(pk=preview_id))


def _load_sample(
    request: HttpRequest, action: TabAction, ids: list[UUID]
) -> tuple[list[execution_list.Execution], int]:
    """Load the oldest few rows that will be changed, and count the people they belong to."""
    if action.of_sessions:
        return execution_list.list_session_rows(ids[:SAMPLE_SIZE], see_email=can_see_email(request)), len(
            set(turn_selectors.get_session_owner_ids(ids).values())
        )
    with open_snapshot() as now:
        found = sorted(
            turn_selectors.describe_turns(turn_selectors.turns_by_id(ids)), key=lambda row: row.created_at
        )
        moment = turn_filters.judge_running_turns(now)
        sample, _ = execution_list.build_executions(
            found[:SAMPLE_SIZE], moment, see_email=can_see_email(request)
        )
    return sample, len({row.user_id for row in found})


def _dry_run(request: HttpRequest, target: RepairTarget) -> requests.Result | RequestRefused:
    fields = {**_build_target_fields(target), "reason": DRY_RUN_REASON, "dry_run": True}
    try:
        return runner.perform_repair(get_actor(request), target.action.name, fields)
    except RequestRefused as refusal:
        return refusal


def _build_target_fields(target: RepairTarget) -> dict[str, object]:
    if not target.action.all_of:
        return {"ids": target.ids}
    return {"preview_id": target.preview_id} if target.preview_id else {}
