"""What copilot counts for Prometheus; every label comes from a closed set (D16)."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

DURATION_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)

# --- turns -------------------------------------------------------------------------------------------
executions_ended = Counter(
    "pilothouse_executions_ended_total",
    "Turns and scheduled runs by how they ended (succeeded, failed, cancelled), kind (turn, scheduled_run) and origin.",
    ["outcome", "kind", "origin"],
)
turn_limits = Counter(
    "pilothouse_turn_limits_total", "Turns that a limit has ended, by its code (A10.6).", ["code"]
)
turn_seconds = Histogram(
    "pilothouse_turn_seconds", "From a turn's acceptance to its ending.", buckets=DURATION_BUCKETS
)
queue_wait_seconds = Histogram(
    "pilothouse_queue_wait_seconds", "From being queued to a worker's start.", buckets=DURATION_BUCKETS
)
first_event_seconds = Histogram(
    "pilothouse_first_event_seconds",
    "From a turn's acceptance to the model's first token.",
    buckets=DURATION_BUCKETS,
)
turn_recoveries = Counter(
    "pilothouse_turn_recoveries_total",
    "Turns of lost workers by what became of them: continued, failed (lost too often), cancelled (it was stopped).",
    ["decision"],
)
websocket_connections = Gauge(
    "pilothouse_websocket_connections", "Open sockets.", multiprocess_mode="livesum"
)

# --- models and tools --------------------------------------------------------------------------------
provider_calls = Counter(
    "pilothouse_provider_calls_total",
    "Requests to models by provider and outcome: answered, aborted (cut off), refused (before any work).",
    ["provider", "outcome"],
)
provider_seconds = Histogram(
    "pilothouse_provider_seconds", "Duration of requests to models.", ["provider"], buckets=DURATION_BUCKETS
)
cost_microdollars = Counter(
    "pilothouse_cost_microdollars_total", "What models cost, as billing recorded it.", ["provider"]
)
tool_calls = Counter(
    "pilothouse_tool_calls_total",
    "Tool calls by tool (ours by name, those of MCP servers as mcp, others as unknown) and outcome: ok, error.",
    ["tool", "outcome"],
)
leaked_calls = Counter(
    "pilothouse_leaked_tool_calls_total",
    "Tool calls that models wrote as plain text; they are removed and never executed (A14.8).",
)
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
exports = Counter(
    "pilothouse_exports_total",
    "Exports of conversations and accounts by outcome: direct (made at once), ready, failed (given up).",
    ["outcome"],
)
imports = Counter(
    "pilothouse_imports_total",
    "Imports of conversations by outcome: stored, already_imported, invalid_document, refused (for another reason).",
    ["outcome"],
)
erasures = Counter(
    "pilothouse_erasures_total", "Erasures of accounts by act: requested, cancelled, finished.", ["act"]
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
share_renders = Counter(
    "pilothouse_share_renders_total",
    "Conversations of share pages by outcome: cached, rendered, busy (another one took too long).",
    ["outcome"],
)
unrendered_texts = Counter(
    "pilothouse_unrendered_texts_total",
    "Texts of messages shown as written, by reason: failed (an error, see the log), too_long, page_budget, "
    "row_failed (a whole row).",
    ["reason"],
)
