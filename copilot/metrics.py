"""What copilot counts for Prometheus; every label comes from a closed set (D16)."""

from __future__ import annotations

from prometheus_client import Counter

titles = Counter(
    "pilothouse_titles_total",
    "Titles of the server's own by where they came from: model, local, none (nothing usable).",
    ["source"],
)
prompt_tokens = Counter(
    "pilothouse_prompt_tokens_total",
    "Tokens of prompts by model of the catalogue and part: input (uncached), read (from a cache), written (to one).",
    ["model", "part"],
)
prefix_breaks = Counter(
    "pilothouse_prompt_prefix_breaks_total",
    "Requests that could not begin with the one before, by reason: "
    "compaction, edit, healing, model_switch, shape (its suffix or tools), undo.",
    ["reason"],
)
