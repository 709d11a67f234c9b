"""Token counts of every vendor in our terms (A19.2, A19.c1)."""

from __future__ import annotations

import math

import pytest

from config.core.json_values import JSON
from copilot.providers import token_counts
from copilot.realtime.payloads import Tokens

CHAT: list[tuple[dict[str, JSON], Tokens]] = [
    ({"prompt_tokens": 10, "completion_tokens": 5}, Tokens(input=10, output=5)),
    (
        {"prompt_tokens": 1000, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 900}},
        Tokens(input=100, cache_read=900, output=5),
    ),
    (
        {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}},
        Tokens(input=10, cache_read=60, cache_write_5m=30, output=5),
    ),
    (
        {"prompt_tokens": 100, "completion_tokens": 5, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 90},
        Tokens(input=0, cache_read=90, cache_write_5m=30, output=5),
    ),
    ({"prompt_tokens": 100, "prompt_cache_hit_tokens": 40}, Tokens(input=60, cache_read=40)),
    (
        {"prompt_tokens": 10, "completion_tokens": 50, "total_tokens": 60, "completion_tokens_details": {"reasoning_tokens": 30}},
        Tokens(input=10, output=50, reasoning=30),
    ),
    (
        {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 60, "completion_tokens_details": {"reasoning_tokens": 30}},
        Tokens(input=10, output=50, reasoning=30),
    ),
    (
        {"prompt_tokens": 10, "completion_tokens": None, "prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": None}},
        Tokens(input=10),
    ),
    ({"prompt_tokens": -1, "completion_tokens": True}, Tokens()),
    ({"prompt_tokens": math.nan, "completion_tokens": "7"}, Tokens()),
    ({"prompt_tokens": 10**400, "completion_tokens": 10**19}, Tokens()),
    ({}, Tokens()),
]  # fmt: skip


@pytest.mark.parametrize(("usage", "expected"), CHAT)
def test_chat_counts_never_overlap(usage: dict[str, JSON], expected: Tokens) -> None:
    """A19.2, A19.c1, B4.2: OpenAI and OpenRouter; 900 cached of 1,000 leave 100"""
    assert token_counts.parse_chat_usage(usage) == expected


RESPONSES: list[tuple[dict[str, JSON], Tokens]] = [
    ({"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}, Tokens(input=10, output=5)),
    (
        {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 900}, "output_tokens": 42, "output_tokens_details": {"reasoning_tokens": 7}},
        Tokens(input=100, cache_read=900, output=42, reasoning=7),
    ),
    (
        {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}, "output_tokens": 5},
        Tokens(input=10, cache_read=60, cache_write_5m=30, output=5),
    ),
    ({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 90}}, Tokens(cache_read=90)),
    ({"output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 9}}, Tokens(output=3, reasoning=3)),
    ({"input_tokens": None, "input_tokens_details": None, "output_tokens": -1}, Tokens()),
    ({"input_tokens": math.nan, "output_tokens": "7"}, Tokens()),
]  # fmt: skip


@pytest.mark.parametrize(("usage", "expected"), RESPONSES)
def test_responses_counts_never_overlap(usage: dict[str, JSON], expected: Tokens) -> None:
    """A19.2, A19.c1"""
    assert token_counts.parse_responses_usage(usage) == expected


def test_messages_counts_are_cumulative() -> None:
    """A19.2, A19.5: Anthropic announces the input at the start"""
    at_start = token_counts.parse_messages_usage(
        {
            "input_tokens": 100,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 70,
            "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 20},
            "output_tokens": 1,
        },
        Tokens(),
    )
    at_end = token_counts.parse_messages_usage(
        {"output_tokens": 42, "output_tokens_details": {"thinking_tokens": 7}}, at_start
    )
    assert at_end == Tokens(
        input=100, cache_read=900, cache_write_5m=50, cache_write_1h=20, output=42, reasoning=7
    )


def test_messages_cache_writes_without_breakdown_are_short_lived() -> None:
    counted = token_counts.parse_messages_usage(
        {"input_tokens": 1, "cache_creation_input_tokens": 70}, Tokens()
    )
    assert counted == Tokens(input=1, cache_write_5m=70)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (0.0123, "0.0123"),
        ("0.0123", "0.0123"),
        (0, "0"),
        (None, None),
        (True, None),
        (math.nan, None),
        (math.inf, None),
        (-1, None),
        ("free", None),
        pytest.param(10**400, None, id="beyond-any-number"),
        ([], None),
    ],
)
def test_only_a_believable_cost_is_taken(
    cost: JSON, expected: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A19.4, A19.c1, B4.3: what is there and no amount is an error in the log, what is negative a warning"""
    assert token_counts.parse_reported_cost({"cost": cost}) == expected
    told = "" if cost is None or expected is not None else "WARNING" if cost == -1 else "ERROR"
    assert [one.levelname for one in caplog.records] == ([told] if told else [])
