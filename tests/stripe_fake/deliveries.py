"""Webhooks of the fake: really signed, delivered as told: at once, late, twice, in any order, or never."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable

import stripe

from tests.stripe_fake.shapes import Obj
from tests.stripe_fake.world import World

Post = Callable[[bytes, str], int]  # body and signature header; the status that came back


def signed(body: bytes, secret: str, *, at: int | None = None) -> str:
    made = stripe.WebhookSignature.generate_signature_header(body.decode(), secret, at or int(time.time()))
    return str(made)


class Deliveries:
    """Events wait here in the order in which they happened, until somebody delivers them."""

    def __init__(self, world: World, secret: str, post: Post | None = None) -> None:
        self._world = world
        self._secret = secret
        self._from = 0
        self.post = post

    def waiting(self) -> list[Obj]:
        with self._world.lock:
            return self._world.events[self._from :]

    def deliver(self, events: Iterable[Obj] | None = None) -> list[int]:
        """All that wait, in order; or those given, in that order and as often as they are named."""
        if events is None:
            events = self.take()
        return [self.deliver_one(event) for event in events]

    def take(self) -> list[Obj]:
        """What waits, which then waits no more: to be held, reordered, doubled or dropped."""
        with self._world.lock:
            taken, self._from = self._world.events[self._from :], len(self._world.events)
            return taken

    def deliver_one(self, event: Obj) -> int:
        assert self.post is not None, "nobody to deliver to"
        body = json.dumps(event).encode()
        return self.post(body, signed(body, self._secret))


class Postman(threading.Thread):
    """Brings everything to one address as soon as it happens, in order, and tries again what was not taken."""

    TRIES = 20
    PAUSE_SECONDS = 0.1

    def __init__(self, deliveries: Deliveries, url: str) -> None:
        super().__init__(daemon=True)
        self._deliveries = deliveries
        self._over = threading.Event()
        deliveries.post = lambda body, signature: post(url, body, signature)

    def run(self) -> None:
        while not self._over.wait(self.PAUSE_SECONDS):
            for event in self._deliveries.take():
                self._bring(event)

    def _bring(self, event: Obj) -> None:
        for tried in range(self.TRIES):
            if self._deliveries.deliver_one(event) == 200 or self._over.wait(min(0.1 * 2**tried, 5)):
                return

    def stop(self) -> None:
        self._over.set()
        self.join(10)


def post(url: str, body: bytes, signature: str) -> int:
    """The status that came back; 0 when nobody answered."""
    headers = {"Content-Type": "application/json", "Stripe-Signature": signature}
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
