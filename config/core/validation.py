"""Validate request data into typed values; errors name each wrong field."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from config.core.errors import InvalidRequest
from config.core.json_values import JSON


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


M = TypeVar("M", bound=BaseModel)


def validate_body(model: type[M], data: JSON) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        raise InvalidRequest(_describe_errors(problem)) from problem
    except RecursionError as problem:
        raise InvalidRequest("The JSON is nested too deeply.") from problem


def _describe_errors(problem: ValidationError) -> str:
    """Describe at most three problems, without the values that caused them."""
    found = problem.errors(include_url=False, include_context=False, include_input=False)
    places = [".".join(str(part) for part in error["loc"] if part != "command") for error in found[:3]]
    said = [
        f"{place[:100] or 'body'}: {error['msg'][:400]}" for place, error in zip(places, found, strict=False)
    ]
    return "; ".join(said)


def parse_uuid(text: str) -> UUID | None:
    """Parse a canonical lower-case id; None for anything else."""
    try:
        value = UUID(text)
    except ValueError:
        return None
    return value if str(value) == text else None
