"""The browser's half of the words: texts of the scripts in the reader's language (W4.6)."""

from __future__ import annotations

from functools import cache

from django.utils.translation import get_language
from django.utils.translation.trans_real import DjangoTranslation


def of_scripts() -> dict[str, str]:
    """Empty in English, which the scripts are written in."""
    language = get_language() or "en"
    return {} if language.partition("-")[0] == "en" else _catalogue(language)


@cache
def _catalogue(language: str) -> dict[str, str]:
    translation = DjangoTranslation(language, domain="djangojs")
    catalogue: dict[object, object] = dict(translation._catalog.items())  # type: ignore[attr-defined]
    return {
        text: said
        for text, said in catalogue.items()
        if isinstance(text, str) and isinstance(said, str) and text
    }
