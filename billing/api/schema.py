"""Stripe's door in the OpenAPI document: no view of REST's, so it is told there by hand (B16.1)."""

from __future__ import annotations

from typing import Any

WEBHOOK_PATH = "/api/v1/billing/stripe/webhook"
_ERROR_SCHEMA = {"$ref": "#/components/schemas/Error"}


def add_webhook_to_schema(
    result: dict[str, Any], generator: object, request: object, public: bool
) -> dict[str, Any]:
    """A hook of drf-spectacular's, which made the rest."""
    result["paths"][WEBHOOK_PATH] = {
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
                "200": _describe_response("Stored, now or before.", _RECEIVED_SCHEMA),
                "400": _describe_response(
                    "Not signed by one of the secrets, too old, or not readable.", _ERROR_SCHEMA
                ),
                "405": {"description": "Method not allowed."},
                "413": _describe_response("More than 512 KiB.", _ERROR_SCHEMA),
                "503": _describe_response("Payments are not set up here.", _ERROR_SCHEMA),
            },
        }
    }
    return result


_RECEIVED_SCHEMA = {
    "type": "object",
    "properties": {"received": {"type": "boolean"}},
    "required": ["received"],
}


def _describe_response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
