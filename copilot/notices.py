"""What people are told when something ended badly or oddly: one table from notice code to words and action (A6.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["retry", "continue", "none"]


@dataclass(frozen=True)
class Notice:
    label: str
    hint: str
    action: Action


NOTICES: dict[str, Notice] = {
    # --- classes of provider failures (A6.1)
    "quota_exhausted": Notice(
        "Provider credit used up", "Top up, wait for the next window, or pick another model.", "retry"
    ),
    "rate_limited": Notice("Too many requests", "Try again shortly.", "retry"),
    "auth_failed": Notice(
        "Provider rejected our key", "The administrator must check this provider's credentials.", "none"
    ),
    "model_not_found": Notice("Model not available", "Pick another model or check the catalogue.", "retry"),
    "context_overflow": Notice("Conversation too long", "It is being summarised.", "continue"),
    "overloaded": Notice("Provider unavailable", "This usually passes. Try again in a moment.", "retry"),
    "effort_invalid": Notice(
        "Reasoning level adjusted", "The model does not know the level asked for.", "retry"
    ),
    "thinking_unsupported": Notice(
        "Reasoning switched off for this model", "The model answers without reasoning.", "retry"
    ),
    "thinking_signature_invalid": Notice(
        "Reasoning history discarded", "The model goes on without its earlier reasoning.", "retry"
    ),
    "media_unsupported": Notice(
        "Images not accepted by this model", "Remove the images or pick another model.", "retry"
    ),
    "no_response": Notice(
        "The provider sent nothing", "This is often an unannounced limit. Try again.", "retry"
    ),
    "malformed_stream": Notice("Broken answer from provider", "Try again.", "retry"),
    "refused": Notice("The model declined", "Rephrase the request.", "none"),
    "bad_request": Notice("Request rejected", "The provider did not accept the request.", "none"),
    "unknown": Notice("Error", "Something unexpected happened. Try again.", "retry"),
    "cancelled": Notice("Stopped", "What was written so far is kept.", "continue"),
    # --- endings and limits of turns
    "stopped": Notice("Stopped", "What was written so far is kept.", "continue"),
    "interrupted": Notice("Interrupted", "The answer was cut off. Continue from here.", "continue"),
    "idle_timeout": Notice("No sign of life", "The model was silent for too long. Try again.", "retry"),
    "worker_lost": Notice(
        "Connection to the worker lost", "The answer could not be finished. Try again.", "retry"
    ),
    "never_started": Notice(
        "Never started", "The message was accepted but no worker took it. Try again.", "retry"
    ),
    "round_limit": Notice(
        "Step limit reached", "The turn used all its steps. Continue to go on.", "continue"
    ),
    "loop_detected": Notice(
        "Going in circles", "The same calls were repeated. Say what to do differently.", "none"
    ),
    "tool_calls_broken": Notice(
        "Unusable tool calls", "The model kept sending calls that cannot run.", "retry"
    ),
    "budget_reached": Notice("Budget of this turn used up", "Continue to grant another turn.", "continue"),
    "limit_reached": Notice(
        "Usage limit reached",
        "Continue once it lifts: with the next window, or with a larger plan.",
        "continue",
    ),
    "time_limit": Notice("Time limit reached", "The turn took too long. Continue to go on.", "continue"),
    "output_truncated": Notice("Answer cut off", "The model reached its output limit.", "continue"),
    "context_full": Notice(
        "Conversation too long", "It could not be shortened enough. Start a new conversation.", "none"
    ),
    "compaction_failed": Notice("Summary failed", "The conversation goes on unshortened.", "none"),
    "server_unavailable": Notice(
        "Tool server unavailable", "Its tools are missing until it answers again.", "none"
    ),
    "file_quarantined": Notice(
        "File in quarantine",
        "A scan found something harmful in a file. It cannot be opened or shared.",
        "none",
    ),
    "goal_paused": Notice("Goal paused", "Write /goal resume to go on with it.", "none"),
    "schedule_disabled": Notice(
        "Schedule switched off", "It failed repeatedly. Check it, then switch it on.", "none"
    ),
}
