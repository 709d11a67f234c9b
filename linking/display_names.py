"""Names that strangers gave, made fit to be shown: one line, nothing invisible, not long."""

from __future__ import annotations

import re
import unicodedata

MAX_DISPLAY_CHARACTERS = 80
# Marks that turn the reading direction: with them a name could rewrite the sentence around it.
_BIDI_MARKS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_INVISIBLE_CATEGORIES = {"Cc", "Cs", "Co", "Cn"}


def clean_name(name: str, most: int = MAX_DISPLAY_CHARACTERS) -> str:
    """Without control characters and direction marks, cut to `most` characters."""
    straight = _BIDI_MARKS.sub("", name[: 4 * most + 1000])
    visible = "".join(" " if unicodedata.category(one) in _INVISIBLE_CATEGORIES else one for one in straight)
    words = " ".join(visible.split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"
