"""Makes the login that a development installation prints; refuses anywhere else."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

USERNAME = "demo"
PASSWORD = "demo-pilothouse"  # noqa: S105 - public on purpose, development only


class Command(BaseCommand):
    help = "Make the development login demo / demo-pilothouse, if it is missing."

    def handle(self, *args: object, **options: object) -> None:
        if not settings.DEVELOPMENT:
            raise CommandError("The demo login is for development only (PILOTHOUSE_ENVIRONMENT=development).")
        if not User.objects.filter(username=USERNAME).exists():
            User.objects.create_superuser(USERNAME, "demo@example.com", PASSWORD)
