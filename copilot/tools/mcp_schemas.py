"""Arguments checked in full against a schema that a stranger wrote, in bounded time and without leaving here (A11.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from copilot.events import JSON

MOST_STEPS = 20_000  # keywords looked at; honest schemas of 8,000 characters need hundreds
MOST_PROBLEMS = 20

# An expression may run for ever on thirty characters, so none is: the server looks at those itself. Beside patterns
# for names nobody here can tell which names are left over.
_EXPRESSIONS = ("pattern", "patternProperties")
_LEFT_OVER = ("additionalProperties", "unevaluatedProperties")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")  # names, then schemas
_VALUES = ("enum", "const", "default", "examples")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class Unchecked(Exception):
    """The schema asks for more than is done for a stranger: other places, or too many steps."""


def misfits(
    arguments: Mapping[str, JSON], schema: Mapping[str, JSON]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Where the arguments differ from the schema: places and words. Raises Unchecked."""
    try:
        plain = _without_expressions(dict(schema))
        validator = _bounded(validator_for(plain, default=Draft202012Validator))(plain, registry=Registry())
        found = zip(validator.iter_errors(dict(arguments)), range(MOST_PROBLEMS), strict=False)
        return [(tuple(problem.absolute_path), problem.message[:200]) for problem, _ in found]
    except (Unresolvable, RecursionError, SchemaError, TypeError, ValueError, ArithmeticError) as problem:
        raise Unchecked(type(problem).__name__) from problem


def _bounded(kind: Any) -> Any:
    """The same rules, counted."""
    left = [MOST_STEPS]

    def counted(keyword: Keyword) -> Keyword:
        def look(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            left[0] -= 1
            if left[0] < 0:
                raise Unchecked("too many steps")
            yield from keyword(validator, value, instance, schema) or ()

        return look

    return extend(kind, {name: counted(keyword) for name, keyword in kind.VALIDATORS.items()})


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
