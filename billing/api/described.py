"""Stripe's door in the OpenAPI document: no view of REST's, so it is told there by hand (B16.1)."""

from __future__ import annotations

from typing import Any

PATH = "/api/v1/billing/stripe/webhook"
_ERROR = {"$ref": "#/components/schemas/Error"}


def with_webhook(result: dict[str, Any], generator: object, request: object, public: bool) -> dict[str, Any]:
    """A hook of drf-spectacular's, which made the rest."""
    result["paths"][PATH] = {
        "post": {
            "operationId": "receive_stripe_event",
            "summary": "Stripe tells what happened",
            "description": "For Stripe alone: the signature over the raw body is the only way in.",
            "tags": ["billing"],
            "security": [{}],
            "parameters": [
                {"in": "header", "name": "Stripe-Signature", "required": True, "schema": {"type": "string"}}
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "responses": {
                "200": _answer("Stored, now or before.", _RECEIVED),
                "400": _answer("Not signed by one of the secrets, too old, or not readable.", _ERROR),
                "405": {"description": "Method not allowed."},
                "413": _answer("More than 512 KiB.", _ERROR),
                "503": _answer("Payments are not set up here.", _ERROR),
            },
        }
    }
    return result


_RECEIVED = {"type": "object", "properties": {"received": {"type": "boolean"}}, "required": ["received"]}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
