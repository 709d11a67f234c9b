"""Translate refusals, notices and script texts into the reader's language; the wire itself is English."""

from __future__ import annotations

from functools import cache

from django.utils.translation import get_language, gettext
from django.utils.translation.trans_real import DjangoTranslation

from config.core.errors import RequestRefused
from config.core.text import gettext_noop as _
from copilot.chat.notices import NOTICES
from copilot.tools.labels import CALL_LABELS, TESTS

REFUSAL_SENTENCES: dict[str, str] = {
    # Invalid input
    "empty_message": _("The message is empty."),
    "message_too_long": _("The message is too long."),
    "invalid_text": _("The text contains characters that can't be stored."),
    "invalid_request": _("The request is not valid."),
    "invalid_name": _("This name can't be used."),
    "name_taken": _("This name is already taken."),
    "invalid_document": _("This document can't be imported."),
    "already_imported": _("This document has already been imported."),
    "invalid_cron": _("That is not a valid cron expression."),
    "unknown_timezone": _("Unknown time zone."),
    "invalid_timezone": _("Unknown time zone."),
    "interval_too_small": _("The task would run too often."),
    "invalid_url": _("This URL can't be used."),
    "address_refused": _("This URL is not allowed."),
    "inputs_invalid": _("The inputs don't match the agent's schema."),
    "invalid_arguments": _("The arguments don't match the tool's schema."),
    # Limits
    "file_too_large": _("The file is too large."),
    "too_large": _("That is too large."),
    "too_many_attachments": _("Too many files."),
    "quota_exceeded": _("Your storage is full."),
    "too_long_to_share": _("This chat is too long to share. Share it up to an earlier message."),
    "zip_too_large": _("These files are too large for one archive."),
    "memory_full": _("Your memory is full."),
    "memory_off": _("Memory is switched off."),
    "queue_full": _("Too many messages are queued."),
    "too_many_requests": _("Too many requests. Please wait a moment."),
    "too_many_keys": _("You have too many keys."),
    "too_many_servers": _("You have too many servers."),
    "too_many_trials": _("Too many tests at once. Please try again in a moment."),
    "too_many_schedules": _("You have too many scheduled tasks."),
    "limit_reached": _("You have reached your limit."),
    "insufficient_credits": _("You don't have enough credits."),
    # State
    "nothing_to_share": _("There is nothing to share yet."),
    "scan_pending": _("The file is still being scanned."),
    "quarantined": _("The file is in quarantine."),
    "session_busy": _("The chat is busy. Try again in a moment."),
    "not_queued": _("The message is no longer queued."),
    "nothing_to_undo": _("There is nothing to undo."),
    "question_closed": _("This question is already closed."),
    "approval_closed": _("This has already been decided."),
    "version_conflict": _("This was changed in the meantime. Please reload."),
    "conflict": _("That isn't possible right now."),
    # Access and availability
    "not_found": _("Not found."),
    "forbidden": _("You don't have access to this."),
    "unauthenticated": _("Please sign in."),
    "tier_not_allowed": _("Your plan doesn't include this model."),
    "storage_unavailable": _("Files are not available right now. Try again later."),
    "unavailable": _("This is not available right now. Try again later."),
    "outcome_unknown": _("We don't know whether this worked. Please check before you try again."),
}


def get_script_translations() -> dict[str, str]:
    """Return the translations for the scripts, which are written in English and need none for it."""
    language = get_language() or "en"
    return (
        {}
        if language.partition("-")[0] == "en"
        else _load_script_catalogue(language) | _translate_server_texts() | _translate_refusals()
    )


def translate_refusal(problem: RequestRefused) -> str:
    """Return the refusal's own message in English, with its figures, or a translated sentence for its code."""
    return _translate_refusals().get(f"refused:{problem.code}", problem.message)


def _translate_refusals() -> dict[str, str]:
    translations = {code: gettext(text) for code, text in REFUSAL_SENTENCES.items()}
    return {
        f"refused:{code}": translation
        for code, translation in translations.items()
        if translation != REFUSAL_SENTENCES[code]
    }


def _translate_server_texts() -> dict[str, str]:
    """Translate notices and labels on the page: workers know no reader, so what they post is English."""
    texts = {text for notice in NOTICES.values() for text in (notice.label, notice.hint)}
    texts |= {text for label in (*CALL_LABELS.values(), TESTS) for text in label}
    return {text: translation for text in texts if (translation := gettext(text)) != text}


@cache
def _load_script_catalogue(language: str) -> dict[str, str]:
    translation = DjangoTranslation(language, domain="djangojs")
    catalogue: dict[object, object] = dict(translation._catalog.items())  # type: ignore[attr-defined]
    return {
        text: translation
        for text, translation in catalogue.items()
        if isinstance(text, str) and isinstance(translation, str) and text
    }
