"""Build the dashboard's tables: executions, schedules and the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import HttpRequest, QueryDict
from django.urls import reverse
from pydantic import ValidationError

from config.core.errors import InvalidRequest, ServiceUnavailable
from config.core.json_values import list_field_errors
from config.core.staff_permissions import SEE_AUDIT
from copilot.worker import health
from diagnostics import execution_list, inventory, queries, schedules, snapshot, timeline
from diagnostics.api.executions import ExecutionPageQuery
from diagnostics.broker_queues import STEADY_QUEUES
from diagnostics.dashboard.decorators import can_see_email, get_staff_user
from diagnostics.dashboard.tabs import TAB_ACTIONS, Tab, TabPart
from diagnostics.findings.rules import REAPER_SILENT_SECONDS
from diagnostics.models import AuditSink
from diagnostics.templatetags.diagnostics import age
from diagnostics.work_ages import (
    QUEUE_SILENT_SECONDS,
    SCHEDULER_SILENT_SECONDS,
    WATCH_SILENT_SECONDS,
    WorkAges,
    read_work_ages,
)
from linking import selectors

PAGE_SIZE = 50
PART_PARAMETER = "only"  # names a part of a tab's list in the URL
TabContext = dict[str, object]
REAPER_ACTIONS = (
    "take_over",
    "override_stop",
    "send_again",
    "expire",
    "start_stranded",
    "deliver_result",
    "restore",
)
# Staff and the reaper share some actions.
AUDITED_ACTIONS = tuple(dict.fromkeys((*TAB_ACTIONS, "reset_usage", *REAPER_ACTIONS)))
AUDIT_CATEGORIES = (
    "sign_in", "password", "email", "factor", "connection", "api_key", "account", "invitation", "setup_link", "sign_up",
    "role", "admin", "conversation", "export", "audit", "repair",
)  # fmt: skip
AUDIT_OUTCOMES = {"": "All", "done": "Done", "refused": "Refused", "dry_run": "Dry run"}
STATUSES = ("queued", "running", "waiting", "succeeded", "failed", "cancelled")
ORIGINS = ("web", "api", "schedule", "goal", "parent", "follow_up", "telegram", "discord", "slack")


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
    FilterField(name="user", label="User", hint="id or email"),
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


# --- Executions ---


def build_executions_context(request: HttpRequest, tab: Tab) -> TabContext:
    """Build the table; raise InvalidRequest with the name of a wrong parameter."""
    params = {
        name: text
        for name, text in _strip_values(request.GET).items()
        if text and name not in ("page", PART_PARAMETER)
    }
    page, part = _parse_page(request.GET), find_tab_part(tab, request.GET)
    query = _parse_query(part.condition if part else tab.condition, params, page)
    found = execution_list.get_page(query.to_filters(), query.to_slice(), see_email=can_see_email(request))
    may_see_users = get_staff_user(request).has_perm("auth.view_user")
    return {
        "filters": build_filter_fields(tab, request.GET),
        "filtered": bool(params),
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
        "csv": _build_csv_url(query.condition, params),
        **build_page_links(request.GET, page, found.total),
    }


def find_tab_part(tab: Tab, params: QueryDict) -> TabPart | None:
    """Find the part of the list that the URL names."""
    only = params.get(PART_PARAMETER, "")
    chosen = next((part for part in tab.parts if part.condition == only), None)
    if only and chosen is None:
        raise InvalidRequest(f"{PART_PARAMETER}: unknown part of this list.")
    return chosen


def build_part_links(tab: Tab, chosen: TabPart | None) -> list[TabContext]:
    summary = snapshot.get_summary() if tab.parts else None
    whole = {"title": "All", "link": "?", "chosen": chosen is None, "count": None}
    return [whole] * bool(tab.parts) + [
        {
            "title": part.title,
            "link": f"?{urlencode({PART_PARAMETER: part.condition})}",
            "chosen": part is chosen,
            "count": getattr(summary, part.figure_name),
        }
        for part in tab.parts
    ]


def _build_csv_url(condition: str, params: dict[str, str]) -> str:
    """Return the URL of the same list as a CSV file of the REST API."""
    query = {name: text for name, text in _add_utc_suffix(params).items() if name != "order"}
    return f"{reverse('diagnostics_executions_file')}?{urlencode({'condition': condition, **query})}"


def build_filter_fields(tab: Tab, params: QueryDict) -> list[FilterField]:
    offered: tuple[FilterField, ...] = EXECUTION_FIELDS
    if tab.shows_failure:
        offered += FAILED_FIELDS
    if tab.mixed:
        offered += (STATUS_FIELD,)
    if any(part.of_sessions for part in tab.parts if part.condition == params.get(PART_PARAMETER)):
        offered = SESSIONS_FIELDS
    return [FilterField(**{**asdict(field), "value": params.get(field.name, "")}) for field in offered]


def _add_utc_suffix(params: dict[str, str]) -> dict[str, str]:
    """Mark times from the page as UTC, because its fields have no time zone."""
    return {
        name: f"{value}Z" if name.endswith(("_from", "_to")) and _is_naive_datetime(value) else value
        for name, value in params.items()
    }


def _parse_query(condition: str, params: dict[str, str], page: int) -> ExecutionPageQuery:
    allowed = set(ExecutionPageQuery.model_fields) - {"condition", "limit", "offset"}
    if unknown := sorted(set(params) - allowed):
        raise InvalidRequest(f"{unknown[0][:50]}: unknown filter.")
    try:
        return ExecutionPageQuery.model_validate(
            {
                **_add_utc_suffix(params),
                "condition": condition,
                "limit": PAGE_SIZE,
                "offset": (page - 1) * PAGE_SIZE,
            }
        )
    except ValidationError as problem:
        first = list_field_errors(problem)[0]
        raise InvalidRequest(f"{first.field}: {first.message}.") from problem


def _strip_values(params: QueryDict) -> dict[str, str]:
    return {name: str(value).strip() for name, value in params.items()}


def _is_naive_datetime(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is None
    except ValueError:
        return False


def build_execution_row(
    row: execution_list.Execution, *, may_see_users: bool, of_sessions: bool = False
) -> TabContext:
    """Build one row. A row without an id is a session without turns; lists of sessions act on sessions."""
    return {
        **asdict(row),
        "target": row.session_id if of_sessions else row.id,
        "link": reverse("diagnostics:execution", args=[row.id]) if row.id else "",
        "turn_link": reverse("admin:copilot_turn_change", args=[row.id]) if row.id else "",
        "session_link": reverse("admin:copilot_session_change", args=[row.session_id]),
        "user_link": reverse("admin:auth_user_change", args=[row.user_id]) if may_see_users else "",
    }


# --- Schedules and audit log ---


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
    page, params = _parse_page(request.GET), _strip_values(request.GET)
    audit_filter = parse_audit_filter(request)
    found = timeline.list_audit_events(audit_filter, limit=PAGE_SIZE, offset=(page - 1) * PAGE_SIZE)
    rest = {
        name: text for name, text in params.items() if text and name not in ("page", PART_PARAMETER, "id")
    }
    return {
        "only": audit_filter.outcome,
        "parts": [
            {
                "title": title,
                "link": f"?{urlencode({**rest, **({PART_PARAMETER: name} if name else {})})}",
                "chosen": name == audit_filter.outcome,
            }
            for name, title in AUDIT_OUTCOMES.items()
        ],
        "filters": _build_audit_fields(params, everything=audit_filter.everything),
        "filtered": bool(rest),
        "items": found.results,
        "chosen": params.get("id", ""),
        "total": found.total,
        "total_is_capped": found.total_is_capped,
        "everything": audit_filter.everything,
        "sinks": list(AuditSink.objects.filter(failures__gt=0).order_by("name")),
        "csv": f"{reverse('diagnostics:audit_file')}?{urlencode({**rest, PART_PARAMETER: audit_filter.outcome})}",
        **build_page_links(request.GET, page, found.total),
    }


def parse_audit_filter(request: HttpRequest) -> timeline.AuditFilter:
    """Parse the filter; raise InvalidRequest with the name of a wrong parameter."""
    params = _strip_values(request.GET)
    if any("\x00" in text for text in params.values()):
        raise InvalidRequest("Filters must not contain NUL characters.")
    if params.get(PART_PARAMETER, "") not in AUDIT_OUTCOMES:
        raise InvalidRequest(f"{PART_PARAMETER}: unknown part of this list.")
    user = params.get("user", "")
    if user and not execution_list.is_user_id(user):
        raise InvalidRequest("user: enter a number.")
    return timeline.AuditFilter(
        everything=get_staff_user(request).has_perm(SEE_AUDIT),
        category=params.get("category", "")[:20],
        actor=params.get("actor", "")[:150],
        action=params.get("action", "")[:40],
        outcome=params.get(PART_PARAMETER, ""),
        user_id=int(user) if user else None,
        since=_parse_moment("at_from", params.get("at_from", "")),
        until=_parse_moment("at_to", params.get("at_to", "")),
    )


def _build_audit_fields(params: dict[str, str], *, everything: bool) -> list[FilterField]:
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
    return [FilterField(**{**asdict(field), "value": params.get(field.name, "")}) for field in fields]


def _parse_moment(name: str, text: str) -> datetime | None:
    """Parse a time; without a time zone it is UTC."""
    if not text:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"{name}: enter a date and time such as 2026-11-18T09:30.") from None
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


# --- Paging ---


def _parse_page(params: QueryDict) -> int:
    text = params.get("page", "1")
    last_page = execution_list.MAX_OFFSET // PAGE_SIZE
    if not (
        text.isascii() and text.isdigit() and len(text) <= len(str(last_page)) and 1 <= int(text) <= last_page
    ):
        raise InvalidRequest(f"page: enter a number from 1 to {last_page}.")
    return int(text)


def build_page_links(params: QueryDict, page: int, total: int) -> TabContext:
    last = max(1, -(-total // PAGE_SIZE))
    rest = {name: value for name, value in params.items() if name != "page"}

    def build_link(number: int) -> str:
        return "?" + urlencode({**rest, "page": number})

    return {
        "page": page,
        "pages": last,
        "newer": build_link(page - 1) if page > 1 else "",
        "older": build_link(page + 1) if page < last else "",
    }


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    name: str
    status: str  # alive, lost, unknown
    told: str


def build_workers_context(request: HttpRequest, tab: Tab) -> dict[str, object]:
    waiting = selectors.get_backlogs()
    return {
        "items": inventory.list_workers(),
        "others": [_get_reaper_status(), *_list_work_statuses(), *_list_bot_statuses()],
        "doors": selectors.list_traffic_facts(),
        "backlogs": [
            ("Chat-platform updates waiting", waiting.updates_waiting),
            ("Answers to chat platforms waiting", waiting.deliveries_waiting),
            ("Answers that could not be delivered", waiting.deliveries_failed),
        ],
    }


def _get_reaper_status() -> ProcessStatus:
    try:
        silent = health.get_sweep_age_seconds()
    except ServiceUnavailable:
        return ProcessStatus(name="Reaper", status="unknown", told="unknown: Redis is not answering")
    if silent is None:
        return ProcessStatus(name="Reaper", status="lost", told="has not swept since Redis started")
    status = "alive" if silent <= REAPER_SILENT_SECONDS else "lost"
    return ProcessStatus(name="Reaper", status=status, told=f"swept {age(silent)} ago")


def _get_scheduler_status(ages: WorkAges) -> ProcessStatus:
    name, silent = "Scheduler (Celery beat)", ages.scheduler_seconds
    if silent is None:
        return ProcessStatus(name=name, status="unknown", told="has sent nothing since Redis started")
    status = "alive" if silent <= SCHEDULER_SILENT_SECONDS else "lost"
    return ProcessStatus(name=name, status=status, told=f"sent a job {age(silent)} ago")


def _get_queue_status(queue: str, ages: WorkAges) -> ProcessStatus:
    name, silent = f"Queue {queue}", ages.queue_seconds.get(queue)
    if silent is None:
        return ProcessStatus(name=name, status="unknown", told="no job finished since Redis started")
    status = "alive" if silent <= QUEUE_SILENT_SECONDS[queue] else "lost"
    return ProcessStatus(name=name, status=status, told=f"a job finished {age(silent)} ago")


def _get_watch_status(ages: WorkAges) -> ProcessStatus:
    silent = ages.watch_seconds
    if silent is None:
        return ProcessStatus(name="Watch (alerts)", status="unknown", told="has not run since Redis started")
    status = "alive" if silent <= WATCH_SILENT_SECONDS else "lost"
    return ProcessStatus(name="Watch (alerts)", status=status, told=f"ran {age(silent)} ago")


def _list_work_statuses() -> list[ProcessStatus]:
    try:
        ages = read_work_ages()
    except ServiceUnavailable:
        return []  # the reaper's status already says that Redis is away
    return [
        _get_scheduler_status(ages),
        *(_get_queue_status(queue, ages) for queue in STEADY_QUEUES),
        _get_watch_status(ages),
    ]


def _list_bot_statuses() -> list[ProcessStatus]:
    now = queries.get_database_time()
    return [
        ProcessStatus(
            name=f"Bot of {runner.platform} ({runner.bot_account})",
            status="alive" if runner.until > now else "lost",
            told=f"received an update {age((now - runner.last_update_at).total_seconds())} ago"
            if runner.last_update_at
            else "has received nothing yet",
        )
        for runner in selectors.list_runners()
    ]
