"""Models by OpenAI's names for them: our tiers, and the catalogue's names of what serves them (A4, E4.2)."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from billing import queries as billing
from copilot.bridge import in_thread
from copilot.compat.doors import Caller, answer, door
from copilot.compat.errors import NoSuchModel
from copilot.providers import catalogue

OWNER = "pilothouse"


def tier_of(model: str) -> str:
    """Which tier a model's name means; whether the caller's plan includes it is dispatch's to say."""
    tiers = catalogue.tiers()
    if model in tiers:
        return model
    for tier, entry in tiers.items():
        if model in (entry.name, entry.model):
            return tier
    raise NoSuchModel(f"There is no model {model[:100]!r}.", hint="GET /v1/models names them.", param="model")


def _names(user_id: int) -> list[str]:
    """Tiers first: their names stay when the models behind them change."""
    plan = billing.plan(user_id)
    allowed = {
        tier: entry
        for tier, entry in catalogue.tiers().items()
        if not plan.model_tiers or tier in plan.model_tiers
    }
    return list(dict.fromkeys([*allowed, *(entry.model for entry in allowed.values())]))


def _shown(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


async def list_models(request: HttpRequest, caller: Caller) -> HttpResponse:
    names = await in_thread(_names, caller.user_id)
    return answer({"object": "list", "data": [_shown(name) for name in names]})


async def retrieve_model(request: HttpRequest, caller: Caller, model: str) -> HttpResponse:
    if model not in await in_thread(_names, caller.user_id):
        raise NoSuchModel(f"There is no model {model[:100]!r}.", param="model")
    return answer(_shown(model))


models = door(GET=list_models)
model = door(GET=retrieve_model)
