"""Add the Stripe webhook to the OpenAPI document; it is a plain Django view, which drf-spectacular does not see."""

from __future__ import annotations

from typing import Any

WEBHOOK_PATH = "/api/v1/billing/stripe/webhook"
_ERROR_SCHEMA = {"$ref": "#/components/schemas/Error"}


def add_webhook_to_schema(
    result: dict[str, Any], generator: object, request: object, public: bool
) -> dict[str, Any]:
    result["paths"][WEBHOOK_PATH] = {
        "post": {
            "operationId": "receive_stripe_event",
            "summary": "Receive a Stripe event",
            "description": "For Stripe only, authenticated by the signature over the raw body.",
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
                "200": _describe_response("Stored, now or earlier.", _RECEIVED_SCHEMA),
                "400": _describe_response(
                    "The signature is invalid or too old, or the body is unreadable.", _ERROR_SCHEMA
                ),
                "405": {"description": "Method not allowed."},
                "413": _describe_response("More than 512 KiB.", _ERROR_SCHEMA),
                "503": _describe_response("Payments are not set up.", _ERROR_SCHEMA),
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
