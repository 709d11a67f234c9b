"""Where load balancers and people look (D15)."""

from __future__ import annotations

from django.urls import path

from diagnostics import views

urlpatterns = [
    path("healthz", views.healthz, name="healthz"),
    path("readyz", views.readyz, name="readyz"),
]
