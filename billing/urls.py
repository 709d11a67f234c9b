"""Paths of billing's pages."""

from __future__ import annotations

from django.urls import path

from billing import plan_views, views

urlpatterns = [
    path("billing/usage", views.usage_page, name="billing_usage"),
    path("billing/usage/reset", views.reset, name="billing_reset"),
    path("billing/plan", plan_views.plan_page, name="billing_plan"),
    path("billing/plan/change", plan_views.change, name="billing_change"),
    path("billing/portal", plan_views.portal, name="billing_portal"),
    path("billing/history", views.history_page, name="billing_history"),
]
