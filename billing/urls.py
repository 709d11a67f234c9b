"""URL paths of billing's pages."""

from __future__ import annotations

from django.urls import path

from billing.web import views as web_views

urlpatterns = [
    path("billing/usage", web_views.usage_page, name="billing_usage"),
    path("billing/usage/reset", web_views.reset_usage, name="billing_reset"),
    path("billing/plan", web_views.plan_page, name="billing_plan"),
    path("billing/plan/change", web_views.submit_plan_change, name="billing_change"),
    path("billing/portal", web_views.redirect_to_portal, name="billing_portal"),
    path("billing/top-up", web_views.buy_credits, name="billing_top_up"),
    path("billing/auto-top-up", web_views.save_auto_top_up, name="billing_auto_top_up"),
    path("billing/history", web_views.history_page, name="billing_history"),
]
