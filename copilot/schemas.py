"""JSON Schemas of an agent's inputs: checked, and checked against, without ever leaving this process (A27.1)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from jsonschema import Draft202012Validator, SchemaError
from referencing import Registry

from copilot.events import JSON

MAX_PROPERTIES = 50
MAX_CHARACTERS = 32_000  # of a schema, and of the inputs of a run
MAX_PROBLEMS = 20

# What would fetch, recur or take for ever: a schema of inputs needs none of them.
REFUSED = {
    "$ref": "references are not allowed",
    "$dynamicRef": "references are not allowed",
    "$recursiveRef": "references are not allowed",
    "$id": "identifiers are not allowed",
    "pattern": "patterns are not allowed; say it in the description",
    "patternProperties": "patterns are not allowed; name the properties",
}
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")  # names, then schemas
_VALUES = ("enum", "const", "default", "examples", "required", "dependentRequired")  # values, not schemas


def problems(schema: Mapping[str, JSON]) -> list[str]:
    """Why this is no schema of inputs; nothing is one that asks for nothing."""
    if not schema:
        return []
    try:
        if len(written(schema)) > MAX_CHARACTERS:
            return [f"inputs_schema: at most {MAX_CHARACTERS:,} characters."]
        if not keepable(schema):
            return ["inputs_schema: holds a character that cannot be kept."]
        found = [
            f"inputs_schema{at}: {REFUSED[name]}." for at, name in _keywords(schema, "") if name in REFUSED
        ]
        if found:
            return found[:MAX_PROBLEMS]
        Draft202012Validator.check_schema(schema)
    except SchemaError as problem:
        return [f"inputs_schema{_place(problem.absolute_path)}: {problem.message[:200]}"]
    except RecursionError:
        return ["inputs_schema: is nested too deeply."]
    if schema.get("type") != "object":
        found.append('inputs_schema: its "type" must be "object".')
    if len(named(schema)) > MAX_PROPERTIES:
        found.append(f"inputs_schema: at most {MAX_PROPERTIES} properties.")
    return found


def misfits(schema: Mapping[str, JSON], inputs: Mapping[str, JSON]) -> list[str]:
    """Where inputs differ from what the schema asks for; an empty schema takes none."""
    if not schema:
        return [f"{name}: this agent takes no inputs." for name in list(inputs)[:MAX_PROBLEMS]]
    try:
        if len(written(inputs)) > MAX_CHARACTERS:
            return [f"They have more than {MAX_CHARACTERS:,} characters."]
        validator = Draft202012Validator(dict(schema), registry=Registry())
        return [
            f"{_place(problem.absolute_path).lstrip('.') or 'inputs'}: {problem.message[:200]}"
            for problem, _ in zip(validator.iter_errors(dict(inputs)), range(MAX_PROBLEMS), strict=False)
        ]
    except RecursionError:
        return ["They are nested too deeply."]


def named(schema: Mapping[str, JSON]) -> list[str]:
    properties = schema.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def written(value: Mapping[str, JSON]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def keepable(value: Mapping[str, JSON]) -> bool:
    """No NUL and no half of a surrogate pair: the database takes neither."""
    try:
        return b"\\u0000" not in written(value).encode()
    except UnicodeEncodeError:
        return False


def _keywords(schema: Mapping[str, JSON], at: str) -> Iterator[tuple[str, str]]:
    """Every keyword of a schema and those inside it; a property called like one is none."""
    for name, value in schema.items():
        yield at, name
        if name in _VALUES:
            continue
        inside = value.items() if name in _NAMED and isinstance(value, dict) else [("", value)]
        for key, one in inside:
            place = f"{at}.{name}" + (f".{key}" if key else "")
            for part in one if isinstance(one, list) else [one]:
                if isinstance(part, dict):
                    yield from _keywords(part, place)


def _place(path: object) -> str:
    return "".join(f".{part}" for part in path)  # type: ignore[attr-defined]
