"""Where a prompt may be cut for a provider's cache: marks for Anthropic's models, and for nobody else (A15.7)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from copilot.events import JSON
from copilot.providers.base import Entry

Life = Literal["5m", "1h"]
LIVES: tuple[Life, ...] = ("5m", "1h")  # from the shortest to the longest
MARKED_MESSAGES = 2  # with the system text and the last tool: the four marks that the API allows
UNMARKABLE = ("thinking", "redacted_thinking", "image_url")  # gateways take marks on text alone
# As gateways spell it: anthropic/claude-…, bedrock/eu.anthropic.claude-…, vertex_ai/claude-…
_ANTHROPIC_MODEL = re.compile(r"(?:^|[/.~])(?:anthropic[/.]|claude-)")

Block = dict[str, JSON]


@dataclass(frozen=True, kw_only=True)
class Caching:
    """How long a provider shall keep what it has read; a prefix never less long than what follows it."""

    enabled: bool = True
    prefix: Life = "1h"
    messages: Life = "5m"


class Settings(Protocol):
    PROMPT_CACHING: bool
    PROMPT_CACHE_PREFIX_LIFE: Life
    PROMPT_CACHE_MESSAGES_LIFE: Life


_now: dict[Literal["caching"], Caching] = {"caching": Caching()}


def configure(caching: Caching) -> None:
    _now["caching"] = caching


def configure_from(settings: Settings) -> None:
    configure(
        Caching(
            enabled=settings.PROMPT_CACHING,
            prefix=settings.PROMPT_CACHE_PREFIX_LIFE,
            messages=settings.PROMPT_CACHE_MESSAGES_LIFE,
        )
    )


def current() -> Caching:
    return _now["caching"]


def takes_marks(entry: Entry) -> bool:
    """Anthropic itself, or a gateway that hands an Anthropic model its marks."""
    if not current().enabled:
        return False
    gateway = entry.provider == "openai_chat" and bool(entry.base_url)
    return entry.provider == "anthropic" or (gateway and bool(_ANTHROPIC_MODEL.search(entry.model)))


def mark_first(blocks: list[JSON]) -> None:
    """The static system text stands first; the session's suffix follows it unmarked."""
    if blocks:
        blocks[0] = _marked(blocks[0], current().prefix)


def mark_last_tool(tools: list[JSON]) -> None:
    if tools:
        tools[-1] = _marked(tools[-1], current().prefix)


def mark_messages(contents: Iterable[JSON]) -> None:
    """The end of the last messages, given from the last one backwards as lists of blocks."""
    left = MARKED_MESSAGES
    for content in contents:
        if not left:
            return
        left -= isinstance(content, list) and _mark_last(content)


def _mark_last(blocks: list[JSON]) -> bool:
    for place in range(len(blocks) - 1, -1, -1):
        block = blocks[place]
        if isinstance(block, dict) and block.get("type") not in UNMARKABLE:
            blocks[place] = _marked(block, current().messages)
            return True
    return False


def _marked(block: JSON, life: Life) -> JSON:
    """A copy: blocks may be shared with the conversation, which goes to other providers too."""
    assert isinstance(block, dict)
    mark: Block = {"type": "ephemeral"} if life == "5m" else {"type": "ephemeral", "ttl": life}
    return {**block, "cache_control": mark}
