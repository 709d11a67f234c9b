"""Arguments checked in full against a schema that a stranger wrote, in bounded time and without leaving here (A11.6)."""

from __future__ import annotations

from collections.abc import Mapping

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from copilot import schemas
from copilot.events import JSON

# An expression may run for ever on thirty characters, so none is: the server looks at those itself. Beside patterns
# for names nobody here can tell which names are left over.
_EXPRESSIONS = ("pattern", "patternProperties")
_LEFT_OVER = ("additionalProperties", "unevaluatedProperties")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")  # names, then schemas
_VALUES = ("enum", "const", "default", "examples")


class Unchecked(Exception):
    """The schema asks for more than is done for a stranger: other places, or too many steps."""


def misfits(
    arguments: Mapping[str, JSON], schema: Mapping[str, JSON]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Where the arguments differ from the schema: places and words. Raises Unchecked."""
    try:
        plain = _without_expressions(dict(schema))
        assert isinstance(plain, dict)
        return schemas.find_misfits(validator_for(plain, default=Draft202012Validator), plain, arguments)
    except (schemas.TooCostly, RecursionError, TypeError) as problem:
        raise Unchecked(type(problem).__name__) from problem


def _without_expressions(schema: JSON) -> JSON:
    if isinstance(schema, list):
        return [_without_expressions(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = set(_EXPRESSIONS)
    if "patternProperties" in schema:
        dropped.update(_LEFT_OVER)
    return {key: _inside(key, value) for key, value in schema.items() if key not in dropped}


def _inside(key: str, value: JSON) -> JSON:
    if key in _VALUES:
        return value
    if key in _NAMED and isinstance(value, dict):
        return {name: _without_expressions(one) for name, one in value.items()}
    return _without_expressions(value)
