"""Paths under /admin/diagnostics/."""

from __future__ import annotations

from django.urls import path

from diagnostics.dashboard import limits, repairs, views

app_name = "diagnostics"
urlpatterns = [
    path("", views.show_overview, name="overview"),
    path("confirm/", repairs.confirm_repair, name="confirm"),
    path("apply/", repairs.apply_repair, name="apply"),
    path("limits/confirm/", limits.confirm_reset, name="confirm_reset"),
    path("limits/apply/", limits.apply_reset, name="apply_reset"),
    path("execution/<uuid:execution_id>/", views.show_execution, name="execution"),
    path("audit.csv", views.download_audit_log, name="audit_file"),
    path("<slug:slug>/", views.show_tab, name="tab"),
]
