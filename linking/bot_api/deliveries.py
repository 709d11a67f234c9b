"""Where a bot is told of things later, and what it was told (L11, L17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from billing.rest import answer, operation
from linking import deliveries
from linking.bodies import Body, NoBody, Query, body_of, query_of
from linking.bot_api.places import bot_of
from linking.deliveries import DeliveryShown, Endpoint
from linking.doors import BotDoor

LARGEST_NUMBER = 2**63 - 1


class EndpointAsked(Body):
    url: Annotated[str, Field(max_length=2000)]


class DeliveriesQuery(Query):
    before: Annotated[int, Field(ge=1, le=LARGEST_NUMBER)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


@dataclass(frozen=True, kw_only=True)
class DeliveriesPage:
    """The newest first; ask again with `before` for older ones."""

    items: list[DeliveryShown]
    before: int | None


class BotDeliveryEndpointView(BotDoor):
    scope = "deliveries:manage"

    @operation("Read the delivery endpoint", answers={200: Endpoint})
    def get(self, request: Request) -> HttpResponse:
        return answer(deliveries.get(bot_of(self.key)))

    @operation(
        "Set the delivery endpoint; its secret is shown when it is made",
        answers={200: Endpoint},
        body=EndpointAsked,
    )
    def put(self, request: Request) -> HttpResponse:
        url = body_of(request, EndpointAsked).url
        return answer(deliveries.put(bot_of(self.key), url, self.key))

    @operation("Remove the delivery endpoint", answers={204: None})
    def delete(self, request: Request) -> HttpResponse:
        deliveries.delete(bot_of(self.key))
        return HttpResponse(status=204)


class BotRotateSecretView(BotDoor):
    scope = "deliveries:manage"

    @operation("Make a new secret; for a day both sign", answers={200: Endpoint}, body=NoBody)
    def post(self, request: Request) -> HttpResponse:
        body_of(request, NoBody)
        return answer(deliveries.rotate(bot_of(self.key)))


class BotDeliveriesView(BotDoor):
    scope = "deliveries:manage"

    @operation("List deliveries", answers={200: DeliveriesPage}, query=DeliveriesQuery)
    def get(self, request: Request) -> HttpResponse:
        asked = query_of(request, DeliveriesQuery)
        items, before = deliveries.page(bot_of(self.key), before=asked.before, limit=asked.limit)
        return answer(DeliveriesPage(items=items, before=before))


class BotRedeliverView(BotDoor):
    scope = "deliveries:manage"

    @operation("Deliver once more, under the same id", answers={200: DeliveryShown}, body=NoBody)
    def post(self, request: Request, delivery_id: UUID) -> HttpResponse:
        body_of(request, NoBody)
        return answer(deliveries.redeliver(bot_of(self.key), delivery_id))
