"""What the tabs with tables show: executions, workers, schedules, and the record of repairs (D13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import HttpRequest, QueryDict
from django.urls import reverse
from pydantic import ValidationError

from config.core.errors import InvalidRequest
from config.core.staff_permissions import SEE_AUDIT
from diagnostics import execution_list, schedules, snapshot, timeline
from diagnostics.api.executions import ExecutionPageQuery
from diagnostics.dashboard.decorators import can_see_email, get_staff_user
from diagnostics.dashboard.tabs import TAB_ACTIONS, Tab, TabPart
from diagnostics.models import AuditSink

PAGE_SIZE = 50
PART_PARAMETER = "only"  # the part of a tab's list that an address names
TabContext = dict[str, object]
REAPER_ACTIONS = (
    "take_over",
    "override_stop",
    "send_again",
    "expire",
    "start_stranded",
    "restore",
)  # by the reaper
AUDITED_ACTIONS = tuple(
    dict.fromkeys((*TAB_ACTIONS, "reset_usage", *REAPER_ACTIONS))
)  # some are done by both
AUDIT_CATEGORIES = (
    "sign_in", "password", "email", "factor", "connection", "api_key", "account", "invitation", "setup_link", "sign_up",
    "role", "admin", "conversation", "export", "audit", "repair",
)  # fmt: skip
AUDIT_OUTCOMES = {"": "All", "done": "Done", "refused": "Refused", "dry_run": "Looked at"}
STATUSES = ("queued", "running", "waiting", "succeeded", "failed", "cancelled")
ORIGINS = ("web", "api", "schedule", "goal", "parent", "telegram", "discord", "slack")


@dataclass(frozen=True, kw_only=True)
class FilterField:
    name: str
    label: str
    value: str = ""
    kind: str = ""
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()


def _build_range_fields(name: str, label: str) -> tuple[FilterField, FilterField]:
    return (
        FilterField(name=f"{name}_from", label=f"{label} from (UTC)", kind="datetime-local"),
        FilterField(name=f"{name}_to", label=f"{label} until (UTC)", kind="datetime-local"),
    )


EXECUTION_FIELDS = (
    FilterField(name="q", label="Id", hint="turn or session"),
    FilterField(name="user", label="User", hint="id or e-mail"),
    FilterField(name="kind", label="Kind", choices=(("turn", "turn"), ("scheduled_run", "scheduled run"))),
    FilterField(name="origin", label="Origin", choices=tuple((origin, origin) for origin in ORIGINS)),
    FilterField(name="worker", label="Worker"),
    *_build_range_fields("created", "Created"),
    *_build_range_fields("started", "Started"),
)
SESSIONS_FIELDS = EXECUTION_FIELDS[:2]  # a session has neither kind nor worker
STATUS_FIELD = FilterField(
    name="status", label="Status", choices=tuple((status, status) for status in STATUSES)
)
FAILED_FIELDS = (
    *_build_range_fields("ended", "Ended"),
    FilterField(name="failure_code", label="Code"),
    FilterField(name="hours", label="Hours back", kind="number", hint="24"),
)


# --- executions --------------------------------------------------------------------------------------


def build_executions_context(request: HttpRequest, tab: Tab) -> TabContext:
    """Raises InvalidRequest, which names the parameter."""
    given = {
        name: text
        for name, text in _strip_values(request.GET).items()
        if text and name not in ("page", PART_PARAMETER)
    }
    page, part = _parse_page(request.GET), find_tab_part(tab, request.GET)
    wanted = _parse_query(part.condition if part else tab.condition, given, page)
    found = execution_list.get_page(wanted.to_filters(), wanted.to_slice(), see_email=can_see_email(request))
    may_see_users = get_staff_user(request).has_perm("auth.view_user")
    return {
        "filters": build_filter_fields(tab, request.GET),
        "filtered": bool(given),
        "actions": part.actions if part and part.of_sessions else tab.actions,
        "noun": "session" if part and part.of_sessions else tab.noun,
        "items": [
            build_execution_row(row, may_see_users=may_see_users, of_sessions=bool(part and part.of_sessions))
            for row in found.results
        ],
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "degraded": found.degraded,
        "back": request.get_full_path(),
        "about": part.about if part else tab.about,
        "parts": build_part_links(tab, part),
        "only": part.condition if part else "",
        "csv": _build_csv_url(wanted.condition, given),
        **build_page_links(request.GET, page, found.total),
    }


def find_tab_part(tab: Tab, given: QueryDict) -> TabPart | None:
    """The narrower list that the address names."""
    only = given.get(PART_PARAMETER, "")
    chosen = next((part for part in tab.parts if part.condition == only), None)
    if only and chosen is None:
        raise InvalidRequest(f"{PART_PARAMETER}: not a part of this list.")
    return chosen


def build_part_links(tab: Tab, chosen: TabPart | None) -> list[TabContext]:
    counted = snapshot.get_summary() if tab.parts else None
    whole = {"title": "All", "link": "?", "chosen": chosen is None, "count": None}
    return [whole] * bool(tab.parts) + [
        {
            "title": part.title,
            "link": f"?{urlencode({PART_PARAMETER: part.condition})}",
            "chosen": part is chosen,
            "count": getattr(counted, part.figure_name),
        }
        for part in tab.parts
    ]


def _build_csv_url(condition: str, given: dict[str, str]) -> str:
    """The same list as a file, by the door that programs use."""
    asked = {name: text for name, text in _add_utc_suffix(given).items() if name != "order"}
    return f"{reverse('diagnostics_executions_file')}?{urlencode({'condition': condition, **asked})}"


def build_filter_fields(tab: Tab, given: QueryDict) -> list[FilterField]:
    offered: tuple[FilterField, ...] = EXECUTION_FIELDS
    if tab.shows_failure:
        offered += FAILED_FIELDS
    if tab.mixed:
        offered += (STATUS_FIELD,)
    if any(part.of_sessions for part in tab.parts if part.condition == given.get(PART_PARAMETER)):
        offered = SESSIONS_FIELDS
    return [FilterField(**{**asdict(field), "value": given.get(field.name, "")}) for field in offered]


def _add_utc_suffix(given: dict[str, str]) -> dict[str, str]:
    """A field of the page knows no zone: what it says is UTC."""
    return {
        name: f"{value}Z" if name.endswith(("_from", "_to")) and _is_naive_datetime(value) else value
        for name, value in given.items()
    }


def _parse_query(condition: str, given: dict[str, str], page: int) -> ExecutionPageQuery:
    allowed = set(ExecutionPageQuery.model_fields) - {"condition", "limit", "offset"}
    if unknown := sorted(set(given) - allowed):
        raise InvalidRequest(f"{unknown[0][:50]}: not a filter of this list.")
    try:
        return ExecutionPageQuery.model_validate(
            {
                **_add_utc_suffix(given),
                "condition": condition,
                "limit": PAGE_SIZE,
                "offset": (page - 1) * PAGE_SIZE,
            }
        )
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
        raise InvalidRequest(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}.") from problem


def _strip_values(given: QueryDict) -> dict[str, str]:
    return {name: str(value).strip() for name, value in given.items()}


def _is_naive_datetime(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is None
    except ValueError:
        return False


def build_execution_row(
    row: execution_list.Execution, *, may_see_users: bool, of_sessions: bool = False
) -> TabContext:
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


def build_schedules_context(request: HttpRequest, tab: Tab) -> TabContext:
    page = _parse_page(request.GET)
    found = schedules.list_schedules(
        orphaned=tab.condition == "orphaned",
        limit=PAGE_SIZE,
        offset=(page - 1) * PAGE_SIZE,
        see_email=can_see_email(request),
    )
    return {
        "summary": schedules.get_schedule_summary(),
        "items": found.results,
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "back": request.get_full_path(),
        **build_page_links(request.GET, page, found.total),
    }


def build_audit_context(request: HttpRequest, tab: Tab) -> TabContext:
    page, given = _parse_page(request.GET), _strip_values(request.GET)
    wanted = parse_audit_filter(request)
    found = timeline.list_audit_events(wanted, limit=PAGE_SIZE, offset=(page - 1) * PAGE_SIZE)
    rest = {name: text for name, text in given.items() if text and name not in ("page", PART_PARAMETER, "id")}
    return {
        "only": wanted.outcome,
        "parts": [
            {
                "title": title,
                "link": f"?{urlencode({**rest, **({PART_PARAMETER: name} if name else {})})}",
                "chosen": name == wanted.outcome,
            }
            for name, title in AUDIT_OUTCOMES.items()
        ],
        "filters": _build_audit_fields(given, everything=wanted.everything),
        "filtered": bool(rest),
        "items": found.results,
        "chosen": given.get("id", ""),
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "everything": wanted.everything,
        "sinks": list(AuditSink.objects.filter(failures__gt=0).order_by("name")),
        "csv": f"{reverse('diagnostics:audit_file')}?{urlencode({**rest, PART_PARAMETER: wanted.outcome})}",
        **build_page_links(request.GET, page, found.total),
    }


def parse_audit_filter(request: HttpRequest) -> timeline.AuditFilter:
    """Raises InvalidRequest, which names the parameter."""
    given = _strip_values(request.GET)
    if any("\x00" in text for text in given.values()):
        raise InvalidRequest("No name has a NUL in it.")
    if given.get(PART_PARAMETER, "") not in AUDIT_OUTCOMES:
        raise InvalidRequest(f"{PART_PARAMETER}: not a part of this list.")
    user = given.get("user", "")
    if user and not execution_list.is_user_id(user):
        raise InvalidRequest("user: a number.")
    return timeline.AuditFilter(
        everything=get_staff_user(request).has_perm(SEE_AUDIT),
        category=given.get("category", "")[:20],
        actor=given.get("actor", "")[:150],
        action=given.get("action", "")[:40],
        outcome=given.get(PART_PARAMETER, ""),
        user_id=int(user) if user else None,
        since=_parse_moment("at_from", given.get("at_from", "")),
        until=_parse_moment("at_to", given.get("at_to", "")),
    )


def _build_audit_fields(given: dict[str, str], *, everything: bool) -> list[FilterField]:
    repairs = [(name, name.replace("_", " ")) for name in AUDITED_ACTIONS]
    fields = [
        FilterField(name="actor", label="Who", hint="a user name, system or reaper"),
        FilterField(name="action", label="Action", choices=repairs),
    ]
    if everything:
        areas = [(name, name.replace("_", " ")) for name in AUDIT_CATEGORIES]
        fields = [
            FilterField(name="category", label="Area", choices=areas),
            FilterField(name="actor", label="Who", hint="a user name, system or reaper"),
            FilterField(name="user", label="User id", hint="who did it, or whom it was about"),
            FilterField(name="action", label="Action", hint="such as role.changed"),
        ]
    fields += _build_range_fields("at", "Time")
    return [FilterField(**{**asdict(field), "value": given.get(field.name, "")}) for field in fields]


def _parse_moment(name: str, text: str) -> datetime | None:
    """A field of the page knows no zone: what it says is UTC."""
    if not text:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{name}: a date and time such as 2026-11-18T09:30.") from None
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


# --- pages -------------------------------------------------------------------------------------------


def _parse_page(given: QueryDict) -> int:
    text = given.get("page", "1")
    most = execution_list.MAX_OFFSET // PAGE_SIZE
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise InvalidRequest(f"page: a number from 1 to {most}.")
    return int(text)


def build_page_links(given: QueryDict, page: int, total: int) -> TabContext:
    last = max(1, -(-total // PAGE_SIZE))
    rest = {name: value for name, value in given.items() if name != "page"}

    def at(number: int) -> str:
        return "?" + urlencode({**rest, "page": number})

    return {
        "page": page,
        "pages": last,
        "newer": at(page - 1) if page > 1 else "",
        "older": at(page + 1) if page < last else "",
    }
