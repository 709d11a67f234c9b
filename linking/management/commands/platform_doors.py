"""`manage.py platform_doors`: where each platform must send its updates."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand
from django.urls import reverse

from linking.platforms import registry


class Command(BaseCommand):
    help = "Print the address of each platform's door; whoever knows one can knock there, and no more."

    def handle(self, *args: object, **options: object) -> None:
        for adapter in registry.iter_enabled_adapters():
            path = reverse("platform_door", args=[adapter.platform, registry.get_webhook_slug(adapter)])
            self.stdout.write(f"{adapter.platform}: {settings.SITE_URL}{path}")
