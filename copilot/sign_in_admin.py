"""How people sign in, as staff may see it: that there is a second factor, never its secret, its codes or anybody's tokens (D13)."""

from __future__ import annotations

from allauth.mfa import admin as mfa_admin  # noqa: F401 - registers its page, which shows the seed of every code
from allauth.mfa.models import Authenticator
from allauth.socialaccount import admin as social_admin  # noqa: F401 - and this one keys and tokens
from allauth.socialaccount.models import SocialApp, SocialToken
from django.contrib import admin
from django.http import HttpRequest

from billing.staff_pages import AnyAdmin

for shown in (Authenticator, SocialApp, SocialToken):  # the keys of providers are settings
    if admin.site.is_registered(shown):
        admin.site.unregister(shown)


@admin.register(Authenticator)
class AuthenticatorAdmin(AnyAdmin):
    """Removed for somebody who has lost his phone and his codes; made and changed by nobody but himself."""

    list_display = ["user", "type", "created_at", "last_used_at"]
    list_filter = ["type"]
    list_select_related = ["user"]
    search_fields = ["=user__username", "=user__email"]
    fields = ("user", "type", "created_at", "last_used_at")
    readonly_fields = ("user", "type", "created_at", "last_used_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
