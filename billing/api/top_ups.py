"""Credit bought over REST: a top-up by hand, and the one that buys itself (B10, B16)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated
from uuid import UUID

from django.http import Http404, HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing import payments, queries, redirects
from billing.api.doors import Door
from billing.api.parsing import IDEMPOTENCY_KEY, Body, body_of, key_of
from billing.models import TopUp
from billing.payments import AutoTopUpView, Purchase, Wish
from billing.rest import answer, operation

MOST_CENTS = 2**62  # what the policy allows is less; this is what a number can be
Cents = Annotated[int, Field(ge=0, le=MOST_CENTS)]
Address = Annotated[str, Field(max_length=redirects.LONGEST)]


class WantedTopUp(Body):
    amount_cents: Cents
    success_url: Address = ""
    cancel_url: Address = ""
    save_card: bool = False


class WantedAutoTopUp(Body):
    enabled: bool
    threshold_cents: Cents = 0
    amount_cents: Cents = 0
    consent: bool = False


@dataclass(frozen=True, kw_only=True)
class BillingTopUp:
    """`url` is where it is paid, "" once it is not open."""

    id: UUID
    amount_cents: int
    state: str
    created_at: datetime
    url: str


def _shown(top_up: TopUp) -> BillingTopUp:
    is_open = top_up.state == TopUp.State.OPEN
    return BillingTopUp(
        id=top_up.pk,
        amount_cents=top_up.amount_cents,
        state=top_up.state,
        created_at=top_up.created_at,
        url=top_up.checkout_url if is_open else "",
    )


class BillingTopUpsView(Door):
    @operation(
        "Buy credit on a page of Stripe's",
        answers={201: BillingTopUp},
        body=WantedTopUp,
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request) -> HttpResponse:
        wanted = body_of(request, WantedTopUp)
        page = redirects.plan_page()
        purchase = Purchase(
            amount_cents=wanted.amount_cents,
            success_url=redirects.checked("success_url", wanted.success_url) or f"{page}?top_up={{top_up}}",
            cancel_url=redirects.checked("cancel_url", wanted.cancel_url) or page,
            save_card=wanted.save_card,
        )
        return answer(_shown(payments.buy(self.caller.pk, purchase, key=key_of(request))), status=201)


class BillingTopUpView(Door):
    @operation("One top-up", answers={200: BillingTopUp})
    def get(self, request: Request, top_up_id: UUID) -> HttpResponse:
        found = queries.top_up(self.caller.pk, top_up_id)
        if found is None:
            raise Http404
        return answer(_shown(found))


class BillingAutoTopUpView(Door):
    @operation("Whether credit buys itself", answers={200: AutoTopUpView})
    def get(self, request: Request) -> HttpResponse:
        return answer(payments.settings_of(self.caller.pk))

    @operation("Let credit buy itself, or not", answers={200: AutoTopUpView}, body=WantedAutoTopUp)
    def put(self, request: Request) -> HttpResponse:
        wanted = body_of(request, WantedAutoTopUp)
        wish = Wish(
            enabled=wanted.enabled,
            threshold_cents=wanted.threshold_cents,
            amount_cents=wanted.amount_cents,
            consent=wanted.consent,
        )
        return answer(payments.configure(self.caller.pk, wish))
