"""Paths of billing's pages."""

from __future__ import annotations

from django.urls import path

from billing import views

urlpatterns = [
    path("billing/usage", views.usage_page, name="billing_usage"),
    path("billing/usage/reset", views.reset, name="billing_reset"),
    path("billing/plan", views.plan_page, name="billing_plan"),
    path("billing/history", views.history_page, name="billing_history"),
]
