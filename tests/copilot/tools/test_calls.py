"""Receiving tool calls: any fragmentation gives the same calls (A8)."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from copilot.providers.base import CallFragment, ToolCall, ToolSpecification
from copilot.tools.base import ToolArguments
from copilot.tools.calls import (
    MALFORMED_ARGUMENTS_MESSAGE,
    MAX_NESTING,
    MAX_PROBLEM_CHARACTERS,
    MAX_RAW_ARGUMENT_CHARACTERS,
    ToolCallAssembler,
    describe_invalid_arguments,
    describe_unknown_tool,
    find_refusal,
    lacks_required_arguments,
    make_error_outcome,
    parse_arguments,
    prepare_for_replay,
)
from copilot.tools.results import redact_arguments

KNOWN = ("read_file", "write_file", "list_files", "look")


def assembled(*fragments, taken=()):
    assembler = ToolCallAssembler(taken)
    for fragment in fragments:
        assembler.add_fragment(fragment)
    return assembler.complete()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(KNOWN), st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3)),
    min_size=1,
    max_size=4,
)


def pieces(draw, text):
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=5))
    places = [0, *sorted(cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


@st.composite
def fragmented(draw):
    """A list of calls, and one way in which a provider may send it: cut anywhere, calls interleaved."""
    wanted = draw(CALLS)
    queues = []
    for index, (tool, arguments) in enumerate(wanted):
        first = CallFragment(index, f"call-{index}", "", "")
        names = [CallFragment(index, "", piece, "") for piece in [tool]]
        bodies = [CallFragment(index, "", "", piece) for piece in pieces(draw, json.dumps(arguments))]
        queues.append([first, *names, *bodies])
    order = draw(st.permutations([index for index, queue in enumerate(queues) for _ in queue[1:]]))
    fragments = [queue[0] for queue in queues]  # calls begin in their order
    rest = [iter(queue[1:]) for queue in queues]
    return wanted, [*fragments, *(next(rest[index]) for index in order)]


@given(fragmented())
def test_any_fragmentation_gives_the_same_calls(case):
    """A8.c3"""
    wanted, fragments = case
    made = assembled(*fragments)
    assert [(call.call_id, call.tool) for call in made] == [
        (f"call-{index}", tool) for index, (tool, _) in enumerate(wanted)
    ]
    assert [call.arguments for call in made] == [parse_arguments(json.dumps(args)) for _, args in wanted]


def test_names_append_unless_they_are_repeated():
    """A8.1"""
    parted = assembled(
        CallFragment(0, "a", "read_"), CallFragment(0, "", "file"), CallFragment(0, "", "", "{}")
    )
    repeated = assembled(CallFragment(0, "a", "look", '{"x"'), CallFragment(0, "a", "look", ": 1}"))
    assert parted[0].tool == "read_file"
    assert (repeated[0].tool, repeated[0].arguments) == ("look", {"x": 1})


def test_a_new_id_on_a_used_index_starts_a_new_call():
    """A8.1"""
    made = assembled(CallFragment(0, "a", "look", "{}"), CallFragment(0, "b", "look", '{"x": 1}'))
    assert [call.call_id for call in made] == ["a", "b"]


def test_a_missing_id_is_given_and_a_repeated_one_renamed():
    """A8.1"""
    nameless = assembled(CallFragment(0, "", "look", "{}"), CallFragment(1, "", "look", "{}"))
    assert len({call.call_id for call in nameless} - {""}) == 2
    repeated = assembled(CallFragment(0, "a", "look"), CallFragment(1, "a", "look"))
    assert repeated[0].call_id == "a"
    assert repeated[1].call_id not in ("", "a")
    assert assembled(CallFragment(0, "a", "look"), taken={"a"})[0].call_id != "a"
    for unusable in ("x" * 500, "a b", "\x00"):
        assert assembled(CallFragment(0, unusable, "look"))[0].call_id.startswith("call_")


def test_calls_without_an_index_are_distinguished_by_id_or_name():
    made = assembled(
        CallFragment(None, "a", "look", '{"n":'),
        CallFragment(None, "", "", " 1}"),
        CallFragment(None, "b", "look", '{"n": 2}'),
    )
    assert [call.arguments for call in made] == [{"n": 1}, {"n": 2}]
    nameless = assembled(CallFragment(None, "", "look", "{}"), CallFragment(None, "", "read_file", "{}"))
    assert [call.tool for call in nameless] == ["look", "read_file"]


def test_a_call_is_proposed_once_as_soon_as_its_name_is_certain():
    """A2.6"""
    assembler = ToolCallAssembler()
    assembler.add_fragment(CallFragment(0, "a", "read_"))
    assert assembler.take_newly_named(KNOWN) == []
    assembler.add_fragment(CallFragment(0, "", "file"))
    assert [call.tool for call in assembler.take_newly_named(KNOWN)] == ["read_file"]
    assembler.add_fragment(CallFragment(0, "", "", "{}"))
    assert assembler.take_newly_named(KNOWN) == []
    assembler.add_fragment(CallFragment(1, "", "look", "{}"))
    assert assembler.take_newly_named(KNOWN) == []
    assembler.complete()
    assert [call.tool for call in assembler.take_unproposed()] == ["look"]
    assert [call.arguments for call in assembler.list_proposed()] == [{}, {}]


def test_a_name_no_provider_would_take_back_is_made_harmless():
    assert assembled(CallFragment(0, "a", "do it, now!" * 9, "{}"))[0].tool == ("do_it__now_" * 9)[:64]


@pytest.mark.parametrize(
    "text", ["[1]", '"x"', "null", "{", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, "x"]
)
def test_what_is_no_json_object_is_malformed(text):
    """A8.2"""
    assert parse_arguments(text) is None
    (made,) = assembled(CallFragment(0, "a", "look", text))
    assert made.raw_arguments == text[:MAX_RAW_ARGUMENT_CHARACTERS]
    assert prepare_for_replay(made) == ToolCall(call_id="a", tool="look", arguments={})


@pytest.mark.parametrize("levels", [MAX_NESTING, 400, 5_000])
def test_arguments_nested_deeper_than_anybody_walks_are_malformed(levels):
    """A8.2: people are shown arguments level by level, and a page must not break on them"""
    assert parse_arguments('{"a":' * levels + "1" + "}" * levels) is None
    shallow = parse_arguments('{"a":' * 90 + "[]" + "}" * 90)
    assert shallow is not None
    assert redact_arguments(shallow) == shallow


def test_empty_arguments_mean_none_at_all():
    """A8.2"""
    assert parse_arguments("") == parse_arguments(" \n") == {}


def test_arguments_are_canonical_and_fit_into_a_database():
    assert list(parse_arguments('{"b": {"d": 1, "c": 2}, "a": 0}')) == ["a", "b"]
    assert parse_arguments(r'{"text": "a\u0000b\ud800"}') == {"text": "ab?"}


@given(st.text())
def test_no_text_breaks_the_parser(text):
    assert parse_arguments(text) is None or isinstance(parse_arguments(text), dict)


def test_an_unknown_tool_is_answered_with_close_names():
    """A8.5"""
    assert "read_file" in describe_unknown_tool("read_files", KNOWN)
    assert "Close names" not in describe_unknown_tool("zzz", KNOWN)


def test_a_hidden_tool_answers_exactly_like_a_nonsense_name():
    """A8.c2"""
    hidden, nonsense = describe_unknown_tool("bash_exec", KNOWN), describe_unknown_tool("zxcv_qwer", KNOWN)
    assert hidden.replace("bash_exec", "zxcv_qwer") == nonsense


def test_a_call_is_refused_by_place_name_or_form():
    """A8.2, A8.5, A8.7"""

    def why(tool="look", arguments=None, position=0):
        made = ToolCall(call_id="a", tool=tool, arguments=arguments)
        return find_refusal(made, position=position, most=16, known=KNOWN)

    assert why(arguments={}) is None
    assert why() == MALFORMED_ARGUMENTS_MESSAGE
    assert "no tool" in why("nonsense", {})
    assert "16" in why(arguments={}, position=16)
    assert why(arguments={}, position=15) is None


class Write(ToolArguments):
    name: str
    count: int = 1


def problems(**arguments):
    with pytest.raises(ValidationError) as caught:
        Write.model_validate(arguments)
    return describe_invalid_arguments(caught.value)


def test_invalid_arguments_name_each_field_and_stay_short():
    """A8.6"""
    text = problems(count="many", colour="red")
    assert all(field in text for field in ("name", "count", "colour"))
    many = problems(**{f"field_{number}_{'x' * 300}": 1 for number in range(9)})
    assert len(many) <= MAX_PROBLEM_CHARACTERS
    assert "and 5 more" in problems(**{f"field_{number}": 1 for number in range(9)})
    assert Write.model_validate({"name": "a", "count": "7"}).count == 7


def test_empty_arguments_lack_what_is_required():
    """A10.3"""
    specification = ToolSpecification(name="w", description="", parameters={"required": ["x"]})
    empty = ToolCall(call_id="a", tool="w", arguments={})
    assert lacks_required_arguments(empty, specification)
    assert not lacks_required_arguments(empty, ToolSpecification(name="w", description="", parameters={}))
    assert not lacks_required_arguments(ToolCall(call_id="a", tool="w", arguments={"y": 1}), specification)
    assert not lacks_required_arguments(empty, None)
    assert make_error_outcome(empty, "no").success is False
