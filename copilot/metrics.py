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

# --- files (S19) -------------------------------------------------------------------------------------
uploads = Counter(
    "pilothouse_uploads_total",
    "Files that people sent, by outcome: stored, file_too_large, quota_exceeded, storage_unavailable, refused.",
    ["outcome"],
)
bytes_served = Counter(
    "pilothouse_file_bytes_served_total",
    "Bytes of files by who sent them: app, proxy, storage (by a signed address, counted when it is given out).",
    ["road"],
)
zips = Counter(
    "pilothouse_zips_total",
    "Archives by outcome: begun, too_large, nothing (left to pack), single (one file, sent as itself).",
    ["outcome"],
)
scans = Counter(
    "pilothouse_file_scans_total",
    "Scans of files by outcome: clean, infected, again (will be tried again), failed (given up).",
    ["outcome"],
)
stray_objects = Counter(
    "pilothouse_stray_objects_total",
    "What the daily look at the storage found: orphan (an object without a row, removed), missing (a row without one).",
    ["kind"],
)

# --- shares (S19) ------------------------------------------------------------------------------------
shares = Counter("pilothouse_shares_total", "Shares by act: made, revoked, taken_down.", ["act"])
share_hits = Counter(
    "pilothouse_share_hits_total",
    "What strangers asked of shares, by door (page, file, zip, unlock) and outcome (served, refused, limited).",
    ["door", "outcome"],
)
