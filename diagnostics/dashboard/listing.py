"""What the tabs with tables show: executions, workers, schedules, and the record of repairs (D13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import HttpRequest, QueryDict
from django.urls import reverse
from pydantic import ValidationError

from config.core.staff_rights import SEE_AUDIT
from copilot.errors import InvalidRequest
from diagnostics import lists, snapshot, timeline, timetable
from diagnostics.api.executions import WantedPage
from diagnostics.dashboard.staffing import person, sees_email
from diagnostics.dashboard.tabs import ACTIONS, Part, Tab
from diagnostics.models import AuditSink

ROWS = 50
ONLY = "only"  # the part of a tab's list that an address names
Context = dict[str, object]
HEALING = ("take_over", "override_stop", "send_again", "expire", "start_stranded", "restore")  # by the reaper
RECORDED = tuple(dict.fromkeys((*ACTIONS, "reset_usage", *HEALING)))  # some are done by both
AUDIT_CATEGORIES = (
    "sign_in", "password", "email", "factor", "connection", "api_key", "account", "invitation", "setup_link", "sign_up",
    "role", "admin", "conversation", "export", "audit", "repair",
)  # fmt: skip
OUTCOMES = {"": "All", "done": "Done", "refused": "Refused", "dry_run": "Looked at"}
STATUSES = ("queued", "running", "waiting", "succeeded", "failed", "cancelled")
ORIGINS = ("web", "api", "schedule", "goal", "parent", "telegram", "discord", "slack")


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    label: str
    value: str = ""
    kind: str = ""
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()


def _span(name: str, label: str) -> tuple[Field, Field]:
    return (
        Field(name=f"{name}_from", label=f"{label} from (UTC)", kind="datetime-local"),
        Field(name=f"{name}_to", label=f"{label} until (UTC)", kind="datetime-local"),
    )


FIELDS = (
    Field(name="q", label="Id", hint="turn or session"),
    Field(name="user", label="User", hint="id or e-mail"),
    Field(name="kind", label="Kind", choices=(("turn", "turn"), ("scheduled_run", "scheduled run"))),
    Field(name="origin", label="Origin", choices=tuple((origin, origin) for origin in ORIGINS)),
    Field(name="worker", label="Worker"),
    *_span("created", "Created"),
    *_span("started", "Started"),
)
SESSIONS_FIELDS = FIELDS[:2]  # a session has neither kind nor worker
STATUS_FIELD = Field(name="status", label="Status", choices=tuple((status, status) for status in STATUSES))
FAILED_FIELDS = (
    *_span("ended", "Ended"),
    Field(name="failure_code", label="Code"),
    Field(name="hours", label="Hours back", kind="number", hint="24"),
)


# --- executions --------------------------------------------------------------------------------------


def executions(request: HttpRequest, tab: Tab) -> Context:
    """Raises InvalidRequest, which names the parameter."""
    given = {name: text for name, text in _texts(request.GET).items() if text and name not in ("page", ONLY)}
    page, part = _page(request.GET), part_of(tab, request.GET)
    wanted = _wanted(part.condition if part else tab.condition, given, page)
    found = lists.page(wanted.filters(), wanted.part(), see_email=sees_email(request))
    may_see_users = person(request).has_perm("auth.view_user")
    return {
        "filters": fields(tab, request.GET),
        "filtered": bool(given),
        "actions": part.actions if part and part.of_sessions else tab.actions,
        "noun": "session" if part and part.of_sessions else tab.noun,
        "items": [
            item(row, may_see_users=may_see_users, of_sessions=bool(part and part.of_sessions))
            for row in found.results
        ],
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "degraded": found.degraded,
        "back": request.get_full_path(),
        "about": part.about if part else tab.about,
        "parts": parts(tab, part),
        "only": part.condition if part else "",
        "csv": _csv(wanted.condition, given),
        **pages(request.GET, page, found.total),
    }


def part_of(tab: Tab, given: QueryDict) -> Part | None:
    """The narrower list that the address names."""
    only = given.get(ONLY, "")
    chosen = next((part for part in tab.parts if part.condition == only), None)
    if only and chosen is None:
        raise InvalidRequest(f"{ONLY}: not a part of this list.")
    return chosen


def parts(tab: Tab, chosen: Part | None) -> list[Context]:
    counted = snapshot.summary() if tab.parts else None
    whole = {"title": "All", "link": "?", "chosen": chosen is None, "count": None}
    return [whole] * bool(tab.parts) + [
        {
            "title": part.title,
            "link": f"?{urlencode({ONLY: part.condition})}",
            "chosen": part is chosen,
            "count": getattr(counted, part.counted_as),
        }
        for part in tab.parts
    ]


def _csv(condition: str, given: dict[str, str]) -> str:
    """The same list as a file, by the door that programs use."""
    asked = {name: text for name, text in _zoned(given).items() if name != "order"}
    return f"{reverse('diagnostics_executions_file')}?{urlencode({'condition': condition, **asked})}"


def fields(tab: Tab, given: QueryDict) -> list[Field]:
    offered: tuple[Field, ...] = FIELDS
    if tab.shows_failure:
        offered += FAILED_FIELDS
    if tab.mixed:
        offered += (STATUS_FIELD,)
    if any(part.of_sessions for part in tab.parts if part.condition == given.get(ONLY)):
        offered = SESSIONS_FIELDS
    return [Field(**{**asdict(field), "value": given.get(field.name, "")}) for field in offered]


def _zoned(given: dict[str, str]) -> dict[str, str]:
    """A field of the page knows no zone: what it says is UTC."""
    return {
        name: f"{value}Z" if name.endswith(("_from", "_to")) and _is_local(value) else value
        for name, value in given.items()
    }


def _wanted(condition: str, given: dict[str, str], page: int) -> WantedPage:
    allowed = set(WantedPage.model_fields) - {"condition", "limit", "offset"}
    if unknown := sorted(set(given) - allowed):
        raise InvalidRequest(f"{unknown[0][:50]}: not a filter of this list.")
    try:
        return WantedPage.model_validate(
            {**_zoned(given), "condition": condition, "limit": ROWS, "offset": (page - 1) * ROWS}
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


def item(row: lists.Execution, *, may_see_users: bool, of_sessions: bool = False) -> Context:
    """One without an id is a session in which no turn ever ran; of sessions, they are what is acted on."""
    return {
        **asdict(row),
        "target": row.session_id if of_sessions else row.id,
        "link": reverse("diagnostics:execution", args=[row.id]) if row.id else "",
        "turn_link": reverse("admin:copilot_turn_change", args=[row.id]) if row.id else "",
        "session_link": reverse("admin:copilot_session_change", args=[row.session_id]),
        "user_link": reverse("admin:auth_user_change", args=[row.user_id]) if may_see_users else "",
    }


# --- the others --------------------------------------------------------------------------------------


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
    page, given = _page(request.GET), _texts(request.GET)
    wanted = audit_filter(request)
    found = timeline.audits(wanted, limit=ROWS, offset=(page - 1) * ROWS)
    rest = {name: text for name, text in given.items() if text and name not in ("page", ONLY, "id")}
    return {
        "only": wanted.outcome,
        "parts": [
            {
                "title": title,
                "link": f"?{urlencode({**rest, **({ONLY: name} if name else {})})}",
                "chosen": name == wanted.outcome,
            }
            for name, title in OUTCOMES.items()
        ],
        "filters": _audit_fields(given, everything=wanted.everything),
        "filtered": bool(rest),
        "items": found.results,
        "chosen": given.get("id", ""),
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "everything": wanted.everything,
        "sinks": list(AuditSink.objects.filter(failures__gt=0).order_by("name")),
        "csv": f"{reverse('diagnostics:audit_file')}?{urlencode({**rest, ONLY: wanted.outcome})}",
        **pages(request.GET, page, found.total),
    }


def audit_filter(request: HttpRequest) -> timeline.AuditFilter:
    """Raises InvalidRequest, which names the parameter."""
    given = _texts(request.GET)
    if any("\x00" in text for text in given.values()):
        raise InvalidRequest("No name has a NUL in it.")
    if given.get(ONLY, "") not in OUTCOMES:
        raise InvalidRequest(f"{ONLY}: not a part of this list.")
    user = given.get("user", "")
    if user and not lists.is_id(user):
        raise InvalidRequest("user: a number.")
    return timeline.AuditFilter(
        everything=person(request).has_perm(SEE_AUDIT),
        category=given.get("category", "")[:20],
        actor=given.get("actor", "")[:150],
        action=given.get("action", "")[:40],
        outcome=given.get(ONLY, ""),
        user_id=int(user) if user else None,
        since=_moment("at_from", given.get("at_from", "")),
        until=_moment("at_to", given.get("at_to", "")),
    )


def _audit_fields(given: dict[str, str], *, everything: bool) -> list[Field]:
    repairs = [(name, name.replace("_", " ")) for name in RECORDED]
    fields = [
        Field(name="actor", label="Who", hint="a user name, system or reaper"),
        Field(name="action", label="Action", choices=repairs),
    ]
    if everything:
        areas = [(name, name.replace("_", " ")) for name in AUDIT_CATEGORIES]
        fields = [
            Field(name="category", label="Area", choices=areas),
            Field(name="actor", label="Who", hint="a user name, system or reaper"),
            Field(name="user", label="User id", hint="who did it, or whom it was about"),
            Field(name="action", label="Action", hint="such as role.changed"),
        ]
    fields += _span("at", "Time")
    return [Field(**{**asdict(field), "value": given.get(field.name, "")}) for field in fields]


def _moment(name: str, text: str) -> datetime | None:
    """A field of the page knows no zone: what it says is UTC."""
    if not text:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{name}: a date and time such as 2026-11-18T09:30.") from None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


# --- pages -------------------------------------------------------------------------------------------


def _page(given: QueryDict) -> int:
    text = given.get("page", "1")
    most = lists.MOST_OFFSET // ROWS
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
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
