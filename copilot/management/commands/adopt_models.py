"""Copy the models that the environment configures into the catalogue that administrators edit (A4.1)."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand

from copilot.providers import catalogue, catalogue_store


class Command(BaseCommand):
    help = (
        "Copy the environment's models, their keys and tiers into the catalogue; what exists is left alone."
    )

    def handle(self, **_options: object) -> None:
        for entry in catalogue_store.adopt_catalogue(catalogue.build_from_settings(settings)):
            self.stdout.write(f"{entry.name} ({entry.provider}), version {entry.version}")
        self.stdout.write(
            "From now on the admin decides: the environment's models are used only without rows."
        )
