"""Asks before anything is changed, then has it repaired: a dialog with JavaScript, a page without (D8, D13)."""

from __future__ import annotations

from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from copilot.errors import Refused
from copilot.queries import executions
from diagnostics import conditions, lists, repairs
from diagnostics.dashboard.staffing import actor, sees_email, show, staff_only, url_of
from diagnostics.dashboard.tabs import ACTIONS, BY_SLUG, Action, Tab
from diagnostics.models import RepairPreview
from diagnostics.reading import one_moment

SAMPLE = 5
COUNTED_ABOVE = 20  # more than this many, and whoever confirms types how many
LOOKED = "looked at before acting"  # the reason of the dry run that a dialog shows


@staff_only("diagnostics.repair")
@require_POST
def confirm(request: HttpRequest) -> HttpResponse:
    action, ids, tab = _asked(request)
    return _ask(request, action, ids, tab)


@staff_only("diagnostics.repair")
@require_POST
def apply(request: HttpRequest) -> HttpResponse:
    action, ids, tab = _asked(request)
    preview = request.POST.get("preview_id")
    if preview or len(ids) > COUNTED_ABOVE:
        looked = _dry_run(request, action, ids, preview)
        if isinstance(looked, Refused):
            return _ask(request, action, ids, tab, refusal=looked.message)
        if looked.changed > COUNTED_ABOVE and request.POST.get("count", "").strip() != str(looked.changed):
            return _ask(
                request, action, ids, tab, refusal=f"Type {looked.changed} to confirm how many are changed."
            )
    fields = {**_chosen(action, ids, preview), "reason": request.POST.get("reason", ""), "confirm": True}
    try:
        result = repairs.perform(actor(request), action.name, fields)
    except Refused as refusal:
        return _ask(request, action, ids, tab, refusal=refusal.message)
    return show(
        request, tab, "_result.html", {"action": action, "result": result, "back": _back(request, tab)}
    )


def _asked(request: HttpRequest) -> tuple[Action, list[str], Tab]:
    """The button of one row says both; the buttons above the table act on the rows that are ticked."""
    name, ids = request.POST.get("action", ""), request.POST.getlist("ids")
    if one := request.POST.get("one"):
        name, _, identifier = one.partition(":")
        ids = [identifier]
    tab = BY_SLUG.get(request.POST.get("tab", ""))
    action = ACTIONS.get(name)
    if tab is None or action is None or action not in tab.offered:
        raise Http404
    return action, [] if action.all_of else list(dict.fromkeys(ids)), tab


def _ask(
    request: HttpRequest, action: Action, ids: list[str], tab: Tab, *, refusal: str = ""
) -> HttpResponse:
    """What would be changed now, by the very rules that will decide."""
    looked = _dry_run(request, action, ids, None)
    if isinstance(looked, Refused):
        context: dict[str, object] = {"refusal": refusal or looked.message}
    else:
        context = _told(request, action, ids, looked, tab) | {"refusal": refusal}
    context |= {
        "action": action,
        "ids": ids,
        "noun": "session" if action.of_sessions else tab.noun,
        "back": _back(request, tab),
        "reason": request.POST.get("reason", ""),
    }
    return show(request, tab, "_confirm.html", context)


def _told(
    request: HttpRequest, action: Action, ids: list[str], looked: repairs.Result, tab: Tab
) -> dict[str, object]:
    left_alone = {skip.id for skip in looked.skipped}
    chosen = _previewed(looked.preview_id) if looked.preview_id else [UUID(one) for one in ids]
    changing = [one for one in chosen if str(one) not in left_alone]
    sample, owners = ([], 0) if tab.kind == "schedules" else _rows(request, action, changing)
    return {
        "changing": looked.changed,
        "skipped": looked.skipped,
        "remaining": looked.remaining,
        "preview_id": looked.preview_id,
        "must_count": looked.changed > COUNTED_ABOVE,
        "sample": sample,
        "owners": owners,
    }


def _previewed(preview_id: str) -> list[UUID]:
    return list(RepairPreview.objects.values_list("ids", flat=True).get(pk=preview_id))


def _rows(request: HttpRequest, action: Action, ids: list[UUID]) -> tuple[list[lists.Execution], int]:
    """The oldest few of those that will be changed, and how many people they belong to."""
    if action.of_sessions:
        return lists.of_sessions(ids[:SAMPLE], see_email=sees_email(request)), len(
            set(executions.owners_of(ids).values())
        )
    with one_moment() as now:
        found = sorted(executions.described(executions.among(ids)), key=lambda row: row.created_at)
        moment = conditions.judged(now)
        sample, _ = lists.shown(found[:SAMPLE], moment, see_email=sees_email(request))
    return sample, len({row.user_id for row in found})


def _dry_run(
    request: HttpRequest, action: Action, ids: list[str], preview: str | None
) -> repairs.Result | Refused:
    fields = {**_chosen(action, ids, preview), "reason": LOOKED, "dry_run": True}
    try:
        return repairs.perform(actor(request), action.name, fields)
    except Refused as refusal:
        return refusal


def _chosen(action: Action, ids: list[str], preview: str | None) -> dict[str, object]:
    if not action.all_of:
        return {"ids": ids}
    return {"preview_id": preview} if preview else {}


def _back(request: HttpRequest, tab: Tab) -> str:
    """Where the list was, with its filters; nowhere else."""
    back = request.POST.get("back", "")
    ours = url_has_allowed_host_and_scheme(back, None) and back.startswith(url_of(""))
    return back if ours else url_of(tab.slug)
