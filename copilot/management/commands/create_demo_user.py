"""Create the demo login of a development installation; refused anywhere else."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config.core import demo_login


class Command(BaseCommand):
    help = "Create the development login demo / demo-pilothouse if it is missing."

    def handle(self, *args: object, **options: object) -> None:
        if not settings.DEVELOPMENT:
            raise CommandError("The demo login is for development only (PILOTHOUSE_ENVIRONMENT=development).")
        demo_login.open_demo_login()
