"""`manage.py platform_doors`: where each platform must send its updates (L18)."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand
from django.urls import reverse

from linking import platforms


class Command(BaseCommand):
    help = "Print the address of each platform's door; whoever knows one can knock there, and no more."

    def handle(self, *args: object, **options: object) -> None:
        for adapter in platforms.switched_on():
            path = reverse("platform_door", args=[adapter.platform, platforms.door_of(adapter)])
            self.stdout.write(f"{adapter.platform}: {settings.SITE_URL}{path}")
