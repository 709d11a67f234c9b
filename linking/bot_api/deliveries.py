"""Views for a bot's webhook endpoint and its deliveries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from django.http import HttpResponse
from pydantic import Field
from rest_framework.request import Request

from config.core.api.parsing import QueryParams, RequestBody, parse_query
from config.core.api.views import document_operation, respond_json
from linking.api.serializers import NoBody, parse_body
from linking.bot_api.views import BotAPIView, to_bot_account
from linking.webhook_deliveries import endpoints, sender
from linking.webhook_deliveries.endpoints import Endpoint
from linking.webhook_deliveries.sender import DeliveryShown

MAX_DELIVERY_NUMBER = 2**63 - 1


class EndpointAsked(RequestBody):
    url: Annotated[str, Field(max_length=2000)]


class DeliveriesQuery(QueryParams):
    before: Annotated[int, Field(ge=1, le=MAX_DELIVERY_NUMBER)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


@dataclass(frozen=True, kw_only=True)
class DeliveriesPage:
    """Deliveries, newest first; request older ones with `before`."""

    items: list[DeliveryShown]
    before: int | None


class BotDeliveryEndpointView(BotAPIView):
    scope = "deliveries:manage"

    @document_operation("Read the delivery endpoint", answers={200: Endpoint})
    def get(self, request: Request) -> HttpResponse:
        return respond_json(endpoints.get_endpoint(to_bot_account(self.key)))

    @document_operation(
        "Set the delivery endpoint; the secret is returned only when it is created",
        answers={200: Endpoint},
        body=EndpointAsked,
    )
    def put(self, request: Request) -> HttpResponse:
        url = parse_body(request, EndpointAsked).url
        return respond_json(endpoints.set_endpoint(to_bot_account(self.key), url, self.key))

    @document_operation("Remove the delivery endpoint", answers={204: None})
    def delete(self, request: Request) -> HttpResponse:
        endpoints.delete_endpoint(to_bot_account(self.key))
        return HttpResponse(status=204)


class BotRotateSecretView(BotAPIView):
    scope = "deliveries:manage"

    @document_operation(
        "Rotate the secret; both secrets sign for a day", answers={200: Endpoint}, body=NoBody
    )
    def post(self, request: Request) -> HttpResponse:
        parse_body(request, NoBody)
        return respond_json(endpoints.rotate_secret(to_bot_account(self.key)))


class BotDeliveriesView(BotAPIView):
    scope = "deliveries:manage"

    @document_operation("List deliveries", answers={200: DeliveriesPage}, query=DeliveriesQuery)
    def get(self, request: Request) -> HttpResponse:
        query = parse_query(request, DeliveriesQuery)
        items, before = sender.list_deliveries(
            to_bot_account(self.key), before=query.before, limit=query.limit
        )
        return respond_json(DeliveriesPage(items=items, before=before))


class BotRedeliverView(BotAPIView):
    scope = "deliveries:manage"

    @document_operation("Deliver again with the same id", answers={200: DeliveryShown}, body=NoBody)
    def post(self, request: Request, delivery_id: UUID) -> HttpResponse:
        parse_body(request, NoBody)
        return respond_json(sender.retry_delivery(to_bot_account(self.key), delivery_id))
