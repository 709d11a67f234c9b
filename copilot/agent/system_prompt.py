"""Build the session's part of the system prompt, and detect requests that cannot reuse the prompt cache."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal
from uuid import UUID

import structlog

from copilot import metrics
from copilot.chat.prompt_tags import build_server_block, escape_server_tags, escape_text
from copilot.chat.turn_context import PersonalityPrompt, SessionConfig
from copilot.providers.base import ToolSpecification
from copilot.realtime.payloads import ContextUsage
from copilot.tools.builtin.get_agent_guide import read_guide

PROMPTS_DIRECTORY = Path(__file__).parent / "prompts"


def build_session_prompt(
    config: SessionConfig, *, request_instructions: str = "", mcp_instructions: str = ""
) -> str:
    """Join the blocks in a fixed order; the bytes stay the same until one of their sources changes.

    `request_instructions` hold for this turn alone; `mcp_instructions` consists of complete blocks that are already escaped.
    """
    blocks = (
        _personality_block(config.personality),
        _instructions_block(config, request_instructions),
        _builder_block() if config.is_builder else "",
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


def _instructions_block(config: SessionConfig, request_instructions: str) -> str:
    """Join the user's instructions: for all conversations, this one, this request, and of the agent that it runs."""
    sections = (
        ("What the user asks of every conversation:", config.user_instructions),
        ("What the user asks of this conversation:", config.instructions),
        ("What the user asks of this answer:", request_instructions),
        (
            "This conversation runs an agent of the user. Its instructions:",
            config.agent.instructions if config.agent else "",
        ),
    )
    parts = [f"{heading}\n{escape_text(text.strip())}" for heading, text in sections if text.strip()]
    return build_server_block("user_context", "\n\n".join(parts)) if parts else ""


@cache
def _builder_block() -> str:
    """Build the block for agent building, which is the same for all agents and users."""
    introduction = (PROMPTS_DIRECTORY / "builder.md").read_text(encoding="utf-8").strip()
    return build_server_block("builder_session", f"{introduction}\n\n{read_guide()}")


# --- Prompt cache breaks ---

log = structlog.get_logger(__name__)

CacheBreakReason = Literal["compaction", "edit", "healing", "model_switch", "shape", "undo"]


def record_cache_break(reason: CacheBreakReason, session_id: UUID) -> None:
    metrics.prefix_breaks.labels(reason).inc()
    log.info("prompt_cache_break", session_id=str(session_id), reason=reason)


def digest_prompt_prefix(suffix: str, tools: Iterable[ToolSpecification]) -> str:
    digest = blake2b(suffix.encode(), digest_size=8)
    for tool in tools:
        digest.update(f"\0{tool.name}\0{tool.description}".encode())
    return digest.hexdigest()


def detect_cache_break(session_id: UUID, before: ContextUsage, *, model: str, shape: str) -> None:
    if before.model and before.model != model:
        record_cache_break("model_switch", session_id)
    elif before.shape and before.shape != shape:
        record_cache_break("shape", session_id)
