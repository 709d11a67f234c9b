"""Vendors' token counts in our terms: fields that never overlap, reasoning inside output (A19.2)."""

from __future__ import annotations

import logging
import math
from dataclasses import fields, replace

from copilot.events import JSON, Tokens

_log = logging.getLogger(__name__)

MOST_TOKENS = 10**12  # what is beyond it was not counted, and no column would hold it

# Where the compatible servers hide what they wrote to the cache.
_CACHE_WRITE = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
_CACHE_READ = ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")


def from_chat(usage: dict[str, JSON]) -> Tokens:
    """OpenAI style: cached tokens are counted inside the prompt, so they are taken out of it."""
    details = _object(usage.get("prompt_tokens_details"))
    read = _first(_CACHE_READ, details, usage)
    write = _first(_CACHE_WRITE, details, usage)
    prompt = _count(usage.get("prompt_tokens"))
    output = _count(usage.get("completion_tokens"))
    reasoning = _count(_object(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    if reasoning and _count(usage.get("total_tokens")) == prompt + output + reasoning:
        output += reasoning  # some servers count reasoning beside the completion
    return Tokens(
        input=max(0, prompt - read - write),
        cache_read=read,
        cache_write_5m=write,
        output=output,
        reasoning=min(reasoning, output),
    )


def from_responses(usage: dict[str, JSON]) -> Tokens:
    """The Responses API: counted as in chat, under other names; reasoning is always inside the output."""
    details = _object(usage.get("input_tokens_details"))
    read = _first(_CACHE_READ, details)
    write = _first(_CACHE_WRITE, details)
    output = _count(usage.get("output_tokens"))
    reasoning = _count(_object(usage.get("output_tokens_details")).get("reasoning_tokens"))
    return Tokens(
        input=max(0, _count(usage.get("input_tokens")) - read - write),
        cache_read=read,
        cache_write_5m=write,
        output=output,
        reasoning=min(reasoning, output),
    )


def from_messages(usage: dict[str, JSON], before: Tokens) -> Tokens:
    """Anthropic style: counts are apart already and cumulative; a field left out keeps its last value."""
    tokens = before
    if _given(usage, "input_tokens"):
        tokens = replace(tokens, input=_count(usage["input_tokens"]))
    if _given(usage, "cache_read_input_tokens"):
        tokens = replace(tokens, cache_read=_count(usage["cache_read_input_tokens"]))
    if _given(usage, "output_tokens"):
        tokens = replace(tokens, output=_count(usage["output_tokens"]))
    details = _object(usage.get("output_tokens_details"))
    reasoning = _first(("thinking_tokens", "reasoning_tokens"), details)
    if reasoning:
        tokens = replace(tokens, reasoning=min(reasoning, tokens.output))
    return _cache_writes(usage, tokens)


def _cache_writes(usage: dict[str, JSON], tokens: Tokens) -> Tokens:
    by_life = _object(usage.get("cache_creation"))
    if by_life:
        return replace(
            tokens,
            cache_write_5m=_count(by_life.get("ephemeral_5m_input_tokens")),
            cache_write_1h=_count(by_life.get("ephemeral_1h_input_tokens")),
        )
    if _given(usage, "cache_creation_input_tokens") and not tokens.cache_write_1h:
        return replace(tokens, cache_write_5m=_count(usage["cache_creation_input_tokens"]))
    return tokens


def added(first: Tokens, second: Tokens) -> Tokens:
    return Tokens(
        **{part.name: getattr(first, part.name) + getattr(second, part.name) for part in fields(Tokens)}
    )


def reported_cost(usage: dict[str, JSON]) -> str | None:
    """The provider's own price in USD as text, if it is a number we can believe (A19.4)."""
    cost = usage.get("cost")
    if cost is None:
        return None
    try:
        value = math.nan if isinstance(cost, bool | list | dict) else float(cost)
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        level = logging.WARNING if value < 0 else logging.ERROR  # B4.3
        _log.log(level, "a provider reported a cost that is no amount; it is ignored")
        return None
    return str(cost).strip()


def _count(value: JSON) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= MOST_TOKENS else 0  # NaN is neither


def _object(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}


def _given(usage: dict[str, JSON], name: str) -> bool:
    return usage.get(name) is not None


def _first(names: tuple[str, ...], *places: dict[str, JSON]) -> int:
    return next((_count(place[name]) for place in places for name in names if _given(place, name)), 0)
