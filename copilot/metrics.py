"""Define copilot's Prometheus metrics. Every label comes from a closed set."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)

# --- Turns -------------------------------------------------------------------------------------------
executions_ended = Counter(
    "pilothouse_executions_ended_total",
    "Turns and scheduled runs by how they ended (succeeded, failed, cancelled), kind (turn, scheduled_run) and origin.",
    ["outcome", "kind", "origin"],
)
turn_limits = Counter("pilothouse_turn_limits_total", "Turns that a limit has ended, by its code.", ["code"])
turn_seconds = Histogram(
    "pilothouse_turn_seconds", "Duration of turns from acceptance to ending.", buckets=DURATION_BUCKETS
)
queue_wait_seconds = Histogram(
    "pilothouse_queue_wait_seconds",
    "Time from queueing a turn to its start by a worker.",
    buckets=DURATION_BUCKETS,
)
first_event_seconds = Histogram(
    "pilothouse_first_event_seconds",
    "Time from a turn's acceptance to the model's first token.",
    buckets=DURATION_BUCKETS,
)
turn_recoveries = Counter(
    "pilothouse_turn_recoveries_total",
    "Takeovers of turns of lost workers by decision: continued, failed (lost too often), cancelled (was stopped).",
    ["decision"],
)
websocket_connections = Gauge(
    "pilothouse_websocket_connections", "Open sockets.", multiprocess_mode="livesum"
)

# --- Models and tools --------------------------------------------------------------------------------
provider_calls = Counter(
    "pilothouse_provider_calls_total",
    "Requests to models by provider and outcome: answered, aborted (cut off), refused (before any work).",
    ["provider", "outcome"],
)
provider_seconds = Histogram(
    "pilothouse_provider_seconds", "Duration of requests to models.", ["provider"], buckets=DURATION_BUCKETS
)
cost_microdollars = Counter(
    "pilothouse_cost_microdollars_total", "Cost of model calls as billing recorded it.", ["provider"]
)
tool_calls = Counter(
    "pilothouse_tool_calls_total",
    "Tool calls by tool (built-in ones by name, those of MCP servers as mcp, others as unknown) and outcome: ok, error.",
    ["tool", "outcome"],
)
leaked_calls = Counter(
    "pilothouse_leaked_tool_calls_total",
    "Tool calls that models wrote as plain text; they are removed and never executed.",
)
titles = Counter(
    "pilothouse_titles_total",
    "Automatic titles by source: model, local, none (nothing usable).",
    ["source"],
)
prompt_tokens = Counter(
    "pilothouse_prompt_tokens_total",
    "Prompt tokens by model of the catalogue and part: input (uncached), read (from a cache), written (to one).",
    ["model", "part"],
)
prefix_breaks = Counter(
    "pilothouse_prompt_prefix_breaks_total",
    "Requests whose prompt could not begin with the previous prompt, by reason: "
    "compaction, edit, healing, model_switch, shape (its suffix or tools), undo.",
    ["reason"],
)

# --- Files -------------------------------------------------------------------------------------------
uploads = Counter(
    "pilothouse_uploads_total",
    "Uploads by outcome: stored, file_too_large, quota_exceeded, storage_unavailable, refused.",
    ["outcome"],
)
bytes_served = Counter(
    "pilothouse_file_bytes_served_total",
    "Bytes of files by what served them: app, proxy, storage (by a signed URL, counted when it is issued).",
    ["road"],
)
zips = Counter(
    "pilothouse_zips_total",
    "ZIP archives by outcome: begun, too_large, nothing (no files left), single (one file, sent unpacked).",
    ["outcome"],
)
scans = Counter(
    "pilothouse_file_scans_total",
    "Scans of files by outcome: clean, infected, again (will be retried), failed (given up).",
    ["outcome"],
)
exports = Counter(
    "pilothouse_exports_total",
    "Exports of chats and accounts by outcome: direct (built at once), ready, failed (given up).",
    ["outcome"],
)
imports = Counter(
    "pilothouse_imports_total",
    "Imports of chats by outcome: stored, already_imported, invalid_document, refused (for another reason).",
    ["outcome"],
)
account_deletions = Counter(
    "pilothouse_erasures_total", "Account deletions by act: requested, cancelled, finished.", ["act"]
)
stray_objects = Counter(
    "pilothouse_stray_objects_total",
    "Findings of the daily storage check: orphan (an object without a row, removed), missing (a row without an object).",
    ["kind"],
)

# --- Shares ------------------------------------------------------------------------------------------
shares = Counter("pilothouse_shares_total", "Shares by act: made, revoked, taken_down.", ["act"])
share_hits = Counter(
    "pilothouse_share_hits_total",
    "Visits to shares by endpoint (page, file, zip, unlock) and outcome (served, refused, limited).",
    ["endpoint", "outcome"],
)
share_renders = Counter(
    "pilothouse_share_renders_total",
    "Rendered share pages by outcome: cached, rendered, busy (another one took too long).",
    ["outcome"],
)
unrendered_texts = Counter(
    "pilothouse_unrendered_texts_total",
    "Message texts shown without formatting, by reason: failed (an error, see the log), too_long, page_budget, "
    "row_failed (a whole row).",
    ["reason"],
)
