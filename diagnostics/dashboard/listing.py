"""What the tabs with tables show: executions, workers, schedules, and the record of repairs (D13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from urllib.parse import urlencode

from django.http import HttpRequest, QueryDict
from django.urls import reverse
from pydantic import ValidationError

from copilot.errors import InvalidRequest
from diagnostics import inventory, lists, timeline, timetable
from diagnostics.api.executions import WantedPage
from diagnostics.dashboard.staffing import person, sees_email
from diagnostics.dashboard.tabs import ACTIONS, Tab

ROWS = 50
Context = dict[str, object]
ORIGINS = ("web", "api", "schedule", "goal", "parent", "telegram", "discord", "slack")


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    label: str
    value: str = ""
    kind: str = ""
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()


FIELDS = (
    Field(name="q", label="Id", hint="turn or session"),
    Field(name="user", label="User", hint="id or e-mail"),
    Field(name="kind", label="Kind", choices=(("turn", "turn"), ("scheduled_run", "scheduled run"))),
    Field(name="origin", label="Origin", choices=tuple((origin, origin) for origin in ORIGINS)),
    Field(name="worker", label="Worker"),
    Field(name="created_from", label="Created from (UTC)", kind="datetime-local"),
    Field(name="created_to", label="until (UTC)", kind="datetime-local"),
)
FAILED_FIELDS = (
    Field(name="failure_code", label="Code"),
    Field(name="hours", label="Hours back", kind="number", hint="24"),
)


# --- executions --------------------------------------------------------------------------------------


def executions(request: HttpRequest, tab: Tab) -> Context:
    """Raises InvalidRequest, which names the parameter."""
    given = {name: text for name, text in _texts(request.GET).items() if text and name != "page"}
    page = _page(request.GET)
    wanted = _wanted(tab, given, page)
    found = lists.page(wanted.filters(), wanted.part(), see_email=sees_email(request))
    may_see_users = person(request).has_perm("auth.view_user")
    return {
        "filters": fields(tab, request.GET),
        "filtered": bool(given),
        "items": [item(row, may_see_users=may_see_users) for row in found.results],
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "degraded": found.degraded,
        "back": request.get_full_path(),
        **pages(request.GET, page, found.total),
    }


def fields(tab: Tab, given: QueryDict) -> list[Field]:
    offered = (*FIELDS, *FAILED_FIELDS) if tab.shows_failure else FIELDS
    return [Field(**{**asdict(field), "value": given.get(field.name, "")}) for field in offered]


def _wanted(tab: Tab, given: dict[str, str], page: int) -> WantedPage:
    allowed = {field.name for field in (*FIELDS, *FAILED_FIELDS)} | {"session", "status", "order"}
    if unknown := sorted(set(given) - allowed):
        raise InvalidRequest(f"{unknown[0][:50]}: not a filter of this list.")
    zoned = {
        name: f"{value}Z" if name.endswith(("_from", "_to")) and _is_local(value) else value
        for name, value in given.items()
    }
    try:
        return WantedPage.model_validate(
            {**zoned, "condition": tab.condition, "limit": ROWS, "offset": (page - 1) * ROWS}
        )
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
        raise InvalidRequest(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}.") from problem


def _texts(given: QueryDict) -> dict[str, str]:
    return {name: str(value).strip() for name, value in given.items()}


def _is_local(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is None
    except ValueError:
        return False


def item(row: lists.Execution, *, may_see_users: bool) -> Context:
    return {
        **asdict(row),
        "link": reverse("diagnostics:execution", args=[row.id]),
        "turn_link": reverse("admin:copilot_turn_change", args=[row.id]),
        "session_link": reverse("admin:copilot_session_change", args=[row.session_id]),
        "user_link": reverse("admin:auth_user_change", args=[row.user_id]) if may_see_users else "",
    }


# --- the others --------------------------------------------------------------------------------------


def workers(request: HttpRequest, tab: Tab) -> Context:
    return {"items": inventory.workers()}


def schedules(request: HttpRequest, tab: Tab) -> Context:
    page = _page(request.GET)
    found = timetable.page(
        orphaned=tab.condition == "orphaned",
        limit=ROWS,
        offset=(page - 1) * ROWS,
        see_email=sees_email(request),
    )
    return {
        "summary": timetable.summary(),
        "items": found.results,
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "back": request.get_full_path(),
        **pages(request.GET, page, found.total),
    }


def audit(request: HttpRequest, tab: Tab) -> Context:
    page = _page(request.GET)
    actor, action = request.GET.get("actor", "")[:150], request.GET.get("action", "")[:40]
    found = timeline.audits(actor=actor, action=action, limit=ROWS, offset=(page - 1) * ROWS)
    return {
        "filters": [
            Field(name="actor", label="Who", value=actor, hint="a user name, or reaper"),
            Field(
                name="action",
                label="Action",
                value=action,
                choices=[(name, name.replace("_", " ")) for name in (*ACTIONS, "reset_usage")],
            ),
        ],
        "filtered": bool(actor or action),
        "items": found.results,
        "chosen": request.GET.get("id", ""),
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        **pages(request.GET, page, found.total),
    }


# --- pages -------------------------------------------------------------------------------------------


def _page(given: QueryDict) -> int:
    text = given.get("page", "1")
    most = lists.MOST_OFFSET // ROWS
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise InvalidRequest(f"page: a number from 1 to {most}.")
    return int(text)


def pages(given: QueryDict, page: int, total: int) -> Context:
    last = max(1, -(-total // ROWS))
    rest = {name: value for name, value in given.items() if name != "page"}

    def at(number: int) -> str:
        return "?" + urlencode({**rest, "page": number})

    return {
        "page": page,
        "pages": last,
        "newer": at(page - 1) if page > 1 else "",
        "older": at(page + 1) if page < last else "",
    }
