"""Confirm and perform repairs from the dashboard: in a dialog with JavaScript, on a page without."""

from __future__ import annotations

from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from config.core.errors import RequestRefused
from copilot.chat import turn_selectors
from diagnostics import execution_list, turn_filters
from diagnostics.dashboard.decorators import can_see_email, get_actor, get_tab_url, render_tab, staff_only
from diagnostics.dashboard.tabs import TAB_ACTIONS, TAB_BY_SLUG, Tab, TabAction
from diagnostics.models import RepairPreview
from diagnostics.queries import open_snapshot
from diagnostics.repairs import requests, runner

SAMPLE_SIZE = 5
CONFIRM_COUNT_ABOVE = 20  # above this, the number has to be typed to confirm
DRY_RUN_REASON = "preview before acting"  # the reason of the dialog's dry run


@staff_only("diagnostics.repair")
@require_POST
def confirm_repair(request: HttpRequest) -> HttpResponse:
    action, ids, tab = _parse_request(request)
    return _render_confirmation(request, action, ids, tab)


@staff_only("diagnostics.repair")
@require_POST
def apply_repair(request: HttpRequest) -> HttpResponse:
    action, ids, tab = _parse_request(request)
    preview_id = request.POST.get("preview_id")
    if preview_id or len(ids) > CONFIRM_COUNT_ABOVE:
        dry_run = _dry_run(request, action, ids, preview_id)
        if isinstance(dry_run, RequestRefused):
            return _render_confirmation(request, action, ids, tab, refusal=dry_run.message)
        if dry_run.changed > CONFIRM_COUNT_ABOVE and request.POST.get("count", "").strip() != str(
            dry_run.changed
        ):
            return _render_confirmation(
                request, action, ids, tab, refusal=f"Type {dry_run.changed} to confirm the number of changes."
            )
    fields = {
        **_build_target_fields(action, ids, preview_id),
        "reason": request.POST.get("reason", ""),
        "confirm": True,
    }
    try:
        result = runner.perform_repair(get_actor(request), action.name, fields)
    except RequestRefused as refusal:
        return _render_confirmation(request, action, ids, tab, refusal=refusal.message)
    return render_tab(
        request,
        tab,
        "_result.html",
        {"action": action, "result": result, "back": _get_back_url(request, tab)},
    )


def _parse_request(request: HttpRequest) -> tuple[TabAction, list[str], Tab]:
    """Read the action and its ids: a row's own button names both, those above the table act on the ticked rows."""
    name, ids = request.POST.get("action", ""), request.POST.getlist("ids")
    if row_action := request.POST.get("one"):
        name, _, identifier = row_action.partition(":")
        ids = [identifier]
    tab = TAB_BY_SLUG.get(request.POST.get("tab", ""))
    action = TAB_ACTIONS.get(name)
    if tab is None or action is None or action not in tab.offered_actions:
        raise Http404
    return action, [] if action.all_of else list(dict.fromkeys(ids)), tab


def _render_confirmation(
    request: HttpRequest, action: TabAction, ids: list[str], tab: Tab, *, refusal: str = ""
) -> HttpResponse:
    """Show what would be changed now, by the same rules that will decide."""
    dry_run = _dry_run(request, action, ids, None)
    if isinstance(dry_run, RequestRefused):
        context: dict[str, object] = {"refusal": refusal or dry_run.message}
    else:
        context = _build_confirmation_context(request, action, ids, dry_run, tab) | {"refusal": refusal}
    context |= {
        "action": action,
        "ids": ids,
        "noun": "session" if action.of_sessions else tab.noun,
        "back": _get_back_url(request, tab),
        "reason": request.POST.get("reason", ""),
    }
    return render_tab(request, tab, "_confirm.html", context)


def _build_confirmation_context(
    request: HttpRequest, action: TabAction, ids: list[str], dry_run: requests.Result, tab: Tab
) -> dict[str, object]:
    skipped_ids = {skip.id for skip in dry_run.skipped}
    chosen = (
        _load_preview_ids(dry_run.preview_id)
        if dry_run.preview_id
        else [UUID(target_id) for target_id in ids]
    )
    changing = [target_id for target_id in chosen if str(target_id) not in skipped_ids]
    sample, owners = ([], 0) if tab.kind == "schedules" else _load_sample(request, action, changing)
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


def _dry_run(
    request: HttpRequest, action: TabAction, ids: list[str], preview_id: str | None
) -> requests.Result | RequestRefused:
    fields = {**_build_target_fields(action, ids, preview_id), "reason": DRY_RUN_REASON, "dry_run": True}
    try:
        return runner.perform_repair(get_actor(request), action.name, fields)
    except RequestRefused as refusal:
        return refusal


def _build_target_fields(action: TabAction, ids: list[str], preview_id: str | None) -> dict[str, object]:
    if not action.all_of:
        return {"ids": ids}
    return {"preview_id": preview_id} if preview_id else {}


def _get_back_url(request: HttpRequest, tab: Tab) -> str:
    """Return to the list with its filters, and never to another site."""
    back = request.POST.get("back", "")
    is_own = url_has_allowed_host_and_scheme(back, None) and back.startswith(get_tab_url(""))
    return back if is_own else get_tab_url(tab.slug)
