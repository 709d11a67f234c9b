"""REST views for executions: summary, lists, one execution with its timeline, and repairs."""

from __future__ import annotations

import csv
import io
import re
from typing import Annotated, ClassVar, Literal
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from pydantic import AwareDatetime, Field
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from config.core.api.parsing import QueryParams
from config.core.api.views import document_operation, respond_json
from config.core.errors import InvalidRequest
from diagnostics import execution_list, snapshot, timeline
from diagnostics.api.views import DiagnosticsAPIView, RepairAPIView, parse_json_body, parse_query
from diagnostics.findings.figures import Summary
from diagnostics.repairs import requests, runner
from diagnostics.repairs.requests import RepairBody, Result

FilterText = Annotated[str, Field(max_length=254, pattern=r"^[^\x00]*$")]
ConditionName = Literal[
    "running", "queued", "waiting", "orphaned_running", "orphaned_queued", "orphaned", "long_running",
    "long_running_1h", "stuck_queued", "never_started", "invalid", "waiting_old", "cancel_backlog",
    "stranded_pending", "failed", "all",
]  # fmt: skip
SortOrder = Literal[
    "created_at", "queued_at", "started_at", "ended_at", "attempts",
    "-created_at", "-queued_at", "-started_at", "-ended_at", "-attempts",
]  # fmt: skip
FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets would run these
IDEMPOTENCY_KEY_HEADER = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="Sending the same key again within a day returns the first result.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)
_IDEMPOTENCY_KEY_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class ExecutionQuery(QueryParams):
    condition: ConditionName = "all"
    status: Literal["", "queued", "running", "waiting", "succeeded", "failed", "cancelled"] = ""
    kind: Literal["", "turn", "scheduled_run"] = ""
    user: FilterText = ""
    session: UUID | None = None
    origin: FilterText = ""
    worker: FilterText = ""
    failure_code: FilterText = ""
    created_from: AwareDatetime | None = None
    created_to: AwareDatetime | None = None
    started_from: AwareDatetime | None = None
    started_to: AwareDatetime | None = None
    ended_from: AwareDatetime | None = None
    ended_to: AwareDatetime | None = None
    hours: Annotated[int, Field(ge=1, le=execution_list.MAX_HOURS)] = 24
    q: FilterText = ""

    def to_filters(self) -> execution_list.ExecutionFilters:
        values = {name: getattr(self, name) for name in ExecutionQuery.model_fields}
        return execution_list.ExecutionFilters(**values)


class ExecutionPageQuery(ExecutionQuery):
    limit: Annotated[int, Field(ge=1, le=execution_list.MOST_ROWS)] = execution_list.USUAL_ROWS
    offset: Annotated[int, Field(ge=0, le=execution_list.MAX_OFFSET)] = 0
    order: SortOrder | None = None

    def to_slice(self) -> execution_list.PageSlice:
        return execution_list.PageSlice(limit=self.limit, offset=self.offset, order=self.order or "")


class DiagnosticsSummaryView(DiagnosticsAPIView):
    @document_operation("Read figures about all executions", answers={200: Summary})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(snapshot.get_summary())


class DiagnosticsExecutionsView(DiagnosticsAPIView):
    @document_operation(
        "List executions in a condition", answers={200: execution_list.Page}, query=ExecutionPageQuery
    )
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, ExecutionPageQuery)
        return respond_json(
            execution_list.get_page(query.to_filters(), query.to_slice(), see_email=self.can_see_email)
        )


class CsvRenderer(BaseRenderer):
    media_type = "text/csv"
    format = "csv"


class DiagnosticsExecutionsFileView(DiagnosticsAPIView):
    renderer_classes = [CsvRenderer]

    @document_operation(
        "Download executions in a condition as CSV",
        answers={(200, "text/csv"): OpenApiTypes.STR},
        query=ExecutionQuery,
    )
    def get(self, request: Request) -> HttpResponse:
        filters = parse_query(request, ExecutionQuery).to_filters()
        part = execution_list.PageSlice(limit=execution_list.MAX_COUNTED)
        text = _render_csv(execution_list.get_page(filters, part, see_email=self.can_see_email).results)
        response = HttpResponse(text, content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = 'attachment; filename="executions.csv"'
        return response


CSV_COLUMNS = (
    "id", "kind", "session_id", "schedule_id", "agent_name", "user_id", "user_email", "origin", "status",
    "created_at", "queued_at", "started_at", "ended_at", "age_seconds", "attempts", "fence", "worker",
    "liveness", "evidence", "dispatch_count", "failure_code", "children", "problem",
)  # fmt: skip


def _render_csv(rows: list[execution_list.Execution]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    writer.writerows([escape_csv_cell(getattr(row, name)) for name in CSV_COLUMNS] for row in rows)
    return text.getvalue()


def escape_csv_cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA_PREFIXES) else text


class DiagnosticsExecutionView(DiagnosticsAPIView):
    @document_operation("Read an execution and its timeline", answers={200: timeline.Story})
    def get(self, request: Request, execution_id: UUID) -> HttpResponse:
        return respond_json(timeline.get_story(execution_id, see_email=self.can_see_email))


# --- Repairs ---


def read_idempotency_key(request: Request) -> str:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _IDEMPOTENCY_KEY_PATTERN.fullmatch(key):
        raise InvalidRequest("Idempotency-Key: use 1 to 128 letters, digits or _ . : -")
    return key or ""


class RepairView(RepairAPIView):
    action: ClassVar[str]

    def perform_repair(self, request: Request) -> HttpResponse:
        key = read_idempotency_key(request)
        return respond_json(
            runner.perform_repair(self.get_actor(), self.action, parse_json_body(request), key=key)
        )


def make_repair_view(name: str, summary: str) -> type[RepairView]:
    """Create the view of one repair action; all of them are alike."""

    class View(RepairView):
        action = name

        @document_operation(
            summary,
            answers={200: Result, 410: requests.PreviewGone},
            body=RepairBody,
            parameters=(IDEMPOTENCY_KEY_HEADER,),
        )
        def post(self, request: Request) -> HttpResponse:
            return self.perform_repair(request)

    View.__name__ = "Diagnostics" + name.title().replace("_", "") + "View"
    return View
