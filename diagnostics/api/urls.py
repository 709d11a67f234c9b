"""Paths under /api/v1/admin/diagnostics/ (D14)."""

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
    ("executions/requeue", "requeue", "Send queued executions again"),
    ("executions/cleanup-orphaned", "cleanup_orphaned", "End executions that nobody runs"),
    ("executions/stop-all-long-running", "stop_all_long_running", "Stop all that run too long"),
    ("executions/requeue-all-stuck", "requeue_all_stuck", "Send all again that are stuck"),
    ("executions/cleanup-all-orphaned", "cleanup_all_orphaned", "End all that nobody runs"),
    ("executions/cleanup-all-stuck-queued", "cleanup_all_stuck_queued", "End all that never started"),
    ("sessions/start-stranded", "start_stranded", "Start a turn where messages wait for nothing"),
    ("schedules/cleanup-orphaned", "cleanup_orphaned_schedules", "Switch off schedules that cannot run"),
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
    *(path(where, make_repair_view(name, summary).as_view()) for where, name, summary in REPAIR_PATHS),
]
