"""Who looks at billing's pages, and which form of theirs was sent."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from django.http import HttpRequest

_KEY = re.compile(r"[A-Za-z0-9-]{1,64}")


def user_id_of(request: HttpRequest) -> int:
    assert isinstance(request.user, User)  # nobody else was let in
    return request.user.pk


def key_of(request: HttpRequest) -> str:
    """By which two clicks are one; "" when none of our pages made it."""
    key = request.POST.get("key", "")
    return key if _KEY.fullmatch(key) else ""
