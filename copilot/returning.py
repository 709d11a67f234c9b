"""Who logs in while their account waits to be erased keeps it (S17)."""

from __future__ import annotations

from allauth.account.auth_backends import AuthenticationBackend
from django.contrib.auth.models import User

from copilot.workspace import erasure


class ReturningBackend(AuthenticationBackend):  # type: ignore[misc]  # allauth ships no types
    """As allauth's; asked about an inactive person only after their password was right."""

    def user_can_authenticate(self, user: User) -> bool:
        return user.is_active or erasure.cancel(user)

    def get_user(self, user_id: int) -> User | None:
        """A cookie from before brings nobody back."""
        return User.objects.filter(pk=user_id, is_active=True).first()
