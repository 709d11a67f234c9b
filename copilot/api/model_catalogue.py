"""REST view that lists models, tiers and modes, without prices and credentials."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpResponse
from rest_framework.request import Request

from billing.selectors import plan_status
from config.core.api.views import document_operation, respond_json
from copilot.api.base import AuthenticatedApiView
from copilot.providers import catalogue
from copilot.providers.base import CatalogueEntry


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str
    model: str
    demo: bool
    label: str | None
    context_window: int | None
    supports_tools: bool
    supports_images: bool
    can_reason: bool


@dataclass(frozen=True, kw_only=True)
class Tier:
    tier: str
    name: str
    demo: bool
    label: str | None
    allowed: bool  # by the caller's plan


@dataclass(frozen=True, kw_only=True)
class Models:
    tiers: list[Tier]
    modes: list[str]
    models: list[Model]


class ModelsView(AuthenticatedApiView):
    @document_operation("List tiers, modes and models", answers={200: Models})
    def get(self, request: Request) -> HttpResponse:
        plan = plan_status.get_plan_terms(self.caller_id)
        tiers = [
            Tier(
                tier=tier,
                name=entry.name,
                demo=entry.demo,
                label=_get_demo_label(entry),
                allowed=not plan.model_tiers or tier in plan.model_tiers,
            )
            for tier, entry in catalogue.get_tier_entries().items()
        ]
        modes = [mode for mode in catalogue.MODES if not plan.modes or mode in plan.modes]
        models = [_serialize_model(entry) for entry in catalogue.list_entries()]
        return respond_json(Models(tiers=tiers, modes=modes, models=models))


def _serialize_model(entry: CatalogueEntry) -> Model:
    return Model(
        name=entry.name,
        model=entry.model,
        demo=entry.demo,
        label=_get_demo_label(entry),
        context_window=entry.context_window or None,
        supports_tools=entry.supports_tools,
        supports_images=entry.supports_images,
        can_reason=entry.can_reason,
    )


def _get_demo_label(entry: CatalogueEntry) -> str | None:
    return catalogue.DEMO_LABEL if entry.demo else None
