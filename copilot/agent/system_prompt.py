"""The per-session end of the system text: who speaks, what the user asks for, what is being built (A15.1, A30.1)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal
from uuid import UUID

from copilot import metrics
from copilot.chat.prompt_tags import build_server_block, escape_server_tags, escape_text
from copilot.chat.session_config import PersonalityPrompt, SessionConfig
from copilot.providers.base import ToolSpecification
from copilot.realtime.payloads import ContextUsage
from copilot.tools.builtin.get_agent_guide import read_guide

PROMPTS_DIRECTORY = Path(__file__).parent / "prompts"


def build_session_prompt(shaping: SessionConfig, *, mcp_instructions: str = "") -> str:
    """The blocks in their fixed order; the same bytes until one of their sources changes.

    `mcp_instructions` are whole blocks of that tag, escaped already.
    """
    blocks = (
        _personality_block(shaping.voice),
        _instructions_block(shaping),
        _builder_block() if shaping.builds else "",
        mcp_instructions,
    )
    return "\n\n".join(text for text in blocks if text)


def _personality_block(voice: PersonalityPrompt | None) -> str:
    if voice is None:
        return ""
    lines = ["# Personality", "", voice.prompt.strip()]
    lines += [f"Tone: {voice.tone}"] if voice.tone else []
    lines += [f"Style: {voice.style}"] if voice.style else []
    return escape_server_tags("\n".join(lines))


def _instructions_block(shaping: SessionConfig) -> str:
    """The user's own words, newest last: of all conversations, of this one, of the agent that it runs."""
    said = (
        ("What the user asks of every conversation:", shaping.standing),
        ("What the user asks of this conversation:", shaping.instructions),
        (
            "This conversation runs an agent of the user. Its instructions:",
            shaping.agent.instructions if shaping.agent else "",
        ),
    )
    parts = [f"{heading}\n{escape_text(text.strip())}" for heading, text in said if text.strip()]
    return build_server_block("user_context", "\n\n".join(parts)) if parts else ""


@cache
def _builder_block() -> str:
    """The same bytes for all agents and users: no id, no name (A27.6)."""
    introduction = (PROMPTS_DIRECTORY / "builder.md").read_text(encoding="utf-8").strip()
    return build_server_block("builder_session", f"{introduction}\n\n{read_guide()}")


# MERGED agent.prefixes: Where a request cannot begin with the one before it, and why: prompts that break are paid for anew (A15.9).

log = logging.getLogger(__name__)

CacheBreakReason = Literal["compaction", "edit", "healing", "model_switch", "shape", "undo"]


def record_cache_break(reason: CacheBreakReason, session_id: UUID) -> None:
    metrics.prefix_breaks.labels(reason).inc()
    log.info("the requests of session %s begin anew: %s", session_id, reason)


def digest_prompt_prefix(suffix: str, tools: Iterable[ToolSpecification]) -> str:
    """A digest of what begins every request of a turn, besides the text that all share."""
    digest = blake2b(suffix.encode(), digest_size=8)
    for tool in tools:
        digest.update(f"\0{tool.name}\0{tool.description}".encode())
    return digest.hexdigest()


def detect_cache_break(session_id: UUID, before: ContextUsage, *, model: str, shape: str) -> None:
    """The session's last turn, as it left the window, and this one."""
    if before.model and before.model != model:
        record_cache_break("model_switch", session_id)
    elif before.shape and before.shape != shape:
        record_cache_break("shape", session_id)
