"""Run a fake Stripe on this machine, to buy plans and credits in a browser without moving money."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.models import TierPolicy

FAKE_PRICES = {"PRO": ("price_fake_pro", 2_000), "BUSINESS": ("price_fake_business", 10_000)}


class Command(BaseCommand):
    help = (
        "Serve a fake Stripe with checkout, invoice and portal pages, and send signed webhooks to the site."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port", type=int, default=12111, help="port of the fake API; STRIPE_API_BASE must point to it"
        )
        parser.add_argument("--site", default=settings.SITE_URL, help="site that receives the webhooks")
        parser.add_argument("--state", type=Path, default=None, help="file to keep the state in between runs")

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.ENVIRONMENT == "production":
            raise CommandError("The fake Stripe is for development only.")
        try:
            stripe_fake = import_module("tests.stripe_fake")
        except ImportError as problem:
            raise CommandError(
                "The fake Stripe is part of the tests, which aren't installed here."
            ) from problem
        with (
            stripe_fake.running(options["port"], state=options["state"]) as fake,
            fake.delivering_to(options["site"]),
        ):
            for price_id, cents in FAKE_PRICES.values():
                fake.price(cents, currency=settings.BILLING_CURRENCY, price_id=price_id)
            self._set_missing_prices()
            self._print_settings(stripe_fake, fake.address, options["site"])
            self._wait_for_interrupt()

    def _set_missing_prices(self) -> None:
        """Give plans without a price a fake one. Prices that staff have set stay."""
        for tier, (price_id, cents) in FAKE_PRICES.items():
            TierPolicy.objects.filter(tier=tier, stripe_price_id=None).update(
                stripe_price_id=price_id, monthly_cents=cents
            )

    def _print_settings(self, stripe_fake: Any, address: str, site: str) -> None:
        self.stdout.write(
            "Start the site with these settings (`make run`), then open its plan page:\n"
            f"  STRIPE_SECRET_KEY={stripe_fake.SECRET_KEY}\n"
            f"  STRIPE_WEBHOOK_SECRETS={stripe_fake.WEBHOOK_SECRET}\n"
            f"  STRIPE_API_BASE={address}\n"
            f"Webhooks go to {site}. Advance time and make cards fail at {address}/control/panel\n"
            "Stop with Ctrl-C."
        )

    def _wait_for_interrupt(self) -> None:
        try:
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
