"""Tokens as OpenAI counts them; money is for staff (A19.8)."""

from __future__ import annotations

from copilot.events import Tokens


def _read(tokens: Tokens) -> int:
    return tokens.input + tokens.cache_read + tokens.cache_write_5m + tokens.cache_write_1h


def of_chat(tokens: Tokens) -> dict[str, object]:
    return {
        "prompt_tokens": _read(tokens),
        "completion_tokens": tokens.output,
        "total_tokens": _read(tokens) + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def of_response(tokens: Tokens) -> dict[str, object]:
    return {
        "input_tokens": _read(tokens),
        "input_tokens_details": {"cached_tokens": tokens.cache_read},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": _read(tokens) + tokens.output,
    }
