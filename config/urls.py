"""Root URL configuration: pages, APIs and probes."""

from __future__ import annotations

from allauth.account import views as account_views
from allauth.account.decorators import secure_admin_login
from csp.decorators import csp_update
from django.conf import settings
from django.contrib import admin
from django.urls import include, path

from billing.stripe.webhook import stripe_webhook
from config.core.demo_login import hold_until_demo_login_exists
from config.core.staff_permissions import require_admin_action_permissions
from copilot.web.views import account
from linking.inbound import webhooks

admin.autodiscover()
require_admin_action_permissions(admin.site)
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]  # with a second factor, like every sign-in

# Only the sign-up page may load a captcha's script and frame.
_captcha = {"script-src": settings.SIGNUP_CAPTCHA_ORIGINS, "frame-src": settings.SIGNUP_CAPTCHA_ORIGINS}
sign_up = (
    csp_update(_captcha)(account_views.signup) if settings.SIGNUP_CAPTCHA_ORIGINS else account_views.signup
)

# The web process starts before the database is migrated and has the demo user.
login = hold_until_demo_login_exists(account_views.login) if settings.DEMO_LOGIN else account_views.login

handler500 = "config.error_views.show_server_error"

urlpatterns = [
    path("admin/diagnostics/", include("diagnostics.dashboard.urls")),
    path("admin/", admin.site.urls),
    path("accounts/login/", login, name="account_login"),
    path("accounts/signup/", sign_up, name="account_signup"),
    path("accounts/sessions/", account.list_login_sessions, name="usersessions_list"),
    path("accounts/", include("allauth.urls")),
    path("api/v1/billing/stripe/webhook", stripe_webhook),
    path("api/v1/billing/", include("billing.api.urls")),
    path("api/bot/v1/", include("linking.bot_api.urls")),
    path("api/v1/admin/diagnostics/", include("diagnostics.api.urls")),
    path("", include("linking.urls")),
    path("api/ai/", include("copilot.ai_sdk.urls")),
    path("api/", include("copilot.api.urls")),
    path("hooks/<slug:platform>/<slug:slug>/", webhooks.receive_webhook, name="platform_webhook"),
    path("v1/", include("copilot.openai_compat.urls")),
    path("", include("diagnostics.urls")),
    path("", include("billing.urls")),
    path("", include("copilot.urls")),
]
