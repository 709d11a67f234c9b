"""The per-session end of the system text: who speaks, what the user asks for, what is being built (A15.1, A30.1)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from copilot.shaping import Shaping, Voice
from copilot.tags import block, escape, escape_server_tags
from copilot.tools.get_agent_guide import guide

PROMPTS = Path(__file__).parent / "prompts"


def suffix_text(shaping: Shaping, *, mcp_instructions: str = "") -> str:
    """The blocks in their fixed order; the same bytes until one of their sources changes.

    `mcp_instructions` are whole blocks of that tag, escaped already.
    """
    blocks = (
        _personality(shaping.voice),
        _wishes(shaping),
        _builder() if shaping.builds else "",
        mcp_instructions,
    )
    return "\n\n".join(text for text in blocks if text)


def _personality(voice: Voice | None) -> str:
    if voice is None:
        return ""
    lines = ["# Personality", "", voice.prompt.strip()]
    lines += [f"Tone: {voice.tone}"] if voice.tone else []
    lines += [f"Style: {voice.style}"] if voice.style else []
    return escape_server_tags("\n".join(lines))


def _wishes(shaping: Shaping) -> str:
    """The user's own words, newest last: of all conversations, of this one, of the agent that it runs."""
    said = (
        ("What the user asks of every conversation:", shaping.standing),
        ("What the user asks of this conversation:", shaping.instructions),
        (
            "This conversation runs an agent of the user. Its instructions:",
            shaping.agent.instructions if shaping.agent else "",
        ),
    )
    parts = [f"{heading}\n{escape(text.strip())}" for heading, text in said if text.strip()]
    return block("user_context", "\n\n".join(parts)) if parts else ""


@cache
def _builder() -> str:
    """The same bytes for all agents and users: no id, no name (A27.6)."""
    introduction = (PROMPTS / "builder.md").read_text(encoding="utf-8").strip()
    return block("builder_session", f"{introduction}\n\n{guide()}")
