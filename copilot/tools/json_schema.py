"""JSON Schemas that people, models and MCP servers wrote: checked, and checked against, in bounded time.

A library's validator is not bounded: `uniqueItems` compares all pairs, alternatives multiply, every error prints the
whole value, and expressions may run for ever. Here each keyword is paid for out of a fixed number of steps, by the
size of what it looks at, and nothing is ever fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UndefinedTypeCheck, UnknownType, ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from config.core.json_values import JSON

MAX_PROPERTIES = 50
MAX_SCHEMA_CHARACTERS = 32_000  # of a schema, and of the inputs of a run
MAX_REPORTED_PROBLEMS = 20
MAX_CHECK_STEPS = 50_000  # for one check, a fifth of a second; honest ones need hundreds
MAX_SCHEMA_DEPTH = 150  # of keywords; a schema inside a schema takes five against the rules of schemas
MAX_META_SCHEMA_STEPS = 100_000  # each schema inside a schema takes some 150

# What would fetch, recur or take for ever: a schema of inputs needs none of them.
FORBIDDEN_KEYWORDS = {
    "$ref": "references are not allowed",
    "$dynamicRef": "references are not allowed",
    "$recursiveRef": "references are not allowed",
    "$id": "identifiers are not allowed",
    "pattern": "patterns are not allowed; say it in the description",
    "patternProperties": "patterns are not allowed; name the properties",
    "unevaluatedProperties": "this keyword is not allowed; use additionalProperties",
    "unevaluatedItems": "this keyword is not allowed; use items",
}
_NAMED_SUBSCHEMAS = ("properties", "$defs", "definitions", "dependentSchemas")  # names, then schemas
_VALUE_KEYWORDS = (
    "enum",
    "const",
    "default",
    "examples",
    "required",
    "dependentRequired",
)  # values, not schemas


KeywordValidator = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class SchemaTooComplex(Exception):
    """The check was given up: too many steps, a reference that leads nowhere, or values nobody can compare."""


# --- schemas of inputs -------------------------------------------------------------------------------


def find_schema_problems(schema: Mapping[str, JSON]) -> list[str]:
    """Say why this is no schema of inputs; an empty one asks for nothing and is fine."""
    if not schema:
        return []
    try:
        if _is_too_long(schema):
            return [f"inputs_schema: at most {MAX_SCHEMA_CHARACTERS:,} characters."]
        if not is_storable(schema):
            return ["inputs_schema: holds a character that cannot be kept."]
        refused = [
            f"inputs_schema{at}: {FORBIDDEN_KEYWORDS[name]}."
            for at, name in _walk_keywords(schema, "")
            if name in FORBIDDEN_KEYWORDS
        ]
        if refused:
            return refused[:MAX_REPORTED_PROBLEMS]
        check_schema(schema)
    except SchemaError as problem:
        return [f"inputs_schema{_format_path(problem.absolute_path)}: {problem.message[:200]}"]
    except RecursionError:
        return ["inputs_schema: is nested too deeply."]
    except SchemaTooComplex:
        return ["inputs_schema: is too complex. Use fewer alternatives."]
    found = []
    if schema.get("type") != "object":
        found.append('inputs_schema: its "type" must be "object".')
    if len(list_property_names(schema)) > MAX_PROPERTIES:
        found.append(f"inputs_schema: at most {MAX_PROPERTIES} properties.")
    return found


def find_input_problems(schema: Mapping[str, JSON], inputs: Mapping[str, JSON]) -> list[str]:
    """Say where inputs differ from what the schema asks for; an empty schema takes none."""
    if not schema:
        return [f"{name[:200]}: this agent takes no inputs." for name in list(inputs)[:MAX_REPORTED_PROBLEMS]]
    try:
        if _is_too_long(inputs):
            return [f"They have more than {MAX_SCHEMA_CHARACTERS:,} characters."]
        return [
            f"{_format_path(place).lstrip('.') or 'inputs'}: {words}"
            for place, words in find_validation_errors(Draft202012Validator, schema, inputs)
        ]
    except RecursionError:
        return ["They are nested too deeply."]
    except SchemaTooComplex:
        return ["They are too complex to be checked against what the agent asks for."]


# --- bounded checks ----------------------------------------------------------------------------------


def find_validation_errors(
    kind: Any, schema: Mapping[str, JSON], value: Mapping[str, JSON]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Return places and words of the first misfits by the rules of `kind`, a validator of jsonschema's.

    Raises TooCostly or RecursionError. Expressions must have been removed from the schema.
    """
    validator = _make_bounded_validator(kind, MAX_CHECK_STEPS)(dict(schema), registry=Registry())
    try:
        found = zip(validator.iter_errors(dict(value)), range(MAX_REPORTED_PROBLEMS), strict=False)
        return [(tuple(problem.absolute_path), problem.message[:200]) for problem, _ in found]
    except (Unresolvable, UnknownType, UndefinedTypeCheck, TypeError, ValueError, ArithmeticError) as problem:
        raise SchemaTooComplex(type(problem).__name__) from problem


def check_schema(schema: Mapping[str, JSON], kind: Any = Draft202012Validator) -> None:
    """Hold a schema against the rules of its own language. Raises SchemaError or TooCostly."""
    validator = _make_bounded_validator(kind, MAX_META_SCHEMA_STEPS)(kind.META_SCHEMA)
    try:
        for problem in validator.iter_errors(dict(schema)):
            raise SchemaError.create_from(problem)
    except (Unresolvable, TypeError, ValueError, ArithmeticError) as problem:
        raise SchemaTooComplex(type(problem).__name__) from problem


class _StepBudget:
    """Count what a check may still cost; sizes are remembered by identity, as the values outlive the check."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise SchemaTooComplex("too many steps")

    def enter(self) -> None:
        """Stop well before the interpreter does: the part of the library that is in Rust panics there."""
        if self._depth >= MAX_SCHEMA_DEPTH:
            raise RecursionError("a schema is nested too deeply")
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1

    def size(self, value: object) -> int:
        """Return how many values are inside, long texts counting for more."""
        if isinstance(value, str):
            return 1 + len(value) // 64
        if not isinstance(value, dict | list):
            return 1
        if (known := self._sizes.get(id(value))) is None:
            inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            known = self._sizes[id(value)] = 1 + sum(map(self.size, inside))
        return known


_COMPARED = ("enum", "const", "dependentRequired", "dependencies")  # looked at as deep as they are
_UNBOUNDED = ("unevaluatedProperties", "unevaluatedItems")  # walk all other keywords again, references too


def _make_bounded_validator(kind: Any, steps: int) -> Any:
    """Return the same rules, each paid for before it is applied; every error is paid for by what it prints."""
    left = _StepBudget(steps)

    def counted(name: str, keyword: KeywordValidator) -> KeywordValidator:
        def look(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            asked = left.size(value) if name in _COMPARED else _count_items(value)
            left.spend(1 + asked + _count_items(instance))
            left.enter()
            try:
                for problem in keyword(validator, value, instance, schema) or ():
                    if not isinstance(problem.validator, str):  # made by this keyword, not passed on
                        left.spend(left.size(instance) + left.size(value))
                    yield problem
            finally:
                left.leave()

        return look

    def unique_items(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
        if wanted is True and isinstance(instance, list):
            left.spend(left.size(instance))
            if len({_canonical_text(item) for item in instance}) < len(instance):
                yield ValidationError("has items that are not unique")

    rules = {name: keyword for name, keyword in kind.VALIDATORS.items() if name not in _UNBOUNDED}
    rules["uniqueItems"] = unique_items
    unbounded: dict[str, KeywordValidator] = {
        name: lambda *_: None for name in _UNBOUNDED if name in kind.VALIDATORS
    }
    bounded = extend(kind, unbounded | {name: counted(name, keyword) for name, keyword in rules.items()})
    bounded.evolve = attrs.evolve  # the library's own leaves these rules wherever a part has a `$schema`
    return bounded


def _count_items(value: object) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _canonical_text(value: JSON) -> str:
    """Write equal values equally: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: JSON) -> JSON:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_whole_numbers(one) for one in value]
        case dict():
            return {key: _with_whole_numbers(one) for key, one in value.items()}
        case _:
            return value


# --- the text of schemas and values ------------------------------------------------------------------


def _is_too_long(value: Mapping[str, JSON]) -> bool:
    """Look at the plain form first: laying out megabytes takes a second, writing them a moment."""
    return (
        len(json.dumps(value, ensure_ascii=False)) > MAX_SCHEMA_CHARACTERS
        or len(format_json(value)) > MAX_SCHEMA_CHARACTERS
    )


def list_property_names(schema: Mapping[str, JSON]) -> list[str]:
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def format_json(value: Mapping[str, JSON]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def is_storable(value: Mapping[str, JSON]) -> bool:
    """No NUL and no half of a surrogate pair: the database takes neither."""
    try:
        return b"\\u0000" not in format_json(value).encode()
    except UnicodeEncodeError:
        return False


def _walk_keywords(schema: Mapping[str, JSON], at: str) -> Iterator[tuple[str, str]]:
    """Every keyword of a schema and those inside it; a property called like one is none."""
    for name, value in schema.items():
        yield at, name
        if name in _VALUE_KEYWORDS:
            continue
        inside = value.items() if name in _NAMED_SUBSCHEMAS and isinstance(value, dict) else [("", value)]
        for key, one in inside:
            place = f"{at}.{name}" + (f".{key}" if key else "")
            for part in one if isinstance(one, list) else [one]:
                if isinstance(part, dict):
                    yield from _walk_keywords(part, place)


def _format_path(path: object) -> str:
    return "".join(f".{part}" for part in path)  # type: ignore[attr-defined]


# MERGED tools.mcp_schemas: Arguments checked in full against a schema that a stranger wrote, in bounded time and without leaving here (A11.6).

# An expression may run for ever on thirty characters, so none is: the server looks at those itself. Beside patterns
# for names nobody here can tell which names are left over.
_REGEX_KEYWORDS = ("pattern", "patternProperties")
_LEFTOVER_KEYWORDS = ("additionalProperties", "unevaluatedProperties")
_SUBSCHEMA_MAPS = (
    "properties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
)  # names, then schemas
_LITERAL_KEYWORDS = ("enum", "const", "default", "examples")


class SchemaNotCheckable(Exception):
    """The schema asks for more than is done for a stranger: other places, or too many steps."""


def find_argument_problems(
    arguments: Mapping[str, JSON], schema: Mapping[str, JSON]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Where the arguments differ from the schema: places and words. Raises Unchecked."""
    try:
        plain = _strip_regexes(dict(schema))
        assert isinstance(plain, dict)
        return find_validation_errors(validator_for(plain, default=Draft202012Validator), plain, arguments)
    except (SchemaTooComplex, RecursionError, TypeError) as problem:
        raise SchemaNotCheckable(type(problem).__name__) from problem


def _strip_regexes(schema: JSON) -> JSON:
    if isinstance(schema, list):
        return [_strip_regexes(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = set(_REGEX_KEYWORDS)
    if "patternProperties" in schema:
        dropped.update(_LEFTOVER_KEYWORDS)
    return {key: _strip_keyword_value(key, value) for key, value in schema.items() if key not in dropped}


def _strip_keyword_value(key: str, value: JSON) -> JSON:
    if key in _LITERAL_KEYWORDS:
        return value
    if key in _SUBSCHEMA_MAPS and isinstance(value, dict):
        return {name: _strip_regexes(one) for name, one in value.items()}
    return _strip_regexes(value)
