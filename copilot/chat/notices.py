"""Texts and actions of the notices that tell people why a turn ended badly or oddly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from config.core.text import gettext_noop as _

NoticeAction = Literal["retry", "continue", "none"]
LimitCode = Literal[  # limits that end a turn
    "round_limit",
    "time_limit",
    "loop_detected",
    "tool_calls_broken",
    "budget_reached",
    "limit_reached",
    "output_truncated",
    "invalid_output",
]


@dataclass(frozen=True, kw_only=True)
class FailureSource:
    """The provider call that failed, so that staff can ask the provider about it; empty if none was made."""

    provider: str = ""
    model: str = ""
    request_id: str = ""  # the provider's id of the call
    retry_after_seconds: int = 0  # as the provider asked; 0 = it did not


NO_SOURCE = FailureSource()


@dataclass(frozen=True)
class Notice:
    label: str
    hint: str
    action: NoticeAction


NOTICES: dict[str, Notice] = {
    # --- Provider failures
    "quota_exhausted": Notice(
        _("The provider account is out of credit"),
        _("Top it up, wait for its next billing window, or pick another model."),
        "retry",
    ),
    "rate_limited": Notice(_("Too many requests"), _("Try again shortly."), "retry"),
    "auth_failed": Notice(
        _("The model's API key was rejected"),
        _("An administrator has to check this provider's credentials."),
        "none",
    ),
    "model_not_found": Notice(
        _("Model not available"), _("Pick another model or check the catalogue."), "retry"
    ),
    "context_overflow": Notice(
        _("This chat is too long"), _("Older messages are being summarised."), "continue"
    ),
    "overloaded": Notice(
        _("Model not responding"), _("This usually passes. Try again in a moment."), "retry"
    ),
    "effort_invalid": Notice(
        _("Reasoning level adjusted"), _("The model doesn't support the level you chose."), "retry"
    ),
    "thinking_unsupported": Notice(
        _("Reasoning switched off for this model"), _("The model answers without reasoning."), "retry"
    ),
    "thinking_signature_invalid": Notice(
        _("Reasoning history discarded"), _("The model continues without its earlier reasoning."), "retry"
    ),
    "media_unsupported": Notice(
        _("Images not accepted by this model"), _("Remove the images or pick another model."), "retry"
    ),
    "no_response": Notice(
        _("The model sent no answer"), _("Try again. If it keeps happening, pick another model."), "retry"
    ),
    "malformed_stream": Notice(_("The answer was cut off"), _("Try again."), "retry"),
    "refused": Notice(_("The model declined to answer"), _("Try rephrasing your request."), "none"),
    "bad_request": Notice(
        _("Request rejected"), _("The model's provider didn't accept the request."), "none"
    ),
    "unknown": Notice(_("Something went wrong"), _("Try again."), "retry"),
    "cancelled": Notice(_("Stopped"), _("The answer so far is kept."), "continue"),
    # --- Endings and limits of turns
    "stopped": Notice(_("Stopped"), _("The answer so far is kept."), "continue"),
    "interrupted": Notice(_("Interrupted"), _("The answer was cut off. Continue from here."), "continue"),
    "idle_timeout": Notice(_("The model stopped responding"), _("Try again."), "retry"),
    "worker_lost": Notice(_("The answer was interrupted"), _("It couldn't be finished. Try again."), "retry"),
    "never_started": Notice(
        _("Couldn't start"), _("Your message was received, but nothing picked it up. Try again."), "retry"
    ),
    "round_limit": Notice(
        _("Step limit reached"), _("This answer used all its steps. Press Continue for more."), "continue"
    ),
    "loop_detected": Notice(
        _("Stuck in a loop"), _("The same tool calls kept repeating. Say what to do differently."), "none"
    ),
    "tool_calls_broken": Notice(
        _("Unusable tool calls"), _("The model kept sending tool calls that can't run."), "retry"
    ),
    "budget_reached": Notice(
        _("This answer's budget is used up"), _("Continue to spend as much again."), "continue"
    ),
    "limit_reached": Notice(
        _("Usage limit reached"),
        _("You can continue when the limit resets, or on a larger plan."),
        "continue",
    ),
    "time_limit": Notice(
        _("Time limit reached"), _("This answer took too long. Press Continue for more."), "continue"
    ),
    "invalid_output": Notice(
        _("Answer in the wrong format"),
        _("The model did not answer in the format that was asked for."),
        "retry",
    ),
    "output_truncated": Notice(_("Answer cut off"), _("The model reached its output limit."), "continue"),
    "context_full": Notice(
        _("This chat is too long"), _("It couldn't be summarised enough. Start a new chat."), "none"
    ),
    "compaction_failed": Notice(_("Couldn't summarise this chat"), _("It continues in full."), "none"),
    "server_unavailable": Notice(
        _("Tool server unavailable"), _("Its tools are missing until it responds again."), "none"
    ),
    "file_quarantined": Notice(
        _("File in quarantine"),
        _("A scan found something harmful in a file. It can't be opened or shared."),
        "none",
    ),
    "goal_paused": Notice(_("Goal paused"), _("Type /goal resume to continue."), "none"),
    "schedule_disabled": Notice(
        _("Task turned off"), _("It failed repeatedly. Check it, then turn it on again."), "none"
    ),
}
