"""Paths under /api/v1/admin/diagnostics/."""

from __future__ import annotations

from django.urls import path

from diagnostics.api.executions import (
    DiagnosticsExecutionsFileView,
    DiagnosticsExecutionsView,
    DiagnosticsExecutionView,
    DiagnosticsSummaryView,
    make_repair_view,
)
from diagnostics.api.inventory import (
    DiagnosticsAuditView,
    DiagnosticsBuffersView,
    DiagnosticsFindingsView,
    DiagnosticsLeasesView,
    DiagnosticsProbesView,
    DiagnosticsSamplesView,
    DiagnosticsSchedulesSummaryView,
    DiagnosticsSchedulesView,
    DiagnosticsStreamsView,
    DiagnosticsWorkersView,
)

REPAIR_PATHS = (
    ("executions/stop", "stop", "Stop executions"),
    ("executions/requeue", "requeue", "Requeue executions"),
    ("executions/cleanup-orphaned", "cleanup_orphaned", "End orphaned executions as failed"),
    ("executions/stop-all-long-running", "stop_all_long_running", "Stop all long-running executions"),
    ("executions/requeue-all-stuck", "requeue_all_stuck", "Requeue all stuck executions"),
    ("executions/cleanup-all-orphaned", "cleanup_all_orphaned", "End all orphaned executions as failed"),
    (
        "executions/cleanup-all-stuck-queued",
        "cleanup_all_stuck_queued",
        "End all stuck queued executions as failed",
    ),
    ("sessions/start-stranded", "start_stranded", "Start turns for stranded messages"),
    ("schedules/cleanup-orphaned", "cleanup_orphaned_schedules", "Switch off orphaned schedules"),
)

urlpatterns = [
    path("executions/summary", DiagnosticsSummaryView.as_view()),
    path("executions", DiagnosticsExecutionsView.as_view()),
    path("executions.csv", DiagnosticsExecutionsFileView.as_view(), name="diagnostics_executions_file"),
    path("executions/<uuid:execution_id>", DiagnosticsExecutionView.as_view()),
    path("workers", DiagnosticsWorkersView.as_view()),
    path("leases", DiagnosticsLeasesView.as_view()),
    path("streams", DiagnosticsStreamsView.as_view()),
    path("buffers", DiagnosticsBuffersView.as_view()),
    path("findings", DiagnosticsFindingsView.as_view()),
    path("probes", DiagnosticsProbesView.as_view()),
    path("samples", DiagnosticsSamplesView.as_view()),
    path("audit", DiagnosticsAuditView.as_view()),
    path("schedules/summary", DiagnosticsSchedulesSummaryView.as_view()),
    path("schedules", DiagnosticsSchedulesView.as_view()),
    *(path(route, make_repair_view(name, summary).as_view()) for route, name, summary in REPAIR_PATHS),
]
