"""Copy the models that the environment configures into the catalogue that administrators edit."""

from __future__ import annotations

from django.conf import settings
from django.core.management.base import BaseCommand

from copilot.providers import catalogue, catalogue_store


class Command(BaseCommand):
    help = (
        "Copy the environment's models, keys and tiers into the catalogue. Existing entries are not changed."
    )

    def handle(self, **_options: object) -> None:
        for entry in catalogue_store.adopt_catalogue(catalogue.build_from_settings(settings)):
            self.stdout.write(f"{entry.name} ({entry.provider}), version {entry.version}")
        self.stdout.write(
            "From now on edit models in the admin. The environment's models are ignored while the catalogue has any."
        )
