"""Untrusted schemas are checked in a bounded number of steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from config.core.errors import InvalidRequest
from copilot.agents import services as agents
from copilot.tools import json_schema
from copilot.tools.json_schema import SchemaNotCheckable
from copilot.tools.json_schema import find_argument_problems as mcp_misfits
from tests.support import factories

pytestmark = pytest.mark.attack
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def asking(schema):
    return {"type": "object", "properties": {"a": schema}}


def doubling(levels: int):
    """Each definition asks for the next one twice."""
    defs = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(levels)
    }
    return defs | {f"d{levels}": {"type": "object"}}


COSTLY = {
    "all pairs": (asking({"allOf": [{"uniqueItems": True}] * 200}), [{"x": number} for number in range(600)]),
    "long lists of values": (asking({"items": {"enum": list(range(1500))}}), [1499] * 2000),
    "alternatives that print it all": (asking({"anyOf": [{"type": "string"}] * 400}), list(range(1800))),
    "alternatives of alternatives": (
        asking({"anyOf": [{"anyOf": [{"anyOf": [{"type": "string"}] * 6}] * 6}] * 6}),
        list(range(1800)),
    ),
    "every item by every rule": (
        asking({"items": {"allOf": [{"type": "integer", "minimum": 0}] * 100}}),
        list(range(1800)),
    ),
    "what is not there": (asking({"allOf": [{"contains": {"const": "no"}}] * 100}), list(range(1800))),
    "behind a schema of its own": (
        asking({"$schema": DRAFT, "items": {"$schema": DRAFT, "allOf": [{"minimum": 0}] * 300}}),
        list(range(1800)),
    ),
}


@pytest.fixture
def steps(monkeypatch):
    """How many steps were taken, those of the one too many included."""
    taken: list[int] = []
    spend = json_schema._StepBudget.spend

    def counted(self, steps):
        taken.append(steps)
        spend(self, steps)

    monkeypatch.setattr(json_schema._StepBudget, "spend", counted)
    return taken


@pytest.mark.parametrize("name", COSTLY)
def test_costly_inputs_of_an_agent_are_refused_in_time(name, steps):
    schema, value = COSTLY[name]
    assert json_schema.find_schema_problems(schema) == []
    steps.clear()
    assert json_schema.find_input_problems(schema, {"a": value}) == [
        "They are too complex to be checked against what the agent asks for."
    ]
    assert sum(steps[:-1]) <= json_schema.MAX_CHECK_STEPS
    assert len(steps) <= json_schema.MAX_CHECK_STEPS


@pytest.mark.parametrize("name", COSTLY)
def test_costly_arguments_of_an_mcp_tool_are_left_to_its_server(name):
    schema, value = COSTLY[name]
    with pytest.raises(SchemaNotCheckable):
        mcp_misfits({"a": value}, schema)


def test_unevaluated_keywords_do_not_multiply_references():
    """The library walks references again for these, without looking at any keyword."""
    schema = {"type": "object", "$ref": "#/$defs/d0", "$defs": doubling(40), "unevaluatedProperties": False}
    with pytest.raises(SchemaNotCheckable):
        mcp_misfits({"a": 1}, schema)
    assert "unevaluatedProperties" in json_schema.find_schema_problems(
        {"type": "object", "unevaluatedProperties": False}
    )[0] or (
        "additionalProperties"
        in json_schema.find_schema_problems({"type": "object", "unevaluatedProperties": False})[0]
    )


def test_a_schema_of_very_many_schemas_is_refused_in_time(steps):
    schema = asking({"allOf": [{}] * 2000})
    assert json_schema.find_schema_problems(schema) == [
        "inputs_schema: is too complex. Use fewer alternatives."
    ]
    assert sum(steps[:-1]) <= json_schema.MAX_META_SCHEMA_STEPS


@pytest.mark.parametrize("levels", [60, 100])
def test_a_deep_schema_is_refused_long_before_the_stack_ends(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"not": schema}
    assert json_schema.find_schema_problems(asking(schema)) == ["inputs_schema: is nested too deeply."]
    with pytest.raises(SchemaNotCheckable):
        mcp_misfits({"a": 1}, {"type": "object", "$ref": "#"})


def test_a_megabyte_of_inputs_is_refused_without_being_laid_out(monkeypatch):
    monkeypatch.setattr(json_schema, "format_json", lambda _: pytest.fail("laid out"))
    assert json_schema.find_input_problems({"type": "object"}, {"a": "x" * 10**6}) == [
        "They have more than 32,000 characters."
    ]
    assert json_schema.find_schema_problems({"description": "x" * 10**6}) == [
        "inputs_schema: at most 32,000 characters."
    ]


@pytest.mark.parametrize("value", [1e308, -1e308, 10**300, 0.1])
@pytest.mark.parametrize("factor", [1e-308, 5e-324, 3, 0.1])
def test_numbers_at_the_edge_are_judged_or_given_up(value, factor):
    assert isinstance(json_schema.find_input_problems(asking({"multipleOf": factor}), {"a": value}), list)


def test_the_largest_honest_schema_and_inputs_are_within_the_bounds():
    schema = {
        "type": "object",
        "properties": {
            f"field_{number}": {
                "type": "object",
                "properties": {f"p{n}": {"type": "string"} for n in range(8)},
            }
            for number in range(50)
        },
    }
    inputs = {f"field_{number}": {f"p{n}": "words" * 8 for n in range(8)} for number in range(50)}
    assert json_schema.find_schema_problems(schema) == []
    assert json_schema.find_input_problems(schema, inputs) == []
    assert json_schema.find_input_problems(schema, inputs | {"field_3": {"p1": 1}}) == [
        "field_3.p1: 1 is not of type 'string'"
    ]
    rows = {
        "type": "object",
        "properties": {"rows": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "number"}]}}},
    }
    assert json_schema.find_input_problems(rows, {"rows": [1.5] * 2500}) == []


@pytest.mark.django_db
def test_a_run_with_costly_inputs_is_refused_with_a_code():
    schema, value = COSTLY["all pairs"]
    draft = agents.AgentDraft(name="a", instructions="b", inputs_schema=schema)
    version = agents.create_agent(factories.ada().pk, draft)
    with pytest.raises(InvalidRequest) as refused:
        agents.build_run_prompt(version, {"a": value})
    assert refused.value.code == "inputs_invalid"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, 1.0, 0.5])
    | st.text("ab", max_size=1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2),
    max_leaves=6,
)


@given(st.lists(JSON_VALUES, max_size=5))
def test_items_are_unique_by_the_same_rule_as_the_librarys(items):
    theirs = Draft202012Validator({"uniqueItems": True}).is_valid(items)
    assert (
        json_schema.find_validation_errors(Draft202012Validator, asking({"uniqueItems": True}), {"a": items})
        == []
    ) is theirs


SMALL_SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "array", "object", "null", "number"]),
        "minimum": st.integers(-1, 1),
        "maxLength": st.integers(0, 2),
        "enum": st.lists(JSON_VALUES, min_size=1, max_size=3),
        "required": st.lists(st.text("ab", max_size=1), max_size=2, unique=True),
        "anyOf": st.lists(
            st.fixed_dictionaries({"type": st.sampled_from(["string", "null"])}), min_size=1, max_size=2
        ),
        "items": st.fixed_dictionaries({"type": st.sampled_from(["string", "integer"])}),
        "additionalProperties": st.booleans(),
    },
)


@given(SMALL_SCHEMAS, JSON_VALUES, st.sampled_from([Draft202012Validator, Draft7Validator]))
def test_the_bounded_check_judges_as_the_library_does(schema, value, kind):
    theirs = [tuple(problem.absolute_path) for problem in kind(asking(schema)).iter_errors({"a": value})]
    assert [
        place for place, _ in json_schema.find_validation_errors(kind, asking(schema), {"a": value})
    ] == theirs
