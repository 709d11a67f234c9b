"""Executions over REST: the summary, lists, one with its story, and the repairs (D4, D5, D9)."""

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

from billing.rest import answer, operation
from copilot.errors import InvalidRequest
from diagnostics import lists, repairs, snapshot, timeline
from diagnostics.api.doors import Door, Query, RepairDoor, fields_of, query_of
from diagnostics.findings import Summary
from diagnostics.repairs import RepairBody, Result

Text = Annotated[str, Field(max_length=254, pattern=r"^[^\x00]*$")]
Condition = Literal[
    "running", "queued", "waiting", "orphaned_running", "orphaned_queued", "orphaned", "long_running",
    "long_running_1h", "stuck_queued", "never_started", "invalid", "waiting_old", "cancel_backlog",
    "stranded_pending", "failed", "all",
]  # fmt: skip
Order = Literal[
    "created_at", "queued_at", "started_at", "ended_at", "attempts",
    "-created_at", "-queued_at", "-started_at", "-ended_at", "-attempts",
]  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets would run
KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="Sending again within a day returns the first result.",
    pattern="^[A-Za-z0-9_.:-]{1,128}$",
)
_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Wanted(Query):
    condition: Condition = "all"
    status: Literal["", "queued", "running", "waiting", "succeeded", "failed", "cancelled"] = ""
    kind: Literal["", "turn", "scheduled_run"] = ""
    user: Text = ""
    session: UUID | None = None
    origin: Text = ""
    worker: Text = ""
    failure_code: Text = ""
    created_from: AwareDatetime | None = None
    created_to: AwareDatetime | None = None
    started_from: AwareDatetime | None = None
    started_to: AwareDatetime | None = None
    ended_from: AwareDatetime | None = None
    ended_to: AwareDatetime | None = None
    hours: Annotated[int, Field(ge=1, le=lists.MOST_HOURS)] = 24
    q: Text = ""

    def filters(self) -> lists.Filters:
        wanted = {name: getattr(self, name) for name in Wanted.model_fields}
        return lists.Filters(**wanted)


class WantedPage(Wanted):
    limit: Annotated[int, Field(ge=1, le=lists.MOST_ROWS)] = lists.USUAL_ROWS
    offset: Annotated[int, Field(ge=0, le=lists.MOST_OFFSET)] = 0
    order: Order | None = None

    def part(self) -> lists.Slice:
        return lists.Slice(limit=self.limit, offset=self.offset, order=self.order or "")


class DiagnosticsSummaryView(Door):
    @operation("How executions are doing", answers={200: Summary})
    def get(self, request: Request) -> HttpResponse:
        return answer(snapshot.summary())


class DiagnosticsExecutionsView(Door):
    @operation("Executions in a condition", answers={200: lists.Page}, query=WantedPage)
    def get(self, request: Request) -> HttpResponse:
        wanted = query_of(request, WantedPage)
        return answer(lists.page(wanted.filters(), wanted.part(), see_email=self.sees_email))


class Csv(BaseRenderer):
    media_type = "text/csv"
    format = "csv"


class DiagnosticsExecutionsFileView(Door):
    renderer_classes = [Csv]

    @operation("The same as CSV", answers={(200, "text/csv"): OpenApiTypes.STR}, query=Wanted)
    def get(self, request: Request) -> HttpResponse:
        filters = query_of(request, Wanted).filters()
        part = lists.Slice(limit=lists.MOST_COUNTED)
        text = _csv(lists.page(filters, part, see_email=self.sees_email).results)
        response = HttpResponse(text, content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = 'attachment; filename="executions.csv"'
        return response


COLUMNS = (
    "id", "kind", "session_id", "schedule_id", "agent_name", "user_id", "user_email", "origin", "status",
    "created_at", "queued_at", "started_at", "ended_at", "age_seconds", "attempts", "fence", "worker",
    "liveness", "evidence", "dispatch_count", "failure_code", "children", "problem",
)  # fmt: skip


def _csv(rows: list[lists.Execution]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows([cell(getattr(row, name)) for name in COLUMNS] for row in rows)
    return text.getvalue()


def cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


class DiagnosticsExecutionView(Door):
    @operation("One execution and its story", answers={200: timeline.Story})
    def get(self, request: Request, execution_id: UUID) -> HttpResponse:
        return answer(timeline.story(execution_id, see_email=self.sees_email))


# --- repairs -----------------------------------------------------------------------------------------


def key_of(request: Request) -> str:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key: 1 to 128 letters, digits and _ . : - are a key.")
    return key or ""


class Repair(RepairDoor):
    action: ClassVar[str]

    def perform(self, request: Request) -> HttpResponse:
        key = key_of(request)
        return answer(repairs.perform(self.actor(), self.action, fields_of(request), key=key))


def repair(name: str, summary: str) -> type[Repair]:
    """A door for one action of D9; all of them look alike."""

    class View(Repair):
        action = name

        @operation(
            summary, answers={200: Result, 410: repairs.PreviewGone}, body=RepairBody, parameters=(KEY,)
        )
        def post(self, request: Request) -> HttpResponse:
            return self.perform(request)

    View.__name__ = "Diagnostics" + name.title().replace("_", "") + "View"
    return View
