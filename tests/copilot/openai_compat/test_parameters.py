"""Structured output and parameters, with OpenAI's own client: obeyed, or refused by name."""

from __future__ import annotations

import openai
import pytest
from pydantic import BaseModel

from copilot.models import ModelCall, Session, Turn
from copilot.providers import catalogue
from copilot.providers.scripted import (
    ScriptedCall,
    ScriptedFailure,
    ScriptedFinish,
    ScriptedText,
    ScriptedUsage,
)
from copilot.realtime.payloads import Tokens
from tests.support.turn_engine import until

ASKED = [{"role": "user", "content": "Who discovered penicillin?"}]


class Person(BaseModel):
    name: str
    born: int


FLEMING = '{"name": "Fleming", "born": 1881}'


# --- Structured output -------------------------------------------------------------------------------


def test_parsed_answers_match_their_schema_whole_and_streamed(ada, client, model):
    """X1.2: tools of ours may run before, and what is said before them is no part of the JSON"""
    for _ in range(2):
        model.will(ScriptedText("Looking."), ScriptedCall("current_time"))
        model.will(ScriptedText(FLEMING, size=5))
    parsed = client.chat.completions.parse(model="standard", messages=ASKED, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Fleming", born=1881)
    with client.chat.completions.stream(model="standard", messages=ASKED, response_format=Person) as events:
        assert events.get_final_completion().choices[0].message.parsed.born == 1881
    wanted = model.requests[0].parameters.output_format
    assert (wanted.name, wanted.strict, wanted.schema["required"]) == ("Person", True, ["name", "born"])
    assert "JSON Schema" in model.requests[0].suffix


def test_an_answer_that_does_not_match_is_asked_for_again(ada, client, model):
    """X1.2: the model is told what is wrong"""
    model.will(ScriptedText("Alexander Fleming did."))
    model.will(ScriptedText('{"name": "Fleming"}'))
    model.will(ScriptedText(f"```json\n{FLEMING}\n```"))
    response = client.responses.parse(model="standard", input="Who?", text_format=Person)
    assert response.output_parsed == Person(name="Fleming", born=1881)
    assert "not valid JSON" in model.said_to(1)
    assert "born" in model.said_to(2)
    with client.responses.stream(model="standard", input="Who?", text_format=Person) as events:
        model.will(ScriptedText(FLEMING))
        assert events.get_final_response().output_parsed.born == 1881


def test_a_schema_that_is_not_met_is_a_refusal_after_two_tries_more(ada, client, model):
    """X1.2"""
    model.always(ScriptedText("I would rather not."))
    parsed = client.chat.completions.parse(model="standard", messages=ASKED, response_format=Person)
    assert parsed.choices[0].message.parsed is None
    assert "format" in parsed.choices[0].message.refusal
    assert len(model.requests) == 3
    with client.responses.stream(model="standard", input="Who?", text_format=Person) as events:
        kinds = [event.type for event in events]
        response = events.get_final_response()
    assert "response.refusal.done" in kinds
    assert response.output[0].content[0].type == "refusal"
    assert client.responses.retrieve(response.id).output[0].content[0].type == "refusal"


def test_a_json_object_needs_no_schema(ada, client, model):
    """X1.2"""
    model.will(ScriptedText("[1, 2]"))
    model.will(ScriptedText('{"any": "thing"}'))
    answer = client.chat.completions.create(
        model="standard", messages=ASKED, response_format={"type": "json_object"}
    )
    assert answer.choices[0].message.content == '{"any": "thing"}'
    assert answer.choices[0].message.refusal is None


def test_a_schema_that_takes_forever_to_check_does_not(ada, client, model):
    """X1.2: a schema that cannot be checked in bounded time is not checked"""
    model.will(ScriptedText('{"a": "' + "a" * 40 + '!"}'))
    evil = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    answer = client.chat.completions.create(
        model="standard",
        messages=ASKED,
        response_format={"type": "json_schema", "json_schema": {"name": "evil", "schema": evil}},
    )
    assert answer.choices[0].finish_reason == "stop"


# --- Parameters --------------------------------------------------------------------------------------


def test_parameters_reach_the_model(ada, client, model):
    """X1.4"""
    client.chat.completions.create(
        model="standard",
        messages=ASKED,
        temperature=0.2,
        top_p=0.9,
        seed=7,
        stop=["END"],
        max_completion_tokens=300,
        user="ada-1",
        metadata={"order": "42"},
    )
    sent = model.requests[-1]
    assert (sent.effective_temperature, sent.parameters.top_p, sent.parameters.seed) == (0.2, 0.9, 7)
    assert (sent.parameters.stop, sent.entry.max_output_tokens) == (("END",), 300)
    request = Turn.objects.get().inbound_context["api_request"]
    assert (request["user"], request["metadata"]) == ("ada-1", {"order": "42"})


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_cut_by_the_callers_limit_says_so(ada, client, model, stream):
    """X1.4: and is not continued, because the caller asked for no more"""
    model.will(ScriptedText("Once upon"), ScriptedFinish("length"))
    answer = client.chat.completions.create(model="standard", messages=ASKED, max_tokens=3, stream=stream)
    if stream:
        assert [chunk.choices[0].finish_reason for chunk in answer][-1] == "length"
    else:
        assert answer.choices[0].finish_reason == "length"
    model.will(ScriptedText("Once upon"), ScriptedFinish("length"))
    response = client.responses.create(model="standard", input="Tell", max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert len(model.requests) == 2


def test_the_callers_limit_counts_over_all_calls_of_a_turn(ada, client, model):
    """X1.4"""
    model.will(ScriptedCall("current_time"), ScriptedUsage(Tokens(input=10, output=60)))
    model.will(ScriptedText("Noon."), ScriptedUsage(Tokens(input=10, output=40)))
    client.chat.completions.create(model="standard", messages=ASKED, max_tokens=100)
    assert [request.entry.max_output_tokens for request in model.requests] == [100, 40]


def test_what_cannot_be_obeyed_is_refused_by_name(ada, client, monkeypatch):
    """X1.4"""

    def refused(**fields):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="standard", messages=ASKED, **fields)
        return caught.value.param

    assert refused(logprobs=True) == "logprobs"
    assert refused(logit_bias={"1": 5}) == "logit_bias"
    assert refused(presence_penalty=1) == "presence_penalty"
    assert refused(service_tier="priority") == "service_tier"
    assert refused(reasoning_effort="heroic") == "reasoning_effort"
    assert refused(functions=[{"name": "old"}]) == "functions"
    thinker = catalogue.CatalogueEntry(
        name="thinker", provider="anthropic", model="t", can_reason=True, reasoning_style="adaptive"
    )
    monkeypatch.setattr(catalogue, "get_tier_entries", lambda: {"standard": thinker})
    assert refused(temperature=0.1) == "temperature"
    assert refused(seed=1) == "seed"


def test_instructions_hold_for_one_response_alone(ada, client, model):
    """X1.12"""
    first = client.responses.create(model="standard", input="Hello", instructions="Speak like a sailor.")
    assert "sailor" in model.requests[-1].suffix
    client.responses.create(model="standard", input="And now?", previous_response_id=first.id)
    assert "sailor" not in model.requests[-1].suffix


def test_a_system_prompt_and_a_message_may_be_long(ada, client, model):
    """X2.1: the request is bounded, not the message"""
    client.chat.completions.create(
        model="standard",
        messages=[
            {"role": "system", "content": "Rule. " * 40_000},
            {"role": "user", "content": "x" * 100_000},
            {"role": "assistant", "content": "y" * 100_000},
            {"role": "user", "content": "z" * 100_000},
        ],
    )
    assert len(model.requests[-1].suffix) > 200_000
    assert "z" * 100_000 in model.said_to(-1)
    with pytest.raises(openai.APIStatusError) as refused:
        client.chat.completions.create(
            model="standard", messages=[{"role": "user", "content": "x" * 33 * 2**20}]
        )
    assert refused.value.status_code == 413


def test_usage_is_the_turns_own_and_does_not_grow(ada, client, model):
    """X1.12: a title is not part of it"""
    response = client.responses.create(model="standard", input="Hello")
    before = client.responses.retrieve(response.id).usage
    turn = Turn.objects.get()
    ModelCall.objects.create(
        turn=turn, number=99, purpose="title", provider="x", model="y", input_tokens=5000, output_tokens=500
    )
    assert client.responses.retrieve(response.id).usage == before == response.usage


# --- Failures ----------------------------------------------------------------------------------------


def test_failures_of_the_model_keep_the_vendors_status_and_code(ada, client, model, monkeypatch):
    """X1.8"""
    once = client.with_options(max_retries=0)
    model.always(ScriptedFailure(status=429, body="slow down", headers={"retry-after": "100000"}))
    with pytest.raises(openai.RateLimitError) as limited:
        once.chat.completions.create(model="standard", messages=ASKED)
    assert int(limited.value.response.headers["retry-after"]) > 20
    assert (limited.value.code, limited.value.type) == ("rate_limit_exceeded", "rate_limit_error")
    model.always(ScriptedFailure("context_overflow"))
    with pytest.raises(openai.BadRequestError) as full:
        once.chat.completions.create(model="standard", messages=ASKED)
    assert (full.value.code, full.value.type) == ("context_length_exceeded", "invalid_request_error")


def test_a_refusal_of_the_model_is_told_as_one(ada, client, model):
    """X1.8, X1.2"""
    model.always(ScriptedText("I can't help with that."), ScriptedFinish("refused"))
    answer = client.chat.completions.create(model="standard", messages=ASKED)
    assert answer.choices[0].message.refusal
    assert answer.choices[0].finish_reason == "content_filter"
    until(lambda: not Session.objects.filter(deleted_at=None).exists())


# --- Stored responses --------------------------------------------------------------------------------


def test_a_response_is_cancelled_deleted_and_forgotten(ada, client, model):
    """X1.5, X2.1"""
    from tests.support.turn_engine import cue

    model.will(ScriptedText("Once upon"), cue(1), ScriptedText(" a time."))
    running = client.responses.create(model="standard", input="Tell me a story", background=True)
    assert running.status in ("queued", "in_progress")
    model.reaches(1)
    cancelled = client.responses.cancel(running.id)
    assert (cancelled.status, Turn.objects.get().status) == ("cancelled", "cancelled")
    assert client.responses.input_items.list(running.id).data[0].content[0].text == "Tell me a story"
    client.responses.delete(running.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(running.id)
