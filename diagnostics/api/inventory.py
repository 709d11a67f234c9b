"""REST views for workers, leases, event logs, queues, findings, probes, samples, the audit log and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams
from config.core.api.views import document_operation, respond_json
from config.core.staff_permissions import SEE_AUDIT
from diagnostics import execution_list, inventory, samples, schedules, snapshot, timeline
from diagnostics.api.views import DiagnosticsAPIView, parse_query
from diagnostics.findings import figures, rules
from diagnostics.probes import external_services, runner, servers
from diagnostics.work_ages import get_last_tick_at
from linking import selectors


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Our processes: workers, the scheduler, and those that fetch from chat platforms."""

    results: tuple[figures.Worker, ...]
    scheduler_ticked_at: datetime | None
    runners: list[selectors.RunnerFacts]
    doors: list[selectors.TrafficFacts]
    backlogs: selectors.Backlogs


@dataclass(frozen=True, kw_only=True)
class Findings:
    results: list[rules.Finding]
    degraded: tuple[str, ...]
    taken_at: datetime


@dataclass(frozen=True, kw_only=True)
class Probed:
    name: str
    ok: bool
    status: str
    latency_ms: int
    detail: str
    checked_at: str


@dataclass(frozen=True, kw_only=True)
class Probes:
    results: list[Probed]


API_PROBES = {
    **servers.ESSENTIAL_PROBES,
    "scheduler": servers.probe_scheduler,
    "reaper": servers.probe_reaper,
    "mail": servers.probe_mail,
    **external_services.PROVIDER_PROBES,
}  # probes without side effects: only the doctor writes to the storage


class SamplesQuery(QueryParams):
    metric: Literal[samples.SAMPLE_NAMES]  # type: ignore[valid-type]
    range: Literal["1h", "24h", "7d"] = "1h"


class AuditQuery(QueryParams):
    actor: Annotated[str, Field(max_length=150, pattern=r"^[^\x00]*$")] = ""
    action: Annotated[str, Field(max_length=40, pattern=r"^[a-z_.]*$")] = ""
    category: Annotated[str, Field(max_length=20, pattern=r"^[a-z_]*$")] = ""
    limit: Annotated[int, Field(ge=1, le=execution_list.MOST_ROWS)] = execution_list.USUAL_ROWS
    offset: Annotated[int, Field(ge=0, le=execution_list.MAX_OFFSET)] = 0


class SchedulesQuery(QueryParams):
    scope: Literal["user", "orphaned"] = "user"
    limit: Annotated[int, Field(ge=1, le=execution_list.MOST_ROWS)] = execution_list.USUAL_ROWS
    offset: Annotated[int, Field(ge=0, le=execution_list.MAX_OFFSET)] = 0


class DiagnosticsWorkersView(DiagnosticsAPIView):
    @document_operation("List worker processes", answers={200: Workers})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(
            Workers(
                results=inventory.list_workers(),
                scheduler_ticked_at=get_last_tick_at(),
                runners=selectors.list_runners(),
                doors=selectors.list_traffic_facts(),
                backlogs=selectors.get_backlogs(),
            )
        )


class DiagnosticsLeasesView(DiagnosticsAPIView):
    @document_operation("List the leases of sessions", answers={200: inventory.Leases})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(inventory.list_leases())


class DiagnosticsStreamsView(DiagnosticsAPIView):
    @document_operation("Read figures about event logs", answers={200: inventory.Streams})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(inventory.survey_streams())


class DiagnosticsBuffersView(DiagnosticsAPIView):
    @document_operation("Read figures about queued messages", answers={200: inventory.Buffers})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(inventory.survey_buffers())


class DiagnosticsFindingsView(DiagnosticsAPIView):
    @document_operation("List findings, most severe first", answers={200: Findings})
    def get(self, request: Request) -> HttpResponse:
        seen = snapshot.get_snapshot()
        return respond_json(
            Findings(
                results=rules.evaluate_findings(seen),
                degraded=seen.summary.degraded,
                taken_at=seen.summary.taken_at,
            )
        )


class DiagnosticsProbesView(DiagnosticsAPIView):
    @document_operation("Probe every server", answers={200: Probes})
    def get(self, request: Request) -> HttpResponse:
        results = runner.skip_dependents(runner.run_probes(API_PROBES))
        probed = [
            Probed(
                name=result.name,
                ok=result.ok,
                status=result.status,
                latency_ms=result.latency_ms,
                detail=result.detail,
                checked_at=result.checked_at,
            )
            for result in results
        ]
        return respond_json(Probes(results=probed))


class DiagnosticsSamplesView(DiagnosticsAPIView):
    @document_operation("Read one figure over time", answers={200: samples.Series}, query=SamplesQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, SamplesQuery)
        return respond_json(samples.get_series(query.metric, query.range))


class DiagnosticsAuditView(DiagnosticsAPIView):
    # Without the permission to read the audit log, only repairs are listed.
    @document_operation(
        "List audit events: what was done, by whom and why",
        answers={200: timeline.AuditPage},
        query=AuditQuery,
    )
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, AuditQuery)
        return respond_json(
            timeline.list_audit_events(
                timeline.AuditFilter(
                    everything=self.caller.has_perm(SEE_AUDIT),
                    actor=query.actor,
                    action=query.action,
                    category=query.category,
                ),
                limit=query.limit,
                offset=query.offset,
            )
        )


class DiagnosticsSchedulesSummaryView(DiagnosticsAPIView):
    @document_operation("Read figures about schedules", answers={200: schedules.ScheduleSummary})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(schedules.get_schedule_summary())


class DiagnosticsSchedulesView(DiagnosticsAPIView):
    @document_operation("List users' schedules", answers={200: schedules.SchedulePage}, query=SchedulesQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, SchedulesQuery)
        return respond_json(
            schedules.list_schedules(
                orphaned=query.scope == "orphaned",
                limit=query.limit,
                offset=query.offset,
                see_email=self.can_see_email,
            )
        )
