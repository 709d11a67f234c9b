"""A stand-in for Stripe on this machine: plans and credits can be bought in a browser, and no money moves."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.models import TierPolicy

SOLD = {"PRO": ("price_fake_pro", 2_000), "BUSINESS": ("price_fake_business", 10_000)}


class Command(BaseCommand):
    help = "Serve a stand-in for Stripe: checkout, invoice and portal pages, and signed webhooks to the site."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=12111, help="where STRIPE_API_BASE leads to")
        parser.add_argument("--site", default=settings.SITE_URL, help="where webhooks go")
        parser.add_argument("--state", type=Path, default=None, help="a file to go on from at the next start")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.ENVIRONMENT == "production":
            raise CommandError("This is for development: nothing that it sells is ever paid.")
        try:
            stripe_fake = import_module("tests.stripe_fake")
        except ImportError as problem:
            raise CommandError("It is part of the tests, which are not installed here.") from problem
        with (
            stripe_fake.running(options["port"], state=options["state"]) as fake,
            fake.delivering_to(options["site"]),
        ):
            for price_id, cents in SOLD.values():
                fake.price(cents, currency=settings.BILLING_CURRENCY, price_id=price_id)
            self._sell()
            self._tell(stripe_fake, fake.address, options["site"])
            self._until_interrupted()

    def _sell(self) -> None:
        """Plans without a price get one; what staff have set stays."""
        for tier, (price_id, cents) in SOLD.items():
            TierPolicy.objects.filter(tier=tier, stripe_price_id=None).update(
                stripe_price_id=price_id, monthly_cents=cents
            )

    def _tell(self, stripe_fake: Any, address: str, site: str) -> None:
        self.stdout.write(
            "The site must have been started with these (`make run`); then open its plan page:\n"
            f"  STRIPE_SECRET_KEY={stripe_fake.SECRET_KEY}\n"
            f"  STRIPE_WEBHOOK_SECRETS={stripe_fake.WEBHOOK_SECRET}\n"
            f"  STRIPE_API_BASE={address}\n"
            f"Webhooks go to {site}. Let time pass and cards fail at {address}/control/panel\n"
            "Stop with Ctrl-C."
        )

    def _until_interrupted(self) -> None:
        try:
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            self.stdout.write("Closed.")
