"""A Stripe of our own: a local server that keeps state, has a clock to advance, and signs its webhooks (B20.2).

`CONTRACT.md` beside this says which behaviour of Stripe's each rule copies. In a test:

    with stripe_fake.running() as fake:            # settings.STRIPE_API_BASE = fake.address
        fake.pay(session_id)                       # what a customer would press
        fake.advance(days=30)                      # renewals, trial ends, phases, retries
        fake.faults.add("reset_after", "POST", "/v1/customers")
        fake.webhooks.deliver()                    # signed, to `fake.webhooks.post`
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.stripe_fake import checkouts, clock, invoices, money, routes, subscriptions
from tests.stripe_fake.deliveries import Deliveries, Post, Postman, signed
from tests.stripe_fake.server import Seen, Server
from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import DAY, CardBehaviour, World

__all__ = ["SECRET_KEY", "WEBHOOK_SECRET", "Fake", "Obj", "Post", "Seen", "running", "signed"]

SECRET_KEY = "sk_test_fake"
WEBHOOK_SECRET = "whsec_fake"
WEBHOOK_PATH = "/api/v1/billing/stripe/webhook"


class Fake:
    """The control channel: what customers, banks, time and Stripe's staff do."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.world = server.world
        self.faults = server.faults
        self.address = server.world.address
        self.webhooks = Deliveries(server.world, WEBHOOK_SECRET)

    # --- what was asked of it ---------------------------------------------------------------------------

    @property
    def calls(self) -> list[Seen]:
        return self._server.calls

    def calls_of(self, method: str, path: str) -> list[Seen]:
        """By how their path begins."""
        return [one for one in self.calls if one.method == method and one.path.startswith(path)]

    def all(self, kind: str) -> list[Obj]:
        """The newest first."""
        with self.world.lock:
            return self.world.all(kind)

    # --- set-up -----------------------------------------------------------------------------------------

    def price(self, cents: int, *, interval: str = "month", currency: str = "usd", price_id: str = "") -> str:
        """With an id of one's own it is made once."""
        params: Obj = {"currency": currency, "unit_amount": str(cents), "recurring": {"interval": interval}}
        with self.world.lock:
            if price_id in self.world.objects:
                return price_id
            made = routes.create_price(self.world, "", params)
            if price_id:
                self.world.objects[price_id] = self.world.objects.pop(made["id"])
                made["id"] = price_id
            return str(made["id"])

    def card(self, behaviour: CardBehaviour, customer_id: str = "") -> None:
        """Of one customer, or of everybody who has none of his own."""
        with self.world.lock:
            if customer_id:
                self.world.cards[customer_id] = behaviour
            else:
                self.world.default_card = behaviour

    def save_card(self, customer_id: str) -> str:
        with self.world.lock:
            return self.world.save_card(customer_id)

    def subscribe(self, customer_id: str, price_id: str, *, trial_days: int = 0) -> Obj:
        """As if by a checkout long ago: with a card, or on trial without one."""
        trial = {"trial_period_days": str(trial_days)} if trial_days else None
        with self.world.lock:
            if not trial:
                self.world.save_card(customer_id)
            return subscriptions.begin(self.world, customer_id, price_id, metadata={}, trial=trial)

    # --- what customers and banks do --------------------------------------------------------------------

    def pay(self, session_id: str, *, with_card: bool = True, later: bool = False) -> bool:
        """The button of a checkout page; False when the bank says no."""
        with self.world.lock:
            session = self.world.get(session_id, "checkout.session")
            try:
                checkouts.complete(self.world, session, with_card=with_card, later=later)
            except checkouts.Declined:
                return False
            return True

    def settle(self, session_id: str) -> None:
        """The bank speaks about what was paid `later`."""
        with self.world.lock:
            checkouts.settle(self.world, self.world.get(session_id, "checkout.session"))

    def pay_invoice(self, invoice_id: str) -> bool:
        """The button of an invoice's page."""
        with self.world.lock:
            invoice = self.world.get(invoice_id, "invoice")
            if not invoices.attempt(self.world, invoice):
                return False
            subscriptions.invoice_paid(self.world, invoice)
            return True

    def refund(
        self, intent_id: str, cents: int, *, status: Literal["pending", "succeeded"] = "succeeded"
    ) -> str:
        with self.world.lock:
            return str(
                money.make_refund(self.world, self._charge(intent_id), amount=cents, status=status)["id"]
            )

    def end_refund(self, refund_id: str, status: Literal["succeeded", "failed", "canceled"]) -> None:
        with self.world.lock:
            money.end_refund(self.world, self.world.get(refund_id, "refund"), status)

    def dispute(self, intent_id: str, cents: int) -> str:
        with self.world.lock:
            return str(money.open_dispute(self.world, self._charge(intent_id), amount=cents)["id"])

    def close_dispute(self, dispute_id: str, *, won: bool) -> None:
        with self.world.lock:
            money.close_dispute(self.world, self.world.get(dispute_id, "dispute"), won=won)

    def _charge(self, intent_id: str) -> Obj:
        intent = self.world.get(intent_id, "payment_intent")
        return self.world.get(intent["latest_charge"], "charge")

    @contextmanager
    def delivering_to(self, site: str) -> Iterator[None]:
        """Webhooks go to a running site by themselves."""
        postman = Postman(self.webhooks, f"{site}{WEBHOOK_PATH}")
        postman.start()
        try:
            yield
        finally:
            postman.stop()

    # --- time -------------------------------------------------------------------------------------------

    def advance(self, *, days: float = 0, seconds: float = 0) -> None:
        clock.advance(self.world, int(days * DAY + seconds))


@contextmanager
def running(port: int = 0, *, state: Path | None = None, first_number: int = 1) -> Iterator[Fake]:
    """With a file for its state, it continues where it stopped.

    `first_number` is that of its ids, for where what an earlier one made is still remembered.
    """
    world = World(first_number)
    if state is not None and state.exists():
        world.load(state)
    with Server(("127.0.0.1", port), world, SECRET_KEY) as server:
        world.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield Fake(server)
        finally:
            server.over.set()
            server.shutdown()
            thread.join(10)
            if state is not None:
                world.save(state)
            if server.bugs:
                raise AssertionError("the fake is broken") from server.bugs[0]
