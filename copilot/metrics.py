"""What copilot counts for Prometheus; every label comes from a closed set (D16)."""

from __future__ import annotations

from prometheus_client import Counter

titles = Counter(
    "pilothouse_titles_total",
    "Titles of the server's own by where they came from: model, local, none (nothing usable).",
    ["source"],
)
