"""Mark where a prompt can be cached, for Anthropic's models only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from config.core.json_values import JSON
from copilot.providers.base import CatalogueEntry

CacheLifetime = Literal["5m", "1h"]
MAX_MARKED_MESSAGES = 2  # with the system prompt and the last tool, the four marks that the API allows
UNMARKABLE_BLOCK_TYPES = ("thinking", "redacted_thinking", "image_url")  # gateways only accept text
# Model names of gateways: anthropic/claude-…, bedrock/eu.anthropic.claude-…, vertex_ai/claude-…
_ANTHROPIC_MODEL = re.compile(r"(?:^|[/.~])(?:anthropic[/.]|claude-)")

CacheableBlock = dict[str, JSON]


@dataclass(frozen=True, kw_only=True)
class PromptCacheConfig:
    """Cache lifetimes; that of the prefix is never shorter than that of the messages after it."""

    enabled: bool = True
    prefix: CacheLifetime = "1h"
    messages: CacheLifetime = "5m"


class PromptCacheSettings(Protocol):
    PROMPT_CACHING: bool


_current: dict[Literal["caching"], PromptCacheConfig] = {"caching": PromptCacheConfig()}


def set_prompt_cache(caching: PromptCacheConfig) -> None:
    _current["caching"] = caching


def configure_from_settings(settings: PromptCacheSettings) -> None:
    set_prompt_cache(PromptCacheConfig(enabled=settings.PROMPT_CACHING))


def get_prompt_cache() -> PromptCacheConfig:
    return _current["caching"]


def supports_cache_marks(entry: CatalogueEntry) -> bool:
    """Check for Anthropic itself, or a gateway that passes marks on to an Anthropic model."""
    if not get_prompt_cache().enabled:
        return False
    gateway = entry.provider == "openai_chat" and bool(entry.base_url)
    return entry.provider == "anthropic" or (gateway and bool(_ANTHROPIC_MODEL.search(entry.model)))


def mark_first_block(blocks: list[JSON]) -> None:
    """Mark the static system prompt; the session's suffix follows it unmarked."""
    if blocks:
        blocks[0] = _with_cache_control(blocks[0], get_prompt_cache().prefix)


def mark_last_tool(tools: list[JSON]) -> None:
    if tools:
        tools[-1] = _with_cache_control(tools[-1], get_prompt_cache().prefix)


def mark_last_messages(contents: Iterable[JSON]) -> None:
    """Mark the end of the last messages, given as lists of blocks from the last one backwards."""
    left = MAX_MARKED_MESSAGES
    for content in contents:
        if not left:
            return
        left -= isinstance(content, list) and _mark_last_block(content)


def _mark_last_block(blocks: list[JSON]) -> bool:
    for position in range(len(blocks) - 1, -1, -1):
        block = blocks[position]
        if isinstance(block, dict) and block.get("type") not in UNMARKABLE_BLOCK_TYPES:
            blocks[position] = _with_cache_control(block, get_prompt_cache().messages)
            return True
    return False


def _with_cache_control(block: JSON, life: CacheLifetime) -> JSON:
    """Copy the block, which may be shared with a conversation that goes to other providers too."""
    assert isinstance(block, dict)
    mark: CacheableBlock = {"type": "ephemeral"} if life == "5m" else {"type": "ephemeral", "ttl": life}
    return {**block, "cache_control": mark}
