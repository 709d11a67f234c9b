"""Check JSON Schemas that people, models and MCP servers wrote, and values against them, in bounded time.

A library's validator is not bounded: `uniqueItems` compares all pairs, alternatives multiply, every error
prints the whole value, and regular expressions may run forever. Here each keyword is paid for out of a fixed
number of steps, by the size of what it looks at, and nothing is ever fetched.
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
MAX_CHECK_STEPS = 50_000  # a fifth of a second per check; ordinary schemas need hundreds of steps
MAX_SCHEMA_DEPTH = 150  # of keywords; each nested schema takes five levels of the meta-schema
MAX_META_SCHEMA_STEPS = 100_000  # each nested schema takes about 150

# Keywords that would fetch, recur or take unbounded time. A schema of inputs needs none of them.
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
_NAMED_SUBSCHEMAS = ("properties", "$defs", "definitions", "dependentSchemas")  # maps of names to schemas
# Keywords that hold values, not schemas.
_VALUE_KEYWORDS = ("enum", "const", "default", "examples", "required", "dependentRequired")


KeywordValidator = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class SchemaTooComplex(Exception):
    """The check was given up: too many steps, an unresolvable reference, or values that cannot be compared."""


# --- Agent input schemas -----------------------------------------------------------------------------


def find_schema_problems(schema: Mapping[str, JSON]) -> list[str]:
    """Return why this is not a usable input schema; an empty schema is fine and takes no inputs."""
    if not schema:
        return []
    try:
        if _is_too_long(schema):
            return [f"inputs_schema: at most {MAX_SCHEMA_CHARACTERS:,} characters."]
        if not is_storable(schema):
            return ["inputs_schema: contains a character that cannot be stored."]
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
    """Return where inputs differ from what the schema asks for; an empty schema takes none."""
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


# --- Bounded checks ----------------------------------------------------------------------------------


def find_validation_errors(
    kind: Any, schema: Mapping[str, JSON], value: Mapping[str, JSON]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Return path and message of the first problems under the rules of `kind`, a jsonschema validator.

    Raises SchemaTooComplex or RecursionError. Regular expressions must have been removed from the schema.
    """
    validator = _make_bounded_validator(kind, MAX_CHECK_STEPS)(dict(schema), registry=Registry())
    try:
        found = zip(validator.iter_errors(dict(value)), range(MAX_REPORTED_PROBLEMS), strict=False)
        return [(tuple(problem.absolute_path), problem.message[:200]) for problem, _ in found]
    except (Unresolvable, UnknownType, UndefinedTypeCheck, TypeError, ValueError, ArithmeticError) as problem:
        raise SchemaTooComplex(type(problem).__name__) from problem


def check_schema(schema: Mapping[str, JSON], kind: Any = Draft202012Validator) -> None:
    """Check a schema against its meta-schema. Raises SchemaError or SchemaTooComplex."""
    validator = _make_bounded_validator(kind, MAX_META_SCHEMA_STEPS)(kind.META_SCHEMA)
    try:
        for problem in validator.iter_errors(dict(schema)):
            raise SchemaError.create_from(problem)
    except (Unresolvable, TypeError, ValueError, ArithmeticError) as problem:
        raise SchemaTooComplex(type(problem).__name__) from problem


class _StepBudget:
    """The steps a check may still take. Sizes are remembered by identity, as the values outlive the check."""

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise SchemaTooComplex("too many steps")

    def enter(self) -> None:
        """Stop well before the interpreter does: the library's Rust part panics at the interpreter's limit."""
        if self._depth >= MAX_SCHEMA_DEPTH:
            raise RecursionError("a schema is nested too deeply")
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1

    def size(self, value: object) -> int:
        if isinstance(value, str):
            return 1 + len(value) // 64
        if not isinstance(value, dict | list):
            return 1
        if (known := self._sizes.get(id(value))) is None:
            inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            known = self._sizes[id(value)] = 1 + sum(map(self.size, inside))
        return known


_COMPARED = ("enum", "const", "dependentRequired", "dependencies")  # compared at their full depth
_UNBOUNDED = ("unevaluatedProperties", "unevaluatedItems")  # these walk all other keywords again


def _make_bounded_validator(kind: Any, steps: int) -> Any:
    """Return the same rules, each charged to a step budget before it is applied.

    Errors are charged by size.
    """
    budget = _StepBudget(steps)

    def counted(name: str, keyword: KeywordValidator) -> KeywordValidator:
        def validate(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            keyword_size = budget.size(value) if name in _COMPARED else _count_items(value)
            budget.spend(1 + keyword_size + _count_items(instance))
            budget.enter()
            try:
                for problem in keyword(validator, value, instance, schema) or ():
                    if not isinstance(problem.validator, str):  # raised by this keyword, not by a nested one
                        budget.spend(budget.size(instance) + budget.size(value))
                    yield problem
            finally:
                budget.leave()

        return validate

    def unique_items(_: Any, wanted: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
        if wanted is True and isinstance(instance, list):
            budget.spend(budget.size(instance))
            if len({_canonical_text(item) for item in instance}) < len(instance):
                yield ValidationError("has items that are not unique")

    rules = {name: keyword for name, keyword in kind.VALIDATORS.items() if name not in _UNBOUNDED}
    rules["uniqueItems"] = unique_items
    unbounded: dict[str, KeywordValidator] = {
        name: lambda *_: None for name in _UNBOUNDED if name in kind.VALIDATORS
    }
    bounded = extend(kind, unbounded | {name: counted(name, keyword) for name, keyword in rules.items()})
    bounded.evolve = attrs.evolve  # the library's own drops these rules where a part has a `$schema`
    return bounded


def _count_items(value: object) -> int:
    return len(value) if isinstance(value, dict | list) else 0


def _canonical_text(value: JSON) -> str:
    """Serialise equal values equally: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: JSON) -> JSON:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_whole_numbers(item) for item in value]
        case dict():
            return {key: _with_whole_numbers(item) for key, item in value.items()}
        case _:
            return value


# --- Text of schemas and values ----------------------------------------------------------------------


def _is_too_long(value: Mapping[str, JSON]) -> bool:
    """Check the compact form first: indenting megabytes takes a second, dumping them a moment."""
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
    """Return whether the database can store it: no NUL and no lone surrogate."""
    try:
        return b"\\u0000" not in format_json(value).encode()
    except UnicodeEncodeError:
        return False


def _walk_keywords(schema: Mapping[str, JSON], at: str) -> Iterator[tuple[str, str]]:
    """Yield every keyword of a schema and its subschemas, but not properties that are named like one."""
    for name, value in schema.items():
        yield at, name
        if name in _VALUE_KEYWORDS:
            continue
        inside = value.items() if name in _NAMED_SUBSCHEMAS and isinstance(value, dict) else [("", value)]
        for key, subschema in inside:
            place = f"{at}.{name}" + (f".{key}" if key else "")
            for part in subschema if isinstance(subschema, list) else [subschema]:
                if isinstance(part, dict):
                    yield from _walk_keywords(part, place)


def _format_path(path: object) -> str:
    return "".join(f".{part}" for part in path)  # type: ignore[attr-defined]


# --- Arguments of MCP tools --------------------------------------------------------------------------

# A regular expression may run forever on thirty characters, so none is evaluated: the server checks those itself.
# With `patternProperties` removed, nobody can tell which names are additional, so that is not checked either.
_REGEX_KEYWORDS = ("pattern", "patternProperties")
_LEFTOVER_KEYWORDS = ("additionalProperties", "unevaluatedProperties")
_SUBSCHEMA_MAPS = ("properties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LITERAL_KEYWORDS = ("enum", "const", "default", "examples")


class SchemaNotCheckable(Exception):
    """A schema that needs remote references or too many steps."""


def find_argument_problems(
    arguments: Mapping[str, JSON], schema: Mapping[str, JSON]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Return path and message of each problem of the arguments. Raises SchemaNotCheckable."""
    try:
        plain = _strip_regexes(dict(schema))
        assert isinstance(plain, dict)
        return find_validation_errors(validator_for(plain, default=Draft202012Validator), plain, arguments)
    except (SchemaTooComplex, RecursionError, TypeError) as problem:
        raise SchemaNotCheckable(type(problem).__name__) from problem


def _strip_regexes(schema: JSON) -> JSON:
    if isinstance(schema, list):
        return [_strip_regexes(item) for item in schema]
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
        return {name: _strip_regexes(subschema) for name, subschema in value.items()}
    return _strip_regexes(value)
