"""The plan over REST: what it is, what another would cost, and the wish for another (B11.4, B12, B16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing import queries, redirects, subscriptions
from billing.api.doors import Door
from billing.api.parsing import Body, body_of
from billing.queries import Status
from billing.rest import answer, operation
from billing.subscriptions import Price, Ways, Wish

Askable = Literal["FREE", "PRO", "BUSINESS"]
Address = Annotated[str, Field(max_length=redirects.LONGEST)]


class WantedPlan(Body):
    tier: Askable
    success_url: Address = ""
    cancel_url: Address = ""


class PreviewedPlan(Body):
    tier: Askable


class PortalWanted(Body):
    return_url: Address = ""


@dataclass(frozen=True, kw_only=True)
class Portal:
    url: str


class BillingSubscriptionView(Door):
    @operation("The plan, and what is to become of it", answers={200: Status})
    def get(self, request: Request) -> HttpResponse:
        return answer(queries.subscription(self.caller.pk))

    @operation("Ask for a plan", answers={200: Status}, body=WantedPlan)
    def post(self, request: Request) -> HttpResponse:
        wanted = body_of(request, WantedPlan)
        page = redirects.plan_page()
        ways = Ways(
            success_url=redirects.checked("success_url", wanted.success_url) or f"{page}?paid",
            cancel_url=redirects.checked("cancel_url", wanted.cancel_url) or page,
        )
        return answer(subscriptions.change(self.caller.pk, Wish(tier=wanted.tier, ways=ways)))


class BillingPreviewView(Door):
    @operation("What a plan would cost now", answers={200: Price}, body=PreviewedPlan)
    def post(self, request: Request) -> HttpResponse:
        wanted = body_of(request, PreviewedPlan)
        return answer(subscriptions.preview(self.caller.pk, wanted.tier))


class BillingPortalView(Door):
    @operation("Stripe's own pages: card and invoices", answers={200: Portal}, body=PortalWanted)
    def post(self, request: Request) -> HttpResponse:
        wanted = body_of(request, PortalWanted)
        return_url = redirects.checked("return_url", wanted.return_url) or redirects.plan_page()
        return answer(Portal(url=subscriptions.portal(self.caller.pk, return_url=return_url)))
