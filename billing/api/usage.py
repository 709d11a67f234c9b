"""Use over REST: what is left, and a reset for credits (B16)."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from billing import queries, usage
from billing.api.doors import Door, array_of
from billing.api.parsing import IDEMPOTENCY_KEY, NoBody, body_of, key_of
from billing.queries import PlanOffer, UsageView
from billing.rest import answer, operation
from billing.usage import Reset


class BillingUsageView(Door):
    @operation("How much of the limits is used", answers={200: UsageView})
    def get(self, request: Request) -> HttpResponse:
        return answer(queries.usage(self.caller.pk))


class BillingUsageResetView(Door):
    @operation("Buy the day's limit anew", answers={200: Reset}, parameters=(IDEMPOTENCY_KEY,))
    def post(self, request: Request) -> HttpResponse:
        body_of(request, NoBody)
        return answer(usage.reset(self.caller.pk, key=key_of(request)))


class BillingPlansView(Door):
    @operation("The plans there are", answers={200: array_of(PlanOffer)})
    def get(self, request: Request) -> HttpResponse:
        return answer(queries.plan_offers())
