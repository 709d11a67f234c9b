"""The JSON type, and the validation of request data into typed values. Errors name each wrong field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from config.core.errors import InvalidRequest


def iterate_children(value: JSON) -> Iterable[JSON]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
        case _:
            return ()


JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]


class StrictModel(BaseModel):
    """A JSON object with exact types and no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FieldError(NamedTuple):
    field: str  # a dotted path; empty for the value as a whole
    message: str


def list_field_errors(problem: ValidationError, *, without: str = "") -> list[FieldError]:
    """List what is wrong, without the values that caused it. `without` is a wrapper that clients do not see."""
    errors = problem.errors(include_url=False, include_context=False, include_input=False)
    return [
        FieldError(".".join(str(part) for part in error["loc"] if part != without)[:100], error["msg"])
        for error in errors
    ]


M = TypeVar("M", bound=BaseModel)


def validate_body(model: type[M], data: JSON) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as problem:
        raise InvalidRequest(_describe_errors(problem)) from problem
    except RecursionError as problem:
        raise InvalidRequest("The JSON is nested too deeply.") from problem


def _describe_errors(problem: ValidationError) -> str:
    """Describe at most three problems in one line."""
    errors = list_field_errors(problem, without="command")[:3]
    return "; ".join(f"{error.field or 'body'}: {error.message[:400]}" for error in errors)


def parse_uuid(text: str) -> UUID | None:
    """Parse a canonical lower-case id; None for anything else."""
    try:
        value = UUID(text)
    except ValueError:
        return None
    return value if str(value) == text else None
