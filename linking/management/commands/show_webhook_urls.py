"""`manage.py show_webhook_urls`: print the URL that each platform must send its updates to."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand
from django.urls import reverse

from linking.platforms import registry


class Command(BaseCommand):
    help = "Print the webhook URL of each configured platform. The URL alone grants nothing: updates are authenticated."

    def handle(self, *args: object, **options: object) -> None:
        for adapter in registry.iter_enabled_adapters():
            path = reverse("platform_webhook", args=[adapter.platform, registry.get_webhook_slug(adapter)])
            self.stdout.write(f"{adapter.platform}: {settings.SITE_URL}{path}")
