"""Cache marks stand on Anthropic's routes, four at most, and nowhere else (A15.7, A15.8)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from copilot.providers import anthropic, openai_chat, openai_responses, prompt_cache
from copilot.providers.base import (
    AssistantMessage,
    CatalogueEntry,
    ModelRequest,
    ToolCall,
    ToolResult,
    ToolResultsMessage,
    ToolSpecification,
    UserMessage,
)
from copilot.providers.prompt_cache import PromptCacheConfig

PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = tuple(
    ToolSpecification(name=name, description=name, parameters=PARAMETERS) for name in ("ls", "cat", "wc")
)
THOUGHT = json.dumps({"type": "thinking", "thinking": "hm", "signature": "s"})
CALLING = AssistantMessage(
    text="", calls=(ToolCall(call_id="c1", tool="ls", arguments={"a": 1}),), replay=(THOUGHT,)
)
RESULTS = ToolResultsMessage(results=(ToolResult(call_id="c1", tool="ls", content="x"),))
CLAUDE = CatalogueEntry(name="Claude", provider="anthropic", model="claude-sonnet-5-5")
GATEWAY = "https://openrouter.ai/api/v1"
HOUR = {"type": "ephemeral", "ttl": "1h"}
MINUTES = {"type": "ephemeral"}


@pytest.fixture(autouse=True)
def _usual_caching() -> Iterator[None]:
    before = prompt_cache.get_prompt_cache()
    prompt_cache.set_prompt_cache(PromptCacheConfig())
    yield
    prompt_cache.set_prompt_cache(before)


def request(entry: CatalogueEntry, *messages: Any) -> ModelRequest:
    said = messages or (UserMessage(text="hi"), CALLING, RESULTS)
    return ModelRequest(entry=entry, system="Be brief.", suffix="Today.", messages=said, tools=TOOLS)


def body(asked: ModelRequest) -> Any:
    match asked.entry.provider:
        case "anthropic":
            return json.loads(json.dumps(anthropic.build_request_body(asked)))
        case "openai_chat":
            return json.loads(openai_chat.encode_request(asked, official=not asked.entry.base_url))
        case _:
            return json.loads(openai_responses.encode_request(asked))


def marks(value: Any) -> list[Any]:
    """Every mark, in the order of the request."""
    if isinstance(value, list):
        return [mark for item in value for mark in marks(item)]
    if not isinstance(value, dict):
        return []
    own = [value["cache_control"]] if "cache_control" in value else []
    return own + [mark for name, item in value.items() if name != "cache_control" for mark in marks(item)]


def test_four_marks_stand_on_a_request_to_anthropic_a15_c2() -> None:
    sent = body(request(CLAUDE))
    assert sent["tools"][-1]["cache_control"] == HOUR
    assert [block.get("cache_control") for block in sent["system"]] == [HOUR, None]
    assert sent["messages"][1]["content"][-1]["cache_control"] == MINUTES
    assert sent["messages"][2]["content"][-1]["cache_control"] == MINUTES
    assert len(marks(sent)) == 4


def test_a_gateway_with_an_anthropic_model_gets_them_on_text_parts_a15_7() -> None:
    claude = CatalogueEntry(
        name="c", provider="openai_chat", model="anthropic/claude-opus-5", base_url=GATEWAY
    )
    sent = body(request(claude))
    system, user, calling, result = sent["messages"]
    assert [part["text"] for part in system["content"]] == ["Be brief.", "Today."]
    assert [part.get("cache_control") for part in system["content"]] == [HOUR, None]
    assert sent["tools"][-1]["cache_control"] == HOUR
    assert calling["content"] is None  # nothing to mark: the message before it is
    assert user["content"] == [{"type": "text", "text": "hi", "cache_control": MINUTES}]
    assert result["content"] == [{"type": "text", "text": "x", "cache_control": MINUTES}]
    assert len(marks(sent)) == 4


@pytest.mark.parametrize(
    ("model", "marked"),
    [
        ("anthropic/claude-sonnet-5", True),
        ("bedrock/eu.anthropic.claude-sonnet-4-5", True),
        ("vertex_ai/claude-haiku-4-5", True),
        ("claude-opus-5", True),
        ("openai/gpt-5.4", False),
        ("our-claude-like-model", False),
        ("anthropics", False),
    ],
)
def test_models_behind_gateways_are_distinguished_by_name_a15_7(model: str, marked: bool) -> None:
    entry = CatalogueEntry(name=model, provider="openai_chat", model=model, base_url=GATEWAY)
    assert bool(marks(body(request(entry)))) == marked


@pytest.mark.parametrize("provider", ["openai_chat", "openai_responses"])
def test_no_other_provider_receives_a_mark_a15_c2(provider: Any) -> None:
    for model in ("gpt-5.4-mini", "claude-opus-5"):
        entry = CatalogueEntry(name=model, provider=provider, model=model)
        assert "cache_control" not in json.dumps(body(request(entry)))


def test_an_empty_result_takes_no_mark() -> None:
    """A15.7: Anthropic refuses an empty part, marked or not; the part before it gets the mark"""
    claude = CatalogueEntry(
        name="c", provider="openai_chat", model="anthropic/claude-opus-5", base_url=GATEWAY
    )
    nothing = ToolResultsMessage(results=(ToolResult(call_id="c1", tool="ls", content=""),))
    calling = replace(CALLING, text="See.")
    _, user, said, result = body(request(claude, UserMessage(text="hi"), calling, nothing))["messages"]
    assert result["content"] == ""
    assert marks([user, said, result]) == [MINUTES, MINUTES]


def test_marks_stand_on_copies_a15_7() -> None:
    asked = request(CLAUDE)
    first = body(asked)
    assert PARAMETERS == {"type": "object", "properties": {}}
    assert CALLING.calls[0].arguments == {"a": 1}
    assert body(asked) == first
    elsewhere = replace(asked, entry=replace(CLAUDE, provider="openai_responses"))
    assert marks(body(elsewhere)) == []


def test_a_conversation_of_one_message_has_three_marks_and_a_bare_one_fewer() -> None:
    assert len(marks(body(request(CLAUDE, UserMessage(text="hi"))))) == 3
    bare = ModelRequest(entry=CLAUDE, system="", messages=(UserMessage(text="hi"),))
    assert len(marks(body(bare))) == 1


def test_a_thought_at_the_end_of_a_message_is_never_marked() -> None:
    """The API refuses a mark on a thinking block; the block before it gets the mark."""
    content: list[Any] = [{"type": "text", "text": "So"}, json.loads(THOUGHT)]
    prompt_cache.mark_last_messages([content])
    assert content[0]["cache_control"] == MINUTES
    assert "cache_control" not in content[1]


def test_the_lives_and_the_switch_are_the_settings_a15_8() -> None:
    prompt_cache.set_prompt_cache(PromptCacheConfig(prefix="1h", messages="1h"))
    assert marks(body(request(CLAUDE))) == [HOUR] * 4
    prompt_cache.set_prompt_cache(PromptCacheConfig(prefix="5m", messages="5m"))
    assert marks(body(request(CLAUDE))) == [MINUTES] * 4
    prompt_cache.set_prompt_cache(PromptCacheConfig(enabled=False))
    assert marks(body(request(CLAUDE))) == []
