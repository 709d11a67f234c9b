"""What a page says of a refusal in a reader's language: a sentence for each code, as the wire's own words are English (W4.6)."""

from __future__ import annotations

from functools import cache

from django.utils.translation import get_language, gettext
from django.utils.translation.trans_real import DjangoTranslation

from config.core.errors import RequestRefused
from config.core.text import gettext_noop as _
from copilot.chat.notices import NOTICES

REFUSAL_SENTENCES: dict[str, str] = {
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


# MERGED words: The browser's half of the words: texts of the scripts, notices that come as events, refusals, in the reader's language (W4.6).


def get_script_translations() -> dict[str, str]:
    """Empty in English, which the scripts are written in."""
    language = get_language() or "en"
    return (
        {}
        if language.partition("-")[0] == "en"
        else _load_script_catalogue(language) | _translate_notices() | _translate_refusals()
    )


def translate_refusal(problem: RequestRefused) -> str:
    """In English all that is known, numbers included; in another language its sentence, where there is one."""
    return _translate_refusals().get(f"refused:{problem.code}", problem.message)


def _translate_refusals() -> dict[str, str]:
    """By code, for those that are translated."""
    told = {code: (text, gettext(text)) for code, text in REFUSAL_SENTENCES.items()}
    return {f"refused:{code}": said for code, (text, said) in told.items() if said != text}


def _translate_notices() -> dict[str, str]:
    """Workers know no reader: what they post is English, and said in the reader's words by the page."""
    texts = {text for notice in NOTICES.values() for text in (notice.label, notice.hint)}
    return {text: said for text in texts if (said := gettext(text)) != text}


@cache
def _load_script_catalogue(language: str) -> dict[str, str]:
    translation = DjangoTranslation(language, domain="djangojs")
    catalogue: dict[object, object] = dict(translation._catalog.items())  # type: ignore[attr-defined]
    return {
        text: said
        for text, said in catalogue.items()
        if isinstance(text, str) and isinstance(said, str) and text
    }
