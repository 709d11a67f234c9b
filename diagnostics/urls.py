"""Paths for load balancers and scrapers."""

from __future__ import annotations

from django.urls import path

from diagnostics import views

urlpatterns = [
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
    path("metrics", views.serve_metrics, name="metrics"),
]
