"""Arguments that a person edited, checked against untrusted schemas (A11.6)."""

from __future__ import annotations

import pytest

from copilot.tools.json_schema import SchemaNotCheckable, find_argument_problems

pytestmark = pytest.mark.attack

NESTED = {
    "type": "object",
    "properties": {
        "who": {"$ref": "#/$defs/Person"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "pattern": {"type": "integer", "minimum": 1},
        "code": {"type": "string", "pattern": "^(a+)+$"},
    },
    "required": ["who"],
    "additionalProperties": False,
    "$defs": {"Person": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}},
}


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"who": {"age": 7}, "tags": ["a"], "pattern": 1}, []),
        ({"who": {"age": "7"}}, [("who", "age")]),
        ({"who": {}}, [("who",)]),
        ({"who": {"age": 1}, "tags": ["a", "c"]}, [("tags", 1)]),
        ({"who": {"age": 1}, "tags": ["a", "a", "b"]}, [("tags",)]),
        ({"who": {"age": 1}, "pattern": 0}, [("pattern",)]),
        ({"who": {"age": 1}, "other": 1}, [()]),
        ({"who": {"age": 1}, "code": "a" * 40 + "!"}, []),
    ],
)
def test_every_layer_is_checked_and_no_expression_is_run(arguments, places):
    """A11.6: what lies deep too; an expression that would run for ever is left to the server"""
    assert [place for place, _ in find_argument_problems(arguments, NESTED)] == places


def _doubling(levels: int) -> dict[str, object]:
    """Each definition asks for the next one twice."""
    defs = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(levels)
    }
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": defs | {f"d{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    "schema",
    [
        _doubling(40),
        {"type": "object", "$ref": "#"},
        {"type": "object", "$ref": "https://example.org/schema.json"},
        {"type": "object", "allOf": [{"$ref": "#/allOf/0"}]},
    ],
    ids=["doubling", "itself", "elsewhere", "inside itself"],
)
def test_a_hostile_schema_is_given_up_in_time(schema):
    """A11.6: it may neither fetch anything nor block the caller"""
    with pytest.raises(SchemaNotCheckable):
        find_argument_problems({"a": 1}, schema)


def test_names_by_expression_leave_nothing_that_could_be_too_much():
    """A11.6"""
    schema = {"type": "object", "patternProperties": {"^(x+)+$": {}}, "additionalProperties": False}
    assert find_argument_problems({"x" * 40 + "!": 1}, schema) == []
