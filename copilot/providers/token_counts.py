"""Convert vendors' token counts into ours: fields never overlap, and reasoning is part of output."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import structlog

from config.core.json_values import JSON
from copilot.realtime.payloads import Tokens

log = structlog.get_logger(__name__)

MAX_TOKENS = 10**12  # a higher count is an error, and would not fit the column

# Fields in which compatible servers report cache writes.
_CACHE_WRITE_FIELDS = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
_CACHE_READ_FIELDS = ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")


def parse_chat_usage(usage: dict[str, JSON]) -> Tokens:
    """Parse OpenAI's counts, where the prompt includes cached tokens, which are subtracted."""
    details = _dict_or_empty(usage.get("prompt_tokens_details"))
    read = _first_count(_CACHE_READ_FIELDS, details, usage)
    write = _first_count(_CACHE_WRITE_FIELDS, details, usage)
    prompt = _parse_count(usage.get("prompt_tokens"))
    output = _parse_count(usage.get("completion_tokens"))
    reasoning = _parse_count(_dict_or_empty(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    if reasoning and _parse_count(usage.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # some servers do not include reasoning in the completion
    return Tokens(
        input=max(0, prompt - read - write),
        cache_read=read,
        cache_write_5m=write,
        output=output,
        reasoning=min(reasoning, output),
    )


def parse_responses_usage(usage: dict[str, JSON]) -> Tokens:
    """Parse the Responses API's counts: as in chat, under other names; the output includes reasoning."""
    details = _dict_or_empty(usage.get("input_tokens_details"))
    read = _first_count(_CACHE_READ_FIELDS, details)
    write = _first_count(_CACHE_WRITE_FIELDS, details)
    output = _parse_count(usage.get("output_tokens"))
    reasoning = _parse_count(_dict_or_empty(usage.get("output_tokens_details")).get("reasoning_tokens"))
    return Tokens(
        input=max(0, _parse_count(usage.get("input_tokens")) - read - write),
        cache_read=read,
        cache_write_5m=write,
        output=output,
        reasoning=min(reasoning, output),
    )


def parse_messages_usage(usage: dict[str, JSON], before: Tokens) -> Tokens:
    """Parse Anthropic's counts, which are separate and cumulative; a missing field keeps its last value."""
    tokens = before
    if _is_given(usage, "input_tokens"):
        tokens = replace(tokens, input=_parse_count(usage["input_tokens"]))
    if _is_given(usage, "cache_read_input_tokens"):
        tokens = replace(tokens, cache_read=_parse_count(usage["cache_read_input_tokens"]))
    if _is_given(usage, "output_tokens"):
        tokens = replace(tokens, output=_parse_count(usage["output_tokens"]))
    details = _dict_or_empty(usage.get("output_tokens_details"))
    reasoning = _first_count(("thinking_tokens", "reasoning_tokens"), details)
    if reasoning:
        tokens = replace(tokens, reasoning=min(reasoning, tokens.output))
    return _add_cache_writes(usage, tokens)


def _add_cache_writes(usage: dict[str, JSON], tokens: Tokens) -> Tokens:
    by_life = _dict_or_empty(usage.get("cache_creation"))
    if by_life:
        return replace(
            tokens,
            cache_write_5m=_parse_count(by_life.get("ephemeral_5m_input_tokens")),
            cache_write_1h=_parse_count(by_life.get("ephemeral_1h_input_tokens")),
        )
    if _is_given(usage, "cache_creation_input_tokens") and not tokens.cache_write_1h:
        return replace(tokens, cache_write_5m=_parse_count(usage["cache_creation_input_tokens"]))
    return tokens


def add_tokens(first: Tokens, second: Tokens) -> Tokens:
    return Tokens(
        **{part.name: getattr(first, part.name) + getattr(second, part.name) for part in fields(Tokens)}
    )


def parse_reported_cost(usage: dict[str, JSON]) -> str | None:
    """Return the provider's own price in USD as text, if it is a plausible number."""
    cost = usage.get("cost")
    if cost is None:
        return None
    try:
        value = math.nan if isinstance(cost, bool | list | dict) else float(cost)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        report = log.warning if value < 0 else log.error
        report("reported_cost_invalid")
        return None
    return str(cost).strip()


def _parse_count(value: JSON) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= MAX_TOKENS else 0  # NaN fails both comparisons


def _dict_or_empty(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}


def _is_given(usage: dict[str, JSON], name: str) -> bool:
    return usage.get(name) is not None


def _first_count(names: tuple[str, ...], *places: dict[str, JSON]) -> int:
    return next(
        (_parse_count(place[name]) for place in places for name in names if _is_given(place, name)), 0
    )
