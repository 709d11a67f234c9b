"""Tools that the caller runs itself, with OpenAI's own client: handed out, answered, and the answer continues."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import openai
import pytest

from copilot.chat import approvals
from copilot.chat import selectors as chat_selectors
from copilot.models import Message, Session, Turn
from copilot.providers.scripted import ScriptedCall, ScriptedText
from copilot.worker import recovery
from tests.support.approvals import approve_requests, list_open_approvals
from tests.support.turn_engine import Errand, add_tools, until

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK = {"name": "get_clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOLS = [{"type": "function", "function": WEATHER}, {"type": "function", "function": CLOCK}]
RESPONSE_TOOLS = [{"type": "function", **WEATHER}, {"type": "function", **CLOCK}]
ASKED = [{"role": "user", "content": "Weather in Kiel and the time?"}]


def both_calls(*, text="Let me look."):
    return (
        ScriptedText(text),
        ScriptedCall("get_weather", {"city": "Kiel"}, call_id="call_w"),
        ScriptedCall("get_clock", {}, call_id="call_c"),
    )


def tool_messages(message):
    return [
        {"role": "tool", "tool_call_id": call.id, "content": f"{call.function.name} result"}
        for call in message.tool_calls
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_hands_out_calls_and_continues_from_their_results(ada, client, model, stream):
    """X1.1: stateless, so that the next request rebuilds the turn"""
    model.will(*both_calls())
    model.will(ScriptedText("Sunny at noon."))
    message = complete(client, ASKED, stream=stream)
    assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_clock"]
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Kiel"}
    assert message.content == "Let me look."
    offered = [tool.name for tool in model.requests[0].tools]
    assert offered[-2:] == ["get_weather", "get_clock"]
    assert "current_time" in offered
    until(lambda: not Session.objects.filter(deleted_at=None).exists())
    history = [*ASKED, message.model_dump(exclude_none=True), *tool_messages(message)]
    answer = complete(client, history, stream=stream)
    assert (answer.content, answer.tool_calls) == ("Sunny at noon.", None)
    *_, called, results = model.requests[-1].messages
    assert [call.tool for call in called.calls] == ["get_weather", "get_clock"]
    assert [result.content for result in results.results] == ["get_weather result", "get_clock result"]


def complete(client, messages, *, stream, **fields):
    """Return the message of a completion, put together by the client when it is streamed."""
    arguments = {"model": "standard", "messages": messages, "tools": CHAT_TOOLS, **fields}
    if not stream:
        choice = client.chat.completions.create(**arguments).choices[0]
    else:
        with client.chat.completions.stream(**arguments) as events:
            choice = events.get_final_completion().choices[0]
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    return choice.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_waits_for_its_caller_and_the_same_turn_continues(ada, client, model, stream):
    """X1.1, X1.12: each response has its own output and usage"""
    model.will(*both_calls())
    model.will(ScriptedText("Sunny at noon."))
    first = respond(client, stream=stream, input="Weather in Kiel and the time?")
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    assert first.status == "completed"
    turn = Turn.objects.get()
    assert (turn.status, chat_selectors.get_session(ada.pk, turn.session_id).pk) == (
        "waiting",
        turn.session_id,
    )
    second = respond(client, stream=stream, input=outputs(first), previous_response_id=first.id)
    assert (second.status, second.output_text) == ("completed", "Sunny at noon.")
    turn.refresh_from_db()
    assert (turn.status, turn.run_ids) == ("succeeded", [first.id, second.id])
    assert Turn.objects.count() == 1
    stored = [client.responses.retrieve(response.id) for response in (first, second)]
    assert [response.output_text for response in stored] == ["Let me look.", "Sunny at noon."]
    assert [len(response.output) for response in stored] == [3, 1]
    for before, after in zip((first, second), stored, strict=True):
        assert before.usage.total_tokens == after.usage.total_tokens > 0
    items = client.responses.input_items.list(second.id).data
    assert [item.call_id for item in items] == ["call_w", "call_c"]


def respond(client, *, stream, **fields):
    arguments = {"model": "standard", "tools": RESPONSE_TOOLS, **fields}
    if not stream:
        return client.responses.create(**arguments)
    with client.responses.stream(**arguments) as events:
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(numbers)))
        return events.get_final_response()


def outputs(response, text="result"):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"{item.name} {text}"}
        for item in response.output
        if item.type == "function_call"
    ]


def test_our_tools_run_in_the_same_group_and_approvals_are_waited_for_too(ada, client, model, monkeypatch):
    """X1.1: the turn resumes once the caller and the person are both done"""
    ran = Errand("pay", approval="ask")
    add_tools(monkeypatch, ran)
    model.will(
        ScriptedCall("current_time", call_id="ours"),
        ScriptedCall("pay", call_id="asks"),
        ScriptedCall("get_clock", call_id="theirs"),
    )
    model.will(ScriptedText("Paid at noon."))
    first = respond(client, stream=False, input="Pay at noon.")
    assert [item.call_id for item in first.output if item.type == "function_call"] == ["theirs"]
    turn = Turn.objects.get()
    second = respond(client, stream=False, input=outputs(first), previous_response_id=first.id)
    assert (second.status, second.incomplete_details.reason) == ("incomplete", "waiting_for_approval")
    approve_requests(*list_open_approvals(turn.session))
    until(lambda: Turn.objects.get().status == "succeeded")
    assert client.responses.retrieve(second.id).output_text == "Paid at noon."
    [results] = [m for m in model.requests[-1].messages if m.role == "tool"]
    assert [result.call_id for result in results.results] == ["ours", "asks", "theirs"]
    assert all(result.success for result in results.results)


def test_results_for_other_calls_too_few_or_twice_change_nothing(ada, client, model):
    """X1.1"""
    model.will(*both_calls())
    model.will(ScriptedText("Sunny."))
    first = respond(client, stream=False, input="Hello")
    good = outputs(first)

    def refused(sent, error=openai.BadRequestError):
        with pytest.raises(error) as caught:
            respond(client, stream=False, input=sent, previous_response_id=first.id)
        return caught.value.code

    assert refused([*good, {**good[0], "call_id": "call_of_somebody"}]) == "unknown_tool_call"
    assert refused([good[0]]) == "missing_tool_result"
    assert refused([*good, good[0]]) == "duplicate_tool_result"
    assert Turn.objects.get().status == "waiting"
    assert not Message.objects.filter(kind="tool_result").exists()
    respond(client, stream=False, input=good, previous_response_id=first.id)
    assert refused(good) == "previous_response_superseded"
    assert len(model.requests) == 2


def test_a_message_instead_of_results_or_after_them_continues_as_well(ada, client, model):
    """X1.1"""
    model.will(*both_calls())
    first = respond(client, stream=False, input="Hello")
    second = respond(client, stream=False, input="Never mind.", previous_response_id=first.id)
    assert second.output_text == "Aye."
    assert "abandoned" in model.said_to(-1)
    model.will(ScriptedCall("get_clock", call_id="call_n"))
    third = respond(client, stream=False, input="Time?", previous_response_id=second.id)
    fourth = respond(
        client,
        stream=False,
        input=[*outputs(third, "is noon"), {"role": "user", "content": "In Tokyo?"}],
        previous_response_id=third.id,
    )
    assert fourth.output_text == "Aye."
    assert "get_clock is noon" in model.said_to(-1)
    assert "In Tokyo?" in model.said_to(-1)


def test_results_that_never_come_end_the_turn_after_a_week(ada, client, model):
    """X1.1"""
    model.will(*both_calls())
    first = respond(client, stream=False, input="Hello")
    Turn.objects.update(paused_at=datetime.now(UTC) - timedelta(days=8))
    assert recovery.expire_approval_requests() == 1
    assert Turn.objects.get().status == "cancelled"
    assert approvals.list_open_client_calls(Turn.objects.get().pk) == []
    assert client.responses.retrieve(first.id).status == "cancelled"


def test_a_result_of_megabytes_is_stored_whole_and_read_in_part(ada, client, model):
    """X1.1"""
    model.will(ScriptedCall("get_clock", call_id="call_big"))
    model.will(ScriptedText("Long."))
    first = respond(client, stream=False, input="Hello")
    output = [{"type": "function_call_output", "call_id": "call_big", "output": "x" * 5_000_000}]
    assert respond(client, stream=False, input=output, previous_response_id=first.id).output_text == "Long."
    [results] = [m for m in model.requests[-1].messages if m.role == "tool"]
    assert len(results.results[0].content) < 100_000
    assert "5,000,000 characters in all" in results.results[0].content


def test_a_worker_that_dies_between_the_call_and_the_pause_hands_it_out_all_the_same(
    ada, client, model, monkeypatch
):
    """X1.1: the call is never taken for one of ours whose outcome is unknown"""
    from copilot.agent import resume
    from copilot.chat.message_rows import MessageRow

    row = MessageRow(
        id="7f0d2c1e-93a7-4a55-8a0b-2f6f0c5b7d11",
        kind="tool_call",
        call_id="call_c",
        turn_id="t",
        data={"tool": "get_clock", "arguments": {}, "of_client": True},
    )
    plan = resume.plan_resume(
        [row], turn_id="t", texts={}, repeatable=(), held=frozenset({"get_clock"}), decisions={}
    )
    assert [call.tool for call in plan.pending_calls] == ["get_clock"]


def test_tool_choice_and_parallel_calls_are_passed_on(ada, client, model):
    """X1.1, X1.4"""
    model.will(ScriptedCall("get_clock"))
    complete(
        client,
        ASKED,
        stream=False,
        tool_choice={"type": "function", "function": {"name": "get_clock"}},
        parallel_tool_calls=False,
    )
    asked = model.requests[-1].parameters
    assert (asked.tool_choice, asked.forced_tool, asked.parallel_tool_calls) == ("tool", "get_clock", False)
    model.will(ScriptedCall("current_time"))
    model.will(ScriptedText("Noon."))
    complete(client, ASKED, stream=False, tool_choice="required")
    assert [request.parameters.tool_choice for request in model.requests[-2:]] == ["required", "auto"]
    with pytest.raises(openai.BadRequestError) as refused:
        complete(
            client, ASKED, stream=False, tool_choice={"type": "function", "function": {"name": "launch"}}
        )
    assert refused.value.param == "tool_choice"


def test_a_second_call_of_one_reply_is_refused_where_only_one_may_run(ada, client, model):
    """X1.1"""
    model.will(*both_calls())
    message = complete(client, ASKED, stream=False, parallel_tool_calls=False)
    assert [call.function.name for call in message.tool_calls] == ["get_weather"]


def test_a_request_may_keep_our_tools_away_from_the_model(ada, client, model):
    """X1.1"""
    complete(client, ASKED, stream=False, extra_body={"pilothouse": {"tools": "client_only"}})
    assert [tool.name for tool in model.requests[-1].tools] == ["get_weather", "get_clock"]


def test_a_tool_named_like_one_of_ours_is_the_callers(ada, client, model):
    """X1.1"""
    model.will(ScriptedCall("current_time"))
    tools = [{"type": "function", "function": {**CLOCK, "name": "current_time"}}]
    message = complete(client, ASKED, stream=False, tools=tools)
    assert message.tool_calls[0].function.name == "current_time"
    assert [tool.name for tool in model.requests[-1].tools].count("current_time") == 1


@pytest.mark.parametrize(
    "tools",
    [
        [{"type": "function", "function": {**CLOCK, "name": "no spaces"}}],
        [{"type": "function", "function": {**CLOCK, "parameters": {"type": "array"}}}],
        [{"type": "function", "function": {**CLOCK, "description": "x" * 70_000}}],
        [CHAT_TOOLS[0], CHAT_TOOLS[0]],
        [{"type": "function", "function": {**CLOCK, "name": f"t{n}"}} for n in range(129)],
    ],
    ids=["name", "schema", "length", "twice", "number"],
)
def test_tools_that_no_model_could_use_are_refused(ada, client, tools):
    """X1.1"""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="standard", messages=ASKED, tools=tools)
    assert refused.value.param == "tools"


def test_stateless_responses_bring_their_calls_along(ada, client, model):
    """X1.1: as agent frameworks do that keep the history themselves"""
    model.will(ScriptedText("Noon."))
    answer = client.responses.create(
        model="standard",
        store=False,
        tools=RESPONSE_TOOLS,
        input=[
            {"role": "user", "content": "Time and weather?"},
            {"type": "function_call", "call_id": "a", "name": "get_clock", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "get_weather", "arguments": '{"city":"Kiel"}'},
            {"type": "function_call_output", "call_id": "a", "output": "12:00"},
            {
                "type": "function_call_output",
                "call_id": "b",
                "output": [{"type": "input_text", "text": "Sunny"}],
            },
        ],
    )
    assert answer.output_text == "Noon."
    *_, called, results = model.requests[-1].messages
    assert len(called.calls) == 2
    assert [result.content for result in results.results] == ["12:00", "Sunny"]


def test_items_may_be_named_instead_of_sent_again(ada, client, model):
    """X2.1: the AI SDK's own provider does so"""
    model.will(ScriptedText("I am Pilothouse."), ScriptedCall("get_clock", call_id="call_r"))
    first = respond(client, stream=False, input="Who are you, and what time is it?")
    said, called = first.output
    model.will(ScriptedText("Noon."))
    second = respond(
        client,
        stream=False,
        input=[
            {"role": "user", "content": "Who are you, and what time is it?"},
            {"type": "item_reference", "id": said.id},
            {"type": "item_reference", "id": called.id},
            {"type": "function_call_output", "call_id": "call_r", "output": "12:00"},
        ],
    )
    assert second.output_text == "Noon."
    assert "I am Pilothouse." in model.said_to(-1)
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, stream=False, input=[{"type": "item_reference", "id": "msg_0"}])
    assert refused.value.code == "item_not_found"
