"""The browser's half of the words: texts of the scripts, notices that come as events, refusals, in the reader's language (W4.6)."""

from __future__ import annotations

from functools import cache

from django.utils.translation import get_language, gettext
from django.utils.translation.trans_real import DjangoTranslation

from copilot.errors import Refused
from copilot.notices import NOTICES
from copilot.refusals import REFUSALS


def of_scripts() -> dict[str, str]:
    """Empty in English, which the scripts are written in."""
    language = get_language() or "en"
    return {} if language.partition("-")[0] == "en" else _catalogue(language) | _notices() | _refusals()


def of_refusal(problem: Refused) -> str:
    """In English all that is known, numbers included; in another language its sentence, where there is one."""
    return _refusals().get(f"refused:{problem.code}", problem.message)


def _refusals() -> dict[str, str]:
    """By code, for those that are translated."""
    told = {code: (text, gettext(text)) for code, text in REFUSALS.items()}
    return {f"refused:{code}": said for code, (text, said) in told.items() if said != text}


def _notices() -> dict[str, str]:
    """Workers know no reader: what they post is English, and said in the reader's words by the page."""
    texts = {text for notice in NOTICES.values() for text in (notice.label, notice.hint)}
    return {text: said for text in texts if (said := gettext(text)) != text}


@cache
def _catalogue(language: str) -> dict[str, str]:
    translation = DjangoTranslation(language, domain="djangojs")
    catalogue: dict[object, object] = dict(translation._catalog.items())  # type: ignore[attr-defined]
    return {
        text: said
        for text, said in catalogue.items()
        if isinstance(text, str) and isinstance(said, str) and text
    }
