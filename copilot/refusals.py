"""What a page says of a refusal in a reader's language: a sentence for each code, as the wire's own words are English (W4.6)."""

from __future__ import annotations

from copilot.marking import gettext_noop as _

REFUSALS: dict[str, str] = {
    # --- what was sent
    "empty_message": _("The message is empty."),
    "message_too_long": _("The message is too long."),
    "invalid_text": _("The text holds characters that cannot be kept."),
    "invalid_request": _("Something in the request is not right."),
    "invalid_name": _("This name cannot be used."),
    "name_taken": _("This name is taken."),
    "invalid_document": _("This document cannot be imported."),
    "already_imported": _("This document has been imported already."),
    "invalid_cron": _("This is no timetable."),
    "unknown_timezone": _("This time zone is not known."),
    "invalid_timezone": _("This time zone is not known."),
    "interval_too_small": _("That is too often."),
    "invalid_url": _("This address cannot be used."),
    "address_refused": _("This address may not be reached."),
    "inputs_invalid": _("The inputs do not fit."),
    "invalid_arguments": _("The arguments do not fit."),
    # --- how much
    "file_too_large": _("The file is too large."),
    "too_large": _("That is too large."),
    "too_many_attachments": _("Too many files at once."),
    "quota_exceeded": _("The workspace is full."),
    "too_long_to_share": _(
        "The conversation is too long to be shared whole. Share it up to an earlier message."
    ),
    "zip_too_large": _("These files are too large for one archive."),
    "memory_full": _("The memory is full."),
    "memory_off": _("The memory is switched off."),
    "queue_full": _("Too many messages are waiting."),
    "too_many_requests": _("Too many requests. Please wait a while."),
    "too_many_keys": _("There are too many keys."),
    "too_many_servers": _("There are too many servers."),
    "too_many_trials": _("Too many tests at once. Please try again in a moment."),
    "too_many_schedules": _("There are too many scheduled tasks."),
    "limit_reached": _("The limit is reached."),
    "insufficient_credits": _("There are not enough credits."),
    # --- in what state
    "nothing_to_share": _("There is nothing to share yet."),
    "scan_pending": _("The file is still being scanned."),
    "quarantined": _("The file is in quarantine."),
    "session_busy": _("The chat is busy. Try again in a moment."),
    "not_queued": _("The message is not waiting any more."),
    "nothing_to_undo": _("There is nothing to undo."),
    "question_closed": _("The question is closed."),
    "approval_closed": _("This was decided already."),
    "version_conflict": _("It was changed meanwhile. Look again, please."),
    "conflict": _("That is not possible now."),
    # --- who asks, and who answers
    "not_found": _("Not found."),
    "forbidden": _("This is not allowed."),
    "unauthenticated": _("Please sign in."),
    "tier_not_allowed": _("Your plan does not have this model."),
    "storage_unavailable": _("Files cannot be reached at the moment."),
    "unavailable": _("That is not available at the moment."),
    "outcome_unknown": _("It is not known whether that was done. Look again, please."),
}
