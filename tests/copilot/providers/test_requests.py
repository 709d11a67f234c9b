"""What is sent to each vendor: only what it defines, thoughts only where they belong (A5.3, A5.5, A14)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_type_hints

import msgspec
import pytest
from openai.types.responses import (
    EasyInputMessageParam,
    FunctionToolParam,
    ResponseFunctionToolCallParam,
    ResponseReasoningItemParam,
)
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from openai.types.responses.response_input_item_param import FunctionCallOutput

from copilot.providers import anthropic, openai_chat, openai_responses
from copilot.providers.base import (
    AssistantMessage,
    CatalogueEntry,
    ImagePart,
    ModelMessage,
    ModelRequest,
    ReasoningStyle,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    ToolSpecification,
    UserMessage,
)

HI = UserMessage(text="hi")
THOUGHT = json.dumps({"type": "thinking", "thinking": "hm", "signature": "s"})
CALLING = AssistantMessage(
    text="See.", calls=(ToolCall(call_id="c:1", tool="ls", arguments={"a": 1}),), replay=(THOUGHT,)
)
RESULTS = ToolResultsMessage(results=(ToolResult(call_id="c:1", tool="ls", content="x", success=False),))
TOOL = ToolSpecification(name="ls", description="Lists.", parameters={"type": "object", "properties": {}})


def request(
    *messages: ModelMessage,
    style: ReasoningStyle = "budget",
    thinking: int = 0,
    max_output: int = 0,
    images: bool = True,
) -> ModelRequest:
    entry = CatalogueEntry(
        name="m",
        provider="openai_chat",
        model="m",
        max_output_tokens=max_output,
        supports_images=images,
        can_reason=True,
        reasoning_style=style,
    )
    return ModelRequest(
        entry=entry,
        system="Be brief.",
        suffix="Today.",
        messages=messages or (HI,),
        tools=(TOOL,),
        thinking_tokens=thinking,
    )


def chat(asked: ModelRequest, *, official: bool = False) -> Any:
    return json.loads(openai_chat.encode_request(asked, official=official))


def messages(asked: ModelRequest) -> Any:
    return json.loads(json.dumps(anthropic.build_request_body(asked)))


def responses(asked: ModelRequest) -> Any:
    return json.loads(openai_responses.encode_request(asked))


# --- chat --------------------------------------------------------------------------------------------


def test_a_chat_request_has_only_standard_fields_a5_3() -> None:
    body = chat(request(HI, CALLING, RESULTS))
    assert list(body) == ["model", "stream", "stream_options", "tools", "messages"]
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][0]["content"] == "Be brief.\n\nToday."
    call = {"id": "c:1", "type": "function", "function": {"name": "ls", "arguments": '{"a":1}'}}
    assert body["messages"][2] == {"role": "assistant", "content": "See.", "tool_calls": [call]}
    assert body["messages"][3] == {"role": "tool", "tool_call_id": "c:1", "content": "x"}


def test_a_server_that_wants_its_thoughts_back_gets_those_of_this_turn() -> None:
    """A14.3: only where the catalogue says so; calls of earlier turns carry the field that such servers insist on, empty"""
    thought = openai_chat.encode_replay("I should look.")
    asked = request(
        HI, replace(CALLING, replay=()), RESULTS, HI, replace(CALLING, replay=(thought,)), RESULTS
    )
    assert "reasoning_content" not in json.dumps(chat(asked))
    wanting = replace(asked, entry=replace(asked.entry, replays_reasoning=True))
    said = [m for m in chat(wanting)["messages"] if m["role"] == "assistant"]
    assert [m["reasoning_content"] for m in said] == ["", "I should look."]
    plain = replace(wanting, messages=(HI, AssistantMessage(text="Hello."), HI))
    foreign = replace(wanting, messages=(HI, CALLING, RESULTS))
    assert "reasoning_content" not in json.dumps(chat(plain))
    assert chat(foreign)["messages"][2]["reasoning_content"] == ""


def test_the_output_limit_is_sent_only_if_known_a4_1() -> None:
    assert "max_tokens" not in chat(request())
    assert chat(request(max_output=500))["max_tokens"] == 500
    assert chat(request(max_output=500), official=True)["max_completion_tokens"] == 500


def test_requests_of_a_growing_conversation_share_their_prefix_p11() -> None:
    first = openai_chat.encode_request(request(HI), official=False)
    second = openai_chat.encode_request(request(HI, CALLING, RESULTS), official=False)
    assert second.startswith(first.removesuffix(b"]}"))


def test_images_are_sent_where_they_are_understood() -> None:
    seen = UserMessage(text="look", images=(ImagePart(mime="image/png", data=b"abc"),))
    parts = chat(request(seen))["messages"][1]["content"]
    assert parts[1]["image_url"]["url"] == "data:image/png;base64,YWJj"
    assert chat(request(seen, images=False))["messages"][1]["content"] == "look"
    said, shown = messages(request(seen))["messages"][0]["content"]
    assert said == {"type": "text", "text": "look"}
    assert shown["source"] == {"type": "base64", "media_type": "image/png", "data": "YWJj"}
    text, image = responses(request(seen))["input"][0]["content"]
    assert text == {"type": "input_text", "text": "look"}
    assert image == {"type": "input_image", "image_url": "data:image/png;base64,YWJj", "detail": "auto"}
    assert responses(request(seen, images=False))["input"][0]["content"] == "look"


def test_pictures_in_results_are_native_where_the_model_takes_them_a9_9() -> None:
    group = ToolResultsMessage(
        results=(replace(RESULTS.results[0], images=(ImagePart(mime="image/png", data=b"abc"),)),)
    )
    asked = request(HI, CALLING, group)
    result = messages(asked)["messages"][2]["content"][0]
    assert [part["type"] for part in result["content"]] == ["text", "image"]
    output = responses(asked)["input"][-1]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image"]
    said = chat(asked)["messages"][-1]["content"]
    assert [part["type"] for part in said] == ["text", "image_url"]


def test_a_picture_is_encoded_once_however_often_it_is_sent() -> None:
    picture = ImagePart(mime="image/png", data=b"abc")
    assert picture.base64 is picture.base64


def test_malformed_arguments_are_replayed_as_an_empty_object_a8_2() -> None:
    broken = AssistantMessage(
        text="", calls=(ToolCall(call_id="c:1", tool="ls", arguments=None, raw_arguments="{"),)
    )
    body = chat(request(HI, broken, RESULTS))
    assert body["messages"][2]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert body["messages"][2]["content"] is None


@pytest.mark.parametrize(
    ("style", "field"),
    [
        ("none", {}),
        ("effort", {"reasoning_effort": "medium"}),
        ("gateway", {"reasoning": {"max_tokens": 8192}}),
    ],
)
def test_chat_reasoning_is_asked_for_as_declared(style: ReasoningStyle, field: dict[str, object]) -> None:
    body = chat(request(style=style, thinking=8192))
    assert {key: value for key, value in body.items() if "reasoning" in key} == field


@pytest.mark.parametrize("style", ["none", "budget", "adaptive", "effort", "gateway"])
def test_without_thinking_tokens_no_reasoning_field_is_sent_a14_c2(style: ReasoningStyle) -> None:
    asked = request(HI, CALLING, RESULTS, style=style, thinking=0)
    for body in (chat(asked), chat(asked, official=True), messages(asked), responses(asked)):
        assert not {"thinking", "output_config", "reasoning", "reasoning_effort", "include"} & set(body)
    assert "thinking" not in json.dumps(messages(asked)["messages"])
    assert "reasoning" not in json.dumps(responses(asked))


# --- responses ---------------------------------------------------------------------------------------

SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "s"}


def sealed(*, model: str = "m", after_text: bool = False, after_calls: int = 0) -> str:
    thought = openai_responses.SealedReasoning(model, json.dumps(SEALED), after_text, after_calls)
    return msgspec.json.encode(thought).decode()


def test_a_responses_request_is_stored_nowhere_and_has_only_defined_fields_a5_4() -> None:
    body = responses(request(HI, CALLING, RESULTS, UserMessage(text="and?")))
    assert list(body) == ["model", "stream", "store", "tools", "instructions", "input"]
    assert body["store"] is False
    assert body["instructions"] == "Be brief.\n\nToday."
    assert body["tools"][0] == {
        "type": "function",
        "name": "ls",
        "description": "Lists.",
        "strict": False,
    } | {"parameters": dict(TOOL.parameters)}
    assert body["input"] == [
        {"type": "message", "role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": "See."},
        {"type": "function_call", "call_id": "c:1", "name": "ls", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c:1", "output": "x"},
        {"type": "message", "role": "user", "content": "and?"},
    ]


def test_a_responses_request_is_what_the_official_sdk_defines_a5_6() -> None:
    shapes: dict[str, Any] = {
        "message": EasyInputMessageParam,
        "function_call": ResponseFunctionToolCallParam,
        "function_call_output": FunctionCallOutput,
        "reasoning": ResponseReasoningItemParam,
    }
    calling = replace(CALLING, replay=(sealed(),))
    body = responses(request(HI, calling, RESULTS, style="effort", thinking=8192, max_output=500))
    assert set(body) <= {"stream", *get_type_hints(ResponseCreateParamsBase)}
    assert {item["type"] for item in body["input"]} == set(shapes)
    for item in body["input"]:
        defined = shapes[item["type"]]
        assert defined.__required_keys__ <= set(item) <= set(get_type_hints(defined))
    assert (
        FunctionToolParam.__required_keys__ <= set(body["tools"][0]) <= set(get_type_hints(FunctionToolParam))
    )


def test_reasoning_and_its_seal_are_asked_for_together_a5_4() -> None:
    body = responses(request(style="effort", thinking=8192, max_output=500))
    assert body["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["max_output_tokens"] == 500


def test_responses_requests_of_a_growing_conversation_share_their_prefix_p11() -> None:
    first = openai_responses.encode_request(request(HI, style="effort", thinking=8192))
    second = openai_responses.encode_request(request(HI, CALLING, RESULTS, style="effort", thinking=8192))
    assert second.startswith(first.removesuffix(b"]}"))


@pytest.mark.parametrize(
    ("replay", "kinds"),
    [
        ((sealed(),), ["reasoning", "message", "function_call"]),
        ((sealed(after_text=True),), ["message", "reasoning", "function_call"]),
        ((sealed(after_text=True, after_calls=1),), ["message", "function_call"]),  # it led to nothing
        ((sealed(model="another"),), ["message", "function_call"]),
        ((THOUGHT, "not json", "[]", '{"type":"reasoning"}'), ["message", "function_call"]),
    ],
)
def test_thoughts_stand_before_what_they_led_to_a14_3(replay: tuple[str, ...], kinds: list[str]) -> None:
    calling = replace(CALLING, replay=replay)
    body = responses(request(HI, calling, RESULTS, style="effort", thinking=8192))
    assert [item["type"] for item in body["input"][1:-1]] == kinds
    assert all(item == SEALED for item in body["input"] if item["type"] == "reasoning")


def test_a_call_id_longer_than_the_api_takes_is_shortened_on_both_sides() -> None:
    long = "x" * 128
    calling = AssistantMessage(text="", calls=(ToolCall(call_id=long, tool="ls", arguments=None),))
    results = ToolResultsMessage(results=(ToolResult(call_id=long, tool="ls", content="x"),))
    _, call, output = responses(request(HI, calling, results))["input"]
    assert call["call_id"] == output["call_id"]
    assert len(call["call_id"]) <= 64
    assert call["arguments"] == "{}"


# --- messages ----------------------------------------------------------------------------------------


def test_a_messages_request_merges_roles_and_puts_results_first_a5_5() -> None:
    body = messages(request(HI, UserMessage(text="there"), CALLING, RESULTS, UserMessage(text="and?")))
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][0]["content"] == [{"type": "text", "text": "hi\n\nthere"}]
    last = body["messages"][2]["content"]
    assert last[0] == {"type": "tool_result", "tool_use_id": "c_1", "content": "x", "is_error": True}
    assert last[1] == {"type": "text", "text": "and?"}
    assert body["messages"][1]["content"][1] == {
        "type": "tool_use",
        "id": "c_1",
        "name": "ls",
        "input": {"a": 1},
    }
    assert [block["text"] for block in body["system"]] == ["Be brief.", "Today."]


@pytest.mark.parametrize(
    ("thinking", "max_output", "budget", "max_tokens"),
    [
        (8192, 32_000, 8192, 32_000),
        (500, 32_000, 1024, 32_000),
        (8192, 0, 8192, 16_384),
        (50_000, 32_000, 16_000, 32_000),
        (8192, 1500, None, 1500),
        (0, 32_000, None, 32_000),
    ],
)
def test_the_thinking_budget_fits_below_max_output_a5_5(
    thinking: int, max_output: int, budget: int | None, max_tokens: int
) -> None:
    body = messages(request(thinking=thinking, max_output=max_output))
    assert body["max_tokens"] == max_tokens
    assert body.get("thinking", {}).get("budget_tokens") == budget


def test_adaptive_models_get_an_effort_a5_5() -> None:
    body = messages(request(style="adaptive", thinking=8192))
    assert body["thinking"] == {"type": "adaptive"}
    assert body["output_config"] == {"effort": "medium"}


def test_a_level_that_was_stepped_down_to_is_asked_for_by_name_a7_4() -> None:
    styles: tuple[ReasoningStyle, ...] = ("adaptive", "effort", "gateway")
    asked = {style: replace(request(style=style, thinking=8192), effort="low") for style in styles}
    assert messages(asked["adaptive"])["output_config"] == {"effort": "low"}
    assert chat(asked["effort"])["reasoning_effort"] == "low"
    assert chat(asked["gateway"])["reasoning"] == {"effort": "low"}


def test_no_temperature_and_no_forced_tool_choice_go_with_thinking_a5_5() -> None:
    assert not {"temperature", "top_p", "tool_choice"} & set(messages(request(thinking=8192)))


def test_signed_thoughts_come_first_in_their_reply_a14_c3() -> None:
    body = messages(request(HI, CALLING, RESULTS, thinking=8192))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "text", "tool_use"]
    assert "thinking" in body


def test_a_tool_loop_that_lost_its_thoughts_continues_without_thinking_a14_4() -> None:
    lost = AssistantMessage(text="See.", calls=CALLING.calls)
    assert "thinking" not in messages(request(HI, lost, RESULTS, thinking=8192))
    assert "thinking" in messages(
        request(HI, lost, RESULTS, AssistantMessage(text="Done."), HI, thinking=8192)
    )


def test_a_reply_that_was_made_without_a_thought_does_not_end_the_loops_thinking() -> None:
    """A14.3, A14.4: between two calls a model need not think; what it thought before them goes back."""
    again = AssistantMessage(text="", calls=(replace(CALLING.calls[0], call_id="call_2"),))
    results = ToolResultsMessage(results=(replace(RESULTS.results[0], call_id="call_2"),))
    body = messages(request(HI, CALLING, RESULTS, again, results, thinking=8192))
    assert "thinking" in body
    assert body["messages"][1]["content"][0]["type"] == "thinking"


def test_a_model_that_decides_itself_may_call_before_it_thinks() -> None:
    """A14.4, A5.5: adaptive thinking asks for no thought in front of a call."""
    unthought = AssistantMessage(text="See.", calls=CALLING.calls)
    assert "thinking" in messages(request(HI, unthought, RESULTS, style="adaptive", thinking=8192))


def test_replay_data_of_other_providers_stays_out_a14_4() -> None:
    foreign = AssistantMessage(text="x", calls=CALLING.calls, replay=('{"type":"reasoning"}', "not json"))
    body = messages(request(HI, foreign, RESULTS, thinking=8192))
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use"]


def test_a_trailing_answer_is_never_a_prefill() -> None:
    body = messages(request(HI, AssistantMessage(text="Half ")))
    assert body["messages"][-1]["role"] == "user"
    assert "Continue" in body["messages"][-1]["content"][0]["text"]
