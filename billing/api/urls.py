"""URL paths under /api/v1/billing/."""

from __future__ import annotations

from django.urls import path

from billing.api.views import (
    BillingAutoTopUpView,
    BillingCreditsView,
    BillingNoticeDismissView,
    BillingNoticesView,
    BillingPlansView,
    BillingPortalView,
    BillingPreviewView,
    BillingStaffLimitsView,
    BillingStaffResetView,
    BillingStatementFileView,
    BillingStatementView,
    BillingSubscriptionView,
    BillingTopUpsView,
    BillingTopUpView,
    BillingUsageResetView,
    BillingUsageView,
)

urlpatterns = [
    path("usage", BillingUsageView.as_view()),
    path("usage/reset", BillingUsageResetView.as_view()),
    path("plans", BillingPlansView.as_view()),
    path("subscription", BillingSubscriptionView.as_view()),
    path("subscription/preview", BillingPreviewView.as_view()),
    path("portal", BillingPortalView.as_view()),
    path("credits", BillingCreditsView.as_view()),
    path("credits/statement", BillingStatementView.as_view()),
    path("credits/statement.csv", BillingStatementFileView.as_view()),
    path("top-ups", BillingTopUpsView.as_view()),
    path("top-ups/<uuid:top_up_id>", BillingTopUpView.as_view()),
    path("auto-top-up", BillingAutoTopUpView.as_view()),
    path("notices", BillingNoticesView.as_view()),
    path("notices/<int:notice_id>/dismiss", BillingNoticeDismissView.as_view()),
    path("admin/limits", BillingStaffLimitsView.as_view()),
    path("admin/limits/reset", BillingStaffResetView.as_view()),
]
