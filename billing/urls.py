"""Paths of billing's pages."""

from __future__ import annotations

from django.urls import path

from billing import plan_views, top_up_views, views

urlpatterns = [
    path("billing/usage", views.usage_page, name="billing_usage"),
    path("billing/usage/reset", views.reset, name="billing_reset"),
    path("billing/plan", plan_views.plan_page, name="billing_plan"),
    path("billing/plan/change", plan_views.change, name="billing_change"),
    path("billing/portal", plan_views.portal, name="billing_portal"),
    path("billing/top-up", top_up_views.buy, name="billing_top_up"),
    path("billing/auto-top-up", top_up_views.automate, name="billing_auto_top_up"),
    path("billing/history", views.history_page, name="billing_history"),
]
