"""Who looks at billing's pages."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import HttpRequest


def user_id_of(request: HttpRequest) -> int:
    assert isinstance(request.user, User)  # nobody else was let in
    return request.user.pk
