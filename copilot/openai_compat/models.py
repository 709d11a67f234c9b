"""Models as OpenAI lists them: our tiers, and the names of the models that serve them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from billing.selectors import plan_status
from config.core.db import run_in_thread
from copilot.openai_compat.base import ApiCaller, build_view, render_json
from copilot.openai_compat.errors import ModelNotFound
from copilot.providers import catalogue

MODEL_OWNER = "pilothouse"


def resolve_tier(model: str) -> str:
    """Return the tier that a model name stands for. Admission decides later whether the caller's plan includes it."""
    tiers = catalogue.get_tier_entries()
    if model in tiers:
        return model
    for tier, entry in tiers.items():
        if model in (entry.name, entry.model):
            return tier
    raise ModelNotFound(
        f"The model {model[:100]!r} does not exist.", hint="GET /v1/models lists the models.", param="model"
    )


def _list_model_names(user_id: int) -> list[str]:
    """Put tiers first: their names stay the same when the models behind them change."""
    plan = plan_status.get_plan_terms(user_id)
    allowed = {
        tier: entry
        for tier, entry in catalogue.get_tier_entries().items()
        if not plan.model_tiers or tier in plan.model_tiers
    }
    return list(dict.fromkeys([*allowed, *(entry.model for entry in allowed.values())]))


def _serialize_model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": MODEL_OWNER}


async def list_models(request: HttpRequest, caller: ApiCaller) -> HttpResponse:
    names = await run_in_thread(_list_model_names, caller.user_id)
    return render_json({"object": "list", "data": [_serialize_model(name) for name in names]})


async def retrieve_model(request: HttpRequest, caller: ApiCaller, model: str) -> HttpResponse:
    if model not in await run_in_thread(_list_model_names, caller.user_id):
        raise ModelNotFound(f"The model {model[:100]!r} does not exist.", param="model")
    return render_json(_serialize_model(model))


models_view = build_view(GET=list_models)
model_view = build_view(GET=retrieve_model)
