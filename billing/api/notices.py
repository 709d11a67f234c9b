"""Billing's notices over REST."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import Http404, HttpResponse
from rest_framework.request import Request

from billing import notices
from billing.api.doors import Door
from billing.api.parsing import NoBody, body_of
from billing.notices import Notice
from billing.rest import answer, nothing, operation


@dataclass(frozen=True, kw_only=True)
class Notices:
    results: list[Notice]


class BillingNoticesView(Door):
    @operation("What billing has to tell", answers={200: Notices})
    def get(self, request: Request) -> HttpResponse:
        return answer(Notices(results=notices.open_ones(self.caller.pk)))


class BillingNoticeDismissView(Door):
    @operation("Dismiss a notice", answers={204: None})
    def post(self, request: Request, notice_id: int) -> HttpResponse:
        body_of(request, NoBody)
        if not notices.dismiss(self.caller.pk, notice_id):
            raise Http404
        return nothing()
