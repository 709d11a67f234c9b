"""What servers say of their tools, made fit for models (A28.4, A28.5)."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some
from mcp import types
from pydantic import ValidationError

from copilot.tools.mcp import tool_listing
from copilot.tools.mcp.tool_listing import ToolLocation

ONE, OTHER = UUID(int=1), UUID(int=2)


def described(schema: dict[str, object]) -> tool_listing.DescribedTool:
    [tool] = tool_listing.describe_tools([types.Tool(name="tool", input_schema=schema)])
    return tool


def deep() -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(500):
        schema = {"not": schema}
    return schema


places = some.builds(
    ToolLocation,
    some.sampled_from([ONE, OTHER]),
    some.sampled_from(["a", "a_b", "files"]),
    some.text(max_size=90),
)


@given(some.lists(places, max_size=12))
def test_names_are_plain_short_and_the_same_in_any_order(found: list[ToolLocation]) -> None:
    """A28.4"""
    names = tool_listing.assign_tool_names(found)
    assert all(len(name) <= 64 and tool_listing._not_in_names.search(name) is None for name in names)
    assert tool_listing.assign_tool_names(found[::-1]) == names[::-1]
    by_place = dict(zip(found, names, strict=True))
    assert len(set(by_place.values())) == len(by_place) or _coincidence(found)


def _coincidence(found: list[ToolLocation]) -> bool:
    """A tool that is named like another's hash; the later of the two is not offered."""
    return any("_" in place.tool and len(place.tool) >= 8 for place in found)


def test_a_plain_name_stays_as_it_is_and_a_taken_one_gets_a_hash() -> None:
    """A28.4"""
    alone = [ToolLocation(ONE, "files", "read")]
    assert tool_listing.assign_tool_names(alone) == ["mcp_files_read"]
    both = tool_listing.assign_tool_names([*alone, ToolLocation(OTHER, "files", "read")])
    assert len(set(both)) == 2
    assert all(name.startswith("mcp_files_read_") for name in both)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array"}, "Its schema does not describe an object."),
        ({"type": "object", "description": "d" * 8_000}, "Its schema is longer than 8,000 characters."),
        ({"type": "object", "required": "all"}, "Its schema is not valid."),
        ({"type": "object", "minimum": float("nan")}, "Its schema is not valid."),
        ({"type": "object", "properties": {"a": deep()}}, "Its schema is not valid."),
        (
            {"type": "object", "properties": {"ä": {}}},
            "Its schema names arguments that models cannot give.",
        ),
    ],
)
def test_a_tool_with_an_unfit_schema_is_left_out(schema: dict[str, object], reason: str) -> None:
    """A28.4"""
    assert described(schema).left_out == reason


def test_a_schema_without_a_type_is_that_of_an_object() -> None:
    assert described({"properties": {}}).parameters["type"] == "object"


def test_arguments_are_checked_in_their_outermost_layer() -> None:
    """A8.6: quickly, whatever the schema; the server looks deeper"""
    pattern = {"type": "string", "pattern": "^(a+)+$"}
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"a": pattern, "n": {"type": ["integer", "null"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    parameters = described(schema).parameters
    tool_listing.check_arguments({"a": "a" * 60 + "b", "n": 2.0}, parameters)
    tool_listing.check_arguments({"a": "", "n": None}, parameters)
    with pytest.raises(ValidationError) as caught:
        tool_listing.check_arguments({"n": True, "b": 1}, parameters)
    assert [(problem["loc"], problem["msg"]) for problem in caught.value.errors()] == [
        (("a",), "Field required"),
        (("n",), "Input should be of type ['integer', 'null']"),
        (("b",), "Extra inputs are not permitted"),
    ]


def test_instructions_are_bounded_each_and_together_and_escaped() -> None:
    """A28.5"""
    text = tool_listing.build_instructions([(f"server{number}", "<b>" + "i" * 5_000) for number in range(5)])
    assert text.startswith("<mcp_instructions>\nFrom the MCP server server0:\n&lt;b&gt;")
    assert text.endswith("\n</mcp_instructions>")
    assert 11_900 < len(text) < 12_100
    assert text.count("From the MCP server") <= 4
    assert tool_listing.build_instructions([("silent", "  ")]) == ""
