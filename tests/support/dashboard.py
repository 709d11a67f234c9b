"""Open the diagnostics dashboard as staff."""

from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from copilot.models import Turn
from tests.support import factories

DASHBOARD_URL = "/admin/diagnostics/"


def sign_in_staff(*rights: str) -> Client:
    grace = factories.grace()
    User.objects.filter(pk=grace.pk).update(is_superuser=False)
    grace.user_permissions.set(
        Permission.objects.filter(content_type__app_label="diagnostics", codename__in=rights)
    )
    client = Client()
    client.force_login(grace, backend="django.contrib.auth.backends.ModelBackend")
    return client


def make_stuck_turn(hours: float = 2) -> Turn:
    turn = factories.turn(factories.session(factories.user(f"owner-{Turn.objects.count()}")))
    long_ago = timezone.now() - timedelta(hours=hours)
    Turn.objects.filter(pk=turn.pk).update(queued_at=long_ago, created_at=long_ago, dispatched_at=long_ago)
    return turn


def get_page_text(client: Client, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, path
    return answer.content.decode()
