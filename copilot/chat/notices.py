"""What people are told when something ended badly or oddly: one table from notice code to words and action (A6.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from config.core.text import gettext_noop as _

NoticeAction = Literal["retry", "continue", "none"]
LimitCode = Literal[  # why a turn was not let go on (A10)
    "round_limit", "time_limit", "loop_detected", "tool_calls_broken", "budget_reached", "limit_reached"
]


@dataclass(frozen=True, kw_only=True)
class FailureSource:
    """Whose failure it was, for whoever asks the provider about it; empty where no provider was asked (A6.2)."""

    provider: str = ""
    model: str = ""
    request_id: str = ""  # the provider's own name for the call


NO_SOURCE = FailureSource()


@dataclass(frozen=True)
class Notice:
    label: str
    hint: str
    action: NoticeAction


NOTICES: dict[str, Notice] = {
    # --- classes of provider failures (A6.1)
    "quota_exhausted": Notice(
        _("Provider credit used up"), _("Top up, wait for the next window, or pick another model."), "retry"
    ),
    "rate_limited": Notice(_("Too many requests"), _("Try again shortly."), "retry"),
    "auth_failed": Notice(
        _("Provider rejected our key"), _("The administrator must check this provider's credentials."), "none"
    ),
    "model_not_found": Notice(
        _("Model not available"), _("Pick another model or check the catalogue."), "retry"
    ),
    "context_overflow": Notice(_("Conversation too long"), _("It is being summarised."), "continue"),
    "overloaded": Notice(
        _("Provider unavailable"), _("This usually passes. Try again in a moment."), "retry"
    ),
    "effort_invalid": Notice(
        _("Reasoning level adjusted"), _("The model does not know the level asked for."), "retry"
    ),
    "thinking_unsupported": Notice(
        _("Reasoning switched off for this model"), _("The model answers without reasoning."), "retry"
    ),
    "thinking_signature_invalid": Notice(
        _("Reasoning history discarded"), _("The model goes on without its earlier reasoning."), "retry"
    ),
    "media_unsupported": Notice(
        _("Images not accepted by this model"), _("Remove the images or pick another model."), "retry"
    ),
    "no_response": Notice(
        _("The provider sent nothing"), _("This is often an unannounced limit. Try again."), "retry"
    ),
    "malformed_stream": Notice(_("Broken answer from provider"), _("Try again."), "retry"),
    "refused": Notice(_("The model declined"), _("Rephrase the request."), "none"),
    "bad_request": Notice(_("Request rejected"), _("The provider did not accept the request."), "none"),
    "unknown": Notice(_("Error"), _("Something unexpected happened. Try again."), "retry"),
    "cancelled": Notice(_("Stopped"), _("What was written so far is kept."), "continue"),
    # --- endings and limits of turns
    "stopped": Notice(_("Stopped"), _("What was written so far is kept."), "continue"),
    "interrupted": Notice(_("Interrupted"), _("The answer was cut off. Continue from here."), "continue"),
    "idle_timeout": Notice(_("No sign of life"), _("The model was silent for too long. Try again."), "retry"),
    "worker_lost": Notice(
        _("Connection to the worker lost"), _("The answer could not be finished. Try again."), "retry"
    ),
    "never_started": Notice(
        _("Never started"), _("The message was accepted but no worker took it. Try again."), "retry"
    ),
    "round_limit": Notice(
        _("Step limit reached"), _("The turn used all its steps. Continue to go on."), "continue"
    ),
    "loop_detected": Notice(
        _("Going in circles"), _("The same calls were repeated. Say what to do differently."), "none"
    ),
    "tool_calls_broken": Notice(
        _("Unusable tool calls"), _("The model kept sending calls that cannot run."), "retry"
    ),
    "budget_reached": Notice(
        _("Budget of this turn used up"), _("Continue to grant another turn."), "continue"
    ),
    "limit_reached": Notice(
        _("Usage limit reached"),
        _("Continue once it lifts: with the next window, or with a larger plan."),
        "continue",
    ),
    "time_limit": Notice(
        _("Time limit reached"), _("The turn took too long. Continue to go on."), "continue"
    ),
    "output_truncated": Notice(_("Answer cut off"), _("The model reached its output limit."), "continue"),
    "context_full": Notice(
        _("Conversation too long"), _("It could not be shortened enough. Start a new conversation."), "none"
    ),
    "compaction_failed": Notice(_("Summary failed"), _("The conversation goes on unshortened."), "none"),
    "server_unavailable": Notice(
        _("Tool server unavailable"), _("Its tools are missing until it answers again."), "none"
    ),
    "file_quarantined": Notice(
        _("File in quarantine"),
        _("A scan found something harmful in a file. It cannot be opened or shared."),
        "none",
    ),
    "goal_paused": Notice(_("Goal paused"), _("Write /goal resume to go on with it."), "none"),
    "schedule_disabled": Notice(
        _("Schedule switched off"), _("It failed repeatedly. Check it, then switch it on."), "none"
    ),
}
