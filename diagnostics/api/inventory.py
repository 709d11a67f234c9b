"""The rest of diagnostics over REST: what there is, what it means, what was measured and what was done (D6, D11, D12, D14)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from config.core.staff_rights import SEE_AUDIT
from diagnostics import findings, inventory, lists, samples, snapshot, timeline, timetable
from diagnostics.api.doors import Door, Query, query_of
from diagnostics.probes import providers, running, servers
from diagnostics.work_ages import last_tick_at
from linking import queries as linking


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Processes of ours: workers, the clock, and those that fetch from chat platforms."""

    results: tuple[findings.Worker, ...]
    scheduler_ticked_at: datetime | None
    runners: list[linking.RunnerFacts]
    doors: list[linking.DoorFacts]
    backlogs: linking.Backlogs


@dataclass(frozen=True, kw_only=True)
class Findings:
    results: list[findings.Finding]
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


ASKED = {
    **servers.ESSENTIAL,
    "scheduler": servers.scheduler,
    "reaper": servers.reaper,
    "mail": servers.mail,
    **providers.CHECKS,
}  # those that leave nothing behind: the storage is written to by the doctor alone


class WantedSamples(Query):
    metric: Literal[samples.NAMES]  # type: ignore[valid-type]
    range: Literal["1h", "24h", "7d"] = "1h"


class WantedAudit(Query):
    actor: Annotated[str, Field(max_length=150, pattern=r"^[^\x00]*$")] = ""
    action: Annotated[str, Field(max_length=40, pattern=r"^[a-z_.]*$")] = ""
    category: Annotated[str, Field(max_length=20, pattern=r"^[a-z_]*$")] = ""
    limit: Annotated[int, Field(ge=1, le=lists.MOST_ROWS)] = lists.USUAL_ROWS
    offset: Annotated[int, Field(ge=0, le=lists.MOST_OFFSET)] = 0


class WantedSchedules(Query):
    scope: Literal["user", "orphaned"] = "user"
    limit: Annotated[int, Field(ge=1, le=lists.MOST_ROWS)] = lists.USUAL_ROWS
    offset: Annotated[int, Field(ge=0, le=lists.MOST_OFFSET)] = 0


class DiagnosticsWorkersView(Door):
    @operation("Worker processes", answers={200: Workers})
    def get(self, request: Request) -> HttpResponse:
        return answer(
            Workers(
                results=inventory.workers(),
                scheduler_ticked_at=last_tick_at(),
                runners=linking.runners(),
                doors=linking.doors(),
                backlogs=linking.backlogs(),
            )
        )


class DiagnosticsLeasesView(Door):
    @operation("Sessions that are held", answers={200: inventory.Leases})
    def get(self, request: Request) -> HttpResponse:
        return answer(inventory.leases())


class DiagnosticsStreamsView(Door):
    @operation("Event logs", answers={200: inventory.Streams})
    def get(self, request: Request) -> HttpResponse:
        return answer(inventory.streams())


class DiagnosticsBuffersView(Door):
    @operation("Messages that wait behind turns", answers={200: inventory.Buffers})
    def get(self, request: Request) -> HttpResponse:
        return answer(inventory.buffers())


class DiagnosticsFindingsView(Door):
    @operation("What is wrong, the gravest first", answers={200: Findings})
    def get(self, request: Request) -> HttpResponse:
        seen = snapshot.take()
        return answer(
            Findings(
                results=findings.evaluate(seen),
                degraded=seen.summary.degraded,
                taken_at=seen.summary.taken_at,
            )
        )


class DiagnosticsProbesView(Door):
    @operation("Ask every server one question", answers={200: Probes})
    def get(self, request: Request) -> HttpResponse:
        asked = running.without_echo(running.run(ASKED))
        shown = [
            Probed(
                name=result.name,
                ok=result.ok,
                status=result.status,
                latency_ms=result.latency_ms,
                detail=result.detail,
                checked_at=result.checked_at,
            )
            for result in asked
        ]
        return answer(Probes(results=shown))


class DiagnosticsSamplesView(Door):
    @operation("One figure over time", answers={200: samples.Series}, query=WantedSamples)
    def get(self, request: Request) -> HttpResponse:
        wanted = query_of(request, WantedSamples)
        return answer(samples.series(wanted.metric, wanted.range))


class DiagnosticsAuditView(Door):
    """With the right to read the audit log everything, otherwise repairs alone."""

    @operation("What was done, by whom and why", answers={200: timeline.AuditPage}, query=WantedAudit)
    def get(self, request: Request) -> HttpResponse:
        wanted = query_of(request, WantedAudit)
        return answer(
            timeline.audits(
                timeline.AuditFilter(
                    everything=self.caller.has_perm(SEE_AUDIT),
                    actor=wanted.actor,
                    action=wanted.action,
                    category=wanted.category,
                ),
                limit=wanted.limit,
                offset=wanted.offset,
            )
        )


class DiagnosticsSchedulesSummaryView(Door):
    @operation("How schedules are doing", answers={200: timetable.ScheduleSummary})
    def get(self, request: Request) -> HttpResponse:
        return answer(timetable.summary())


class DiagnosticsSchedulesView(Door):
    @operation("Schedules of users", answers={200: timetable.SchedulePage}, query=WantedSchedules)
    def get(self, request: Request) -> HttpResponse:
        wanted = query_of(request, WantedSchedules)
        return answer(
            timetable.page(
                orphaned=wanted.scope == "orphaned",
                limit=wanted.limit,
                offset=wanted.offset,
                see_email=self.sees_email,
            )
        )
