"""What the fake knows: objects by id, its own clock, cards and how they behave, and every event that happened."""

from __future__ import annotations

import copy
import json
import threading
import time
from pathlib import Path
from typing import Any, Literal

from tests.stripe_fake.shapes import Obj, check, complete

API_VERSION = "2026-10-28.endive"
DAY = 24 * 60 * 60
MONTH = 30 * DAY  # every month of the fake has thirty days
CardBehaviour = Literal["ok", "decline", "authenticate"]
DunningEnd = Literal["canceled", "unpaid", "past_due"]
Rule = Literal[
    "keys_repeat_answers",
    "keys_belong_to_one_request",
    "bearer_is_checked",
    "version_is_checked",
    "no_cancellation_while_scheduled",
    "nothing_else_with_from_subscription",
    "few_parameters_with_pending_updates",
    "no_release_of_what_is_over",
    "pages_stay_open_half_an_hour_to_a_day",
    "periods_are_on_items",
    "pending_updates_expire",
    "lists_come_in_pages",
    "every_change_is_told",
]  # what `CONTRACT.md` says about each


class Problem(Exception):
    """An answer that is an error, as Stripe words it."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"type": kind, "message": message, "code": code, **more}}


class World:
    """One Stripe account in test mode. Hold `lock` to touch it."""

    def __init__(self, first_number: int = 1) -> None:
        self.lock = threading.RLock()
        self.now = int(time.time())
        self.objects: dict[str, Obj] = {}
        self.events: list[Obj] = []
        self.cards: dict[str, CardBehaviour] = {}  # by customer
        self.default_card: CardBehaviour = "ok"
        self.retry_days: tuple[int, ...] = (3, 5, 7)  # after the first failure, each after the one before
        self.dunning_end: DunningEnd = "canceled"
        self.address = ""  # of the fake itself
        self.broken_rules: set[Rule] = set()  # to prove that a test would notice
        self.plans: dict[str, Obj] = {}  # what each checkout was asked to sell
        self._last_number = first_number - 1

    def keeps(self, rule: Rule) -> bool:
        return rule not in self.broken_rules

    # --- objects ----------------------------------------------------------------------------------------

    def new_id(self, prefix: str) -> str:
        self._last_number += 1
        return f"{prefix}_fake{self._last_number:06d}"

    def make(self, kind: str, prefix: str, **fields: Any) -> Obj:
        """A new object, kept and checked."""
        wanted = {"id": self.new_id(prefix), "livemode": False, "created": self.now, **fields}
        made = complete(kind, **{name: value for name, value in wanted.items() if _has(kind, name)})
        check(made)
        self.objects[made["id"]] = made
        return made

    def get(self, object_id: str, kind: str) -> Obj:
        found = self.objects.get(object_id)
        if found is None or found["object"] != kind:
            raise Problem(f"No such {kind}: '{object_id}'", status=404, code="resource_missing", param="id")
        return found

    def all(self, kind: str, **wanted: Any) -> list[Obj]:
        """The newest first, as Stripe lists."""
        found = [one for one in self.objects.values() if one["object"] == kind]
        return [one for one in reversed(found) if all(one[name] == want for name, want in wanted.items())]

    # --- kept between two runs, for a person who clicks through ------------------------------------------

    KEPT = ("now", "objects", "cards", "plans", "_last_number")

    def save(self, path: Path) -> None:
        with self.lock:
            path.write_text(json.dumps({name: getattr(self, name) for name in self.KEPT}))

    def load(self, path: Path) -> None:
        """Time went on meanwhile; what was due happens when it is advanced next."""
        for name, value in json.loads(path.read_text()).items():
            setattr(self, name, value)
        self.now = max(self.now, int(time.time()))

    # --- what happens -----------------------------------------------------------------------------------

    def emit(self, event_type: str, obj: Obj, previous: Obj | None = None) -> None:
        """Every change is told, also one that our own call caused."""
        check(obj)
        if not self.keeps("every_change_is_told"):
            return
        data: Obj = {"object": copy.deepcopy(obj)}
        if previous is not None:
            data["previous_attributes"] = previous
        event = complete(
            "event",
            id=self.new_id("evt"),
            api_version=API_VERSION,
            created=self.now,
            data=data,
            livemode=False,
            pending_webhooks=1,
            type=event_type,
            request={"id": None, "idempotency_key": None},
        )
        check(event)
        self.events.append(event)
        self.objects[event["id"]] = event

    # --- cards ------------------------------------------------------------------------------------------

    def card_of(self, customer_id: str) -> str | None:
        """The one that would be charged: chosen, else the newest."""
        customer = self.get(customer_id, "customer")
        chosen = customer["invoice_settings"]["default_payment_method"]
        if chosen:
            return str(chosen)
        saved = self.all("payment_method", customer=customer_id)
        return saved[0]["id"] if saved else None

    def save_card(self, customer_id: str) -> str:
        card = self.make(
            "payment_method",
            "pm",
            type="card",
            customer=customer_id,
            billing_details={"address": None, "email": None, "name": None, "phone": None, "tax_id": None},
            metadata={},
        )
        self.emit("payment_method.attached", card)
        return str(card["id"])

    def behaviour(self, customer_id: str) -> CardBehaviour:
        return self.cards.get(customer_id, self.default_card)


def _has(kind: str, name: str) -> bool:
    return name not in ("livemode", "created") or name in complete_fields(kind)


def complete_fields(kind: str) -> set[str]:
    from tests.stripe_fake.shapes import KINDS

    return set(KINDS[kind].__annotations__)


def listed(found: list[Obj], url: str, *, has_more: bool = False) -> Obj:
    return {"object": "list", "data": found, "has_more": has_more, "url": url}
