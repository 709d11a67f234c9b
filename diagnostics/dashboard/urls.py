"""Paths under /admin/diagnostics/ (D13)."""

from __future__ import annotations

from django.urls import path

from diagnostics.dashboard import acting, limits, pages

app_name = "diagnostics"
urlpatterns = [
    path("", pages.first_page, name="overview"),
    path("confirm/", acting.confirm, name="confirm"),
    path("apply/", acting.apply, name="apply"),
    path("limits/confirm/", limits.confirm_reset, name="confirm_reset"),
    path("limits/apply/", limits.apply_reset, name="apply_reset"),
    path("execution/<uuid:execution_id>/", pages.execution, name="execution"),
    path("audit.csv", pages.audit_file, name="audit_file"),
    path("<slug:slug>/", pages.table, name="tab"),
]
